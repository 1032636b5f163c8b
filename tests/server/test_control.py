"""How a front gets its configuration and the listening socket."""

import os
import socket
import threading

from ortloom.config import Config, FrontConfig, ModelConfig
from ortloom.server.children import configure_engine, hand_over
from ortloom.server.control import FrameReader, Handoff, PushNow, frame, receive_handoff
from ortloom.server.spawn import EarlyChildren

HANDOFF = Handoff(
    Config(model=ModelConfig(bundle="b"), front=FrontConfig(api_keys=("secret",) * 20_000)),
    2,
    "ipc://somewhere",
    12.5,
)


def test_the_handoff_arrives_whole_with_the_socket_and_leaves_what_follows():
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:

        def send():  # larger than the socket's buffer: it waits for the reader
            front = hand_over(None, ours, HANDOFF, listener)
            ours.setblocking(True)
            front.send(PushNow())

        thread = threading.Thread(target=send)
        thread.start()
        handoff, received = receive_handoff(theirs)
        thread.join()
        with received:
            assert handoff == HANDOFF
            assert received.getsockname() == listener.getsockname()
            assert received.fileno() != listener.fileno()
            assert not os.get_inheritable(received.fileno())
        assert FrameReader().feed(theirs.recv(100)) == FrameReader().feed(frame(PushNow()))


def test_a_supervisor_that_is_gone_is_no_error():
    for sent in (b"", b"\1", frame(HANDOFF)[:9]):
        ours, theirs = socket.socketpair()
        with theirs:
            ours.sendall(sent)
            ours.close()
            assert receive_handoff(theirs) is None


def test_a_front_that_is_gone_loses_its_handoff():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, socket.create_server(("127.0.0.1", 0)) as listener:
        assert hand_over(None, ours, HANDOFF, listener).index == 2


def test_early_children_can_be_discarded_twice_and_at_any_time(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    early = EarlyChildren()
    early.discard()
    early.discard()
    assert list(tmp_path.iterdir()) == []
    assert early.engine.returncode == early.front.returncode == -9
    # What an engine that is gone is told is lost without an error.
    early = EarlyChildren()
    early.engine.kill()
    early.engine.wait()
    configure_engine(early.engine, HANDOFF.config)
    early.discard()
    assert list(tmp_path.iterdir()) == []
