"""A signal during a server's start ends all of its processes and leaves no folder behind."""

import signal
import sys
import time
from pathlib import Path

import pytest

served = sys.modules["ortloom_test_served"]

LIMIT = 60.0


def family(leader):
    """Processes of the session of `leader`, itself not counted; ended ones neither."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z" and int(path.parent.name) != leader:
            found.append(int(path.parent.name))
    return found


class Start:
    """A server that has just been started, with a folder of its own for temporary files."""

    def __init__(self, bundle, folder):
        flags = ["--num-gpu-blocks-override", "64"]
        self.server = served.Served(bundle, *flags, env={"TMPDIR": str(folder)})
        self.folder = folder
        self.server.spawn()
        self.pid = self.server.process.pid

    def reaches(self, event):
        end = time.monotonic() + LIMIT
        while not event(self):
            assert self.server.process.poll() is None, self.server.text()
            assert time.monotonic() < end
        return self

    def stopped_by(self, number):
        """Exit code; whatever is left is an error."""
        code = self.server.stop(number, LIMIT)
        left = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family(self.pid)}
        assert left == {}, code
        assert list(self.folder.glob("ortloom-*")) == []
        assert "Traceback" not in self.server.text() or code == -number
        self.server.client.close()
        self.server.log.unlink()
        return code


EVENTS = {
    "folder": lambda start: any(start.folder.iterdir()),
    "engine": lambda start: len(family(start.pid)) >= 1,
    "front": lambda start: len(family(start.pid)) >= 2,
    "socket": lambda start: any(start.folder.glob("*/engine")),
    "bound": lambda start: "non-default args" in start.server.text(),
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("event", EVENTS)
def test_a_signal_during_the_start(demo_bundle_int4, tmp_path, event, number):
    """From the first thing that would be left behind on, the server is stopped in order."""
    start = Start(demo_bundle_int4, tmp_path)
    assert start.reaches(EVENTS[event]).stopped_by(number) == 0


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_time(demo_bundle_int4, tmp_path, number):
    """Before there is anything to take away the system's own answer will do."""
    for step in range(31):
        folder = tmp_path / str(step)
        folder.mkdir()
        start = Start(demo_bundle_int4, folder)
        time.sleep(0.05 * step)
        assert start.stopped_by(number) in (0, -number, 128 + number)
