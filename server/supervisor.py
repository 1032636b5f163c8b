"""`ortloom serve`: bind the socket, start one engine and N fronts, watch them, end them in order.

No event loop, no Sanic: this process must start in milliseconds and cannot be held up by requests.
- The engine dies: streams get an error event, /health turns 503, and after a short while
  everything ends with a non-zero exit code (an orchestrator restarts it; half-alive is worse).
- A front dies: it is replaced, at most RESPAWN_LIMIT times in RESPAWN_WINDOW seconds; the others
  never stop.
- SIGTERM or SIGINT: fronts finish what is in flight within the shutdown timeout, then the engine
  ends; exit code 0. A second signal ends everything at once.
"""

import logging
import os
import selectors
import shutil
import signal
import socket
import time
from collections import deque

import msgspec

from ortloom import logs
from ortloom.config import Config
from ortloom.errors import OrtloomError
from ortloom.log_setup import set_up_logging
from ortloom.server.children import (
    Front,
    configure_engine,
    hand_over,
    how_it_ended,
    terminate,
)
from ortloom.server.control import (
    AskTotal,
    Drain,
    EngineGone,
    FromFront,
    FrontFailed,
    FrontReady,
    Handoff,
    PushSnapshot,
)
from ortloom.server.engine_process import EngineProcess, NoEngine
from ortloom.server.listening import CannotListen, bind, url_of
from ortloom.server.spawn import (
    EarlyChildren,
    NoFolder,
    engine_address,
    private_folder,
    raise_file_limit,
    spawn_engine,
    spawn_front,
)
from ortloom.server.startup_report import announce
from ortloom.server.stop_signals import StartSignals, StopSignals
from ortloom.server.totals import Totals

logger = logging.getLogger("ortloom.supervisor")

RESPAWN_LIMIT = 3
RESPAWN_WINDOW = 60.0
ENGINE_GONE_LINGER = 3.0  # seconds in which clients still see errors and a 503 on /health
FRONT_FAILURE_WAIT = 3.0  # seconds for the engine to report the same start-up error itself
FRONT_STOP_GRACE = 10.0  # beyond the shutdown timeout
ENGINE_STOP_GRACE = 10.0


def run(
    config: Config,
    early: EarlyChildren | None = None,
    earlier_signals: StartSignals | None = None,
) -> int:
    """Serve until a signal or a failure; returns the exit code.

    Args:
        config: the tree.
        early: an engine and a front that wait for it; from here on they are the supervisor's.
        earlier_signals: what watched for signals until now.
    """
    # before anything is made that has to be taken away again
    signals = StopSignals(earlier_signals)
    try:
        return _serve(config, signals, early)
    except (CannotListen, NoFolder) as error:
        if early is not None:
            early.discard()
        return _refused(error)
    finally:
        signals.close()


def _serve(config: Config, signals: StopSignals, early: EarlyChildren | None) -> int:
    with bind(config.front) as listener:
        return Supervisor(config, listener, signals, early).run()


def _refused(error: OrtloomError) -> int:
    logs.say(f"ortloom: error: {error}")
    return error.exit_code


class Supervisor:
    """One run of the server.

    Args:
        config: the tree.
        listener: the bound, listening socket; closed when stopping begins.
        signals: what it is told to end by.
        early: children that are there already.
    """

    def __init__(
        self,
        config: Config,
        listener: socket.socket,
        signals: StopSignals,
        early: EarlyChildren | None = None,
    ) -> None:
        self._config = config
        self._listener = listener
        self._signals = signals
        self._url = url_of(listener, tls=config.front.tls is not None)
        self._started = time.time()
        self._early = early
        self._folder = private_folder() if early is None else early.folder
        self._address = engine_address(self._folder)
        self._selector = selectors.DefaultSelector()
        self._fronts: dict[int, Front] = {}
        self._respawns: deque[float] = deque()
        self._totals = Totals()
        self._timers: dict[str, float] = {}  # what -> monotonic time
        self._announced = False
        self._engine_gone = False
        self._stopping = False
        self._engine_stopping = False
        self._exit_code = 0
        self._failure: FrontFailed | None = None
        self._decode = msgspec.msgpack.Decoder(FromFront).decode

    def run(self) -> int:
        """Start everything and watch it to its end; returns the exit code."""
        raise_file_limit()
        self._selector.register(self._signals.wake, selectors.EVENT_READ, None)
        early = self._early
        self._engine = self._start_engine(early)
        for index in range(self._config.front.num_fronts):
            self._start_front(index)
        set_up_logging(self._config.log, "supervisor")
        if self._config.front.ready_timeout:
            self._timers["engine late"] = time.monotonic() + self._config.front.ready_timeout
        try:
            while not self._done():
                self._step()
        finally:
            self._clean_up()
        return self._exit_code

    def _start_engine(self, early: EarlyChildren | None) -> EngineProcess:
        if self._config.front.routes.render_only:
            return NoEngine()
        engine = spawn_engine(self._address) if early is None else early.engine
        configure_engine(engine, self._config)
        return engine

    def _done(self) -> bool:
        return self._stopping and not self._fronts and self._engine.poll() is not None

    def _step(self) -> None:
        due = min(self._timers.values(), default=None)
        due = min(filter(None, (due, self._totals.due)), default=None)
        timeout = None if due is None else max(0.0, due - time.monotonic())
        for key, mask in self._selector.select(timeout):
            if key.data is None:
                self._signals.drain()
            else:
                self._serve_front(key.data, mask)
        if self._signals.count:
            self._on_signal()
        self._check_engine()
        self._check_fronts()
        self._totals.expire()
        self._run_timers()

    # signals and timers

    def _on_signal(self) -> None:
        first = not self._stopping
        again = self._signals.count > 1 or not first
        self._signals.count = 0
        if first:
            logger.info("shutting down")
            self._stop(self._exit_code)
        if again:
            logger.warning("shutting down at once")
            self._kill_all()

    def _run_timers(self) -> None:
        now = time.monotonic()
        for name in [name for name, due in self._timers.items() if due <= now]:
            del self._timers[name]
            if name == "engine gone":
                self._stop(1)
            elif name == "front failed" and self._failure is not None and not self._stopping:
                logs.say(f"ortloom: error: {self._failure.message}")
                self._stop(self._failure.exit_code)
            elif name == "engine late" and not self._announced:
                limit = self._config.front.ready_timeout
                logs.say(f"ortloom: error: the engine was not ready within {limit:g} s")
                self._stop(1)
                self._kill_all()
            elif name == "kill":
                logger.warning("children did not end in time and are killed")
                self._kill_all()

    # the engine

    def _check_engine(self) -> None:
        code = self._engine.poll()
        if code is None or self._engine_gone:
            return
        self._engine_gone = True
        if self._stopping:
            if not self._engine_stopping:
                logger.error("the engine ended early (%s)", how_it_ended(code))
            return
        if not self._announced:
            if code < 0:
                logger.error("the engine ended during start-up (%s)", how_it_ended(code))
            self._stop(code if code > 0 else 1)
            return
        logger.error("the engine is gone (%s)", how_it_ended(code))
        self._exit_code = 1
        for front in self._fronts.values():
            front.send(EngineGone("the engine process ended"))
            self._watch_front(front)
        if not self._config.front.outlive_engine:
            self._timers["engine gone"] = time.monotonic() + ENGINE_GONE_LINGER

    # fronts

    def _start_front(self, index: int) -> None:
        early, self._early = self._early, None
        process, control = spawn_front() if early is None else (early.front, early.control)
        # One front answers /health from the start on. Another one, and one that takes the place of
        # a dead one, must not accept requests that it has to refuse while others could serve them.
        waits = index > 0 or self._announced
        handoff = Handoff(self._config, index, self._address, self._started, waits, self._folder)
        front = hand_over(process, control, handoff, self._listener)
        self._fronts[index] = front
        self._selector.register(front.control, selectors.EVENT_READ, front)

    def _serve_front(self, front: Front, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            front.flush()
        if mask & selectors.EVENT_READ:
            self._read_front(front)
        self._watch_front(front)

    def _watch_front(self, front: Front) -> None:
        """Ask for writability only while something is queued."""
        if front.control.fileno() in self._selector.get_map():
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if front.outbox else 0)
            self._selector.modify(front.control, events, front)

    def _read_front(self, front: Front) -> None:
        try:
            data = front.control.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(front.control)
            return
        for body in front.reader.feed(data):
            self._on_message(front, self._decode(body))
        for other in self._fronts.values():
            self._watch_front(other)

    def _on_message(self, front: Front, message: FromFront) -> None:
        match message:
            case FrontReady():
                front.ready = message
                self._announce()
            case FrontFailed():
                self._failure = message
                self._timers["front failed"] = time.monotonic() + FRONT_FAILURE_WAIT
            case PushSnapshot():
                self._totals.pushed(front, message.snapshot)
            case AskTotal():
                self._totals.ask(front, message, self._fronts.values())

    def _check_fronts(self) -> None:
        for front in list(self._fronts.values()):
            if front.process.poll() is not None:
                if front.control.fileno() in self._selector.get_map():
                    self._read_front(front)
                self._front_ended(front)

    def _front_ended(self, front: Front) -> None:
        code = front.process.returncode
        self._forget(front)
        if self._stopping:
            if not self._fronts:
                self._stop_engine()
            return
        if self._failure is not None:
            return
        logger.error("front %d ended (%s)", front.index, how_it_ended(code))
        now = time.monotonic()
        while self._respawns and self._respawns[0] < now - RESPAWN_WINDOW:
            self._respawns.popleft()
        if len(self._respawns) >= RESPAWN_LIMIT:
            logger.error(
                "fronts ended more than %d times in %g s: giving up", RESPAWN_LIMIT, RESPAWN_WINDOW
            )
            self._stop(1)
            return
        self._respawns.append(now)
        self._start_front(front.index)
        if self._engine_gone:
            self._fronts[front.index].send(EngineGone("the engine process ended"))

    def _forget(self, front: Front) -> None:
        if front.control.fileno() in self._selector.get_map():
            self._selector.unregister(front.control)
        front.control.close()
        del self._fronts[front.index]
        self._totals.retire(front.index)

    def _announce(self) -> None:
        """Say once, when every front has reached the engine, that the server is up."""
        if self._announced or any(front.ready is None for front in self._fronts.values()):
            return
        first = self._fronts[min(self._fronts)].ready
        if first is None:
            return
        self._announced = True
        announce(self._config, first, self._url, self._started)

    # the end

    def _stop(self, exit_code: int) -> None:
        """Begin to stop: no new connections, fronts drain, then the engine."""
        if self._stopping:
            return
        self._stopping = True
        self._exit_code = exit_code
        self._timers.clear()
        self._listener.close()
        drain = 0.0 if self._engine_gone else self._config.front.shutdown_timeout
        self._timers["kill"] = time.monotonic() + drain + FRONT_STOP_GRACE
        for front in self._fronts.values():
            terminate(front.process)
            front.send(Drain())
            self._watch_front(front)
        if not self._fronts:
            self._stop_engine()

    def _stop_engine(self) -> None:
        self._engine_stopping = True
        self._timers["kill"] = time.monotonic() + ENGINE_STOP_GRACE
        terminate(self._engine)

    def _kill_all(self) -> None:
        for front in self._fronts.values():
            terminate(front.process, signal.SIGKILL)
        self._engine_stopping = True
        terminate(self._engine, signal.SIGKILL)

    def _clean_up(self) -> None:
        self._kill_all()
        self._engine.wait()
        for front in self._fronts.values():
            front.process.wait()
        self._selector.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._config.front.uds is not None:
            _remove(self._config.front.uds)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        logger.debug("cannot remove %s", path)
