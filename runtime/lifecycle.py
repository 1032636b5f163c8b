"""Pausing, sleeping and waking of an engine.

What is asked for is done between steps: memory must not go away under one, and a step must not
change what is being counted. While the engine is held, requests are taken and wait.

- pause: `abort` ends all requests, `wait` lets those that are there finish, `keep` leaves them as
  they are; then no step is run until `resume`. One that still waits is over with it, and a sleep
  that still waits with `wake_up`.
- sleep: level 0 pauses; level 1 also gives the weights and the KV cache back, the file of the
  weights stays in the system's page cache; level 2 drops it from there too.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from ortloom.runtime.messages import EngineControl, EngineReply, EngineRequest
from ortloom.runtime.scheduler import Scheduler

log = logging.getLogger("ortloom.engine")

WEIGHTS, KV_CACHE = "weights", "kv_cache"
PARTS = (WEIGHTS, KV_CACHE)
MODES = ("abort", "wait", "keep")

METHODS = frozenset({"pause", "resume", "sleep", "wake_up", "release_kv_cache", "state"})
"""The control calls that are answered here."""

_ENDED_BY = {
    "resume": frozenset({"pause"}),
    "wake_up": frozenset({"sleep", "release_kv_cache"}),
}
"""Which calls end the state that others bring about."""


class Memory(Protocol):
    """A runner that can give its memory back."""

    def release(self, part: str, discard: bool) -> None:
        """Let go of `weights` or `kv_cache`; `discard` also drops what the system caches."""

    def restore(self, part: str) -> None:
        """Have it again; the KV cache comes back empty."""


class Lifecycle:
    """The state, and the calls that change it.

    Args:
        scheduler: whose steps are held.
        memory: the runner.
        abort: ends requests, also those that are not admitted yet.
        reply: sends an answer to a client.
        live: ids of all requests the engine knows.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        memory: Memory,
        abort: Callable[[list[str]], None],
        reply: Callable[[bytes, EngineReply], None],
        live: Callable[[], set[str]],
    ) -> None:
        self._scheduler = scheduler
        self._memory = memory
        self._abort = abort
        self._reply = reply
        self._live = live
        self._asked: list[tuple[bytes, EngineControl]] = []
        self._draining: list[tuple[bytes, EngineControl, set[str]]] = []
        self._held: list[tuple[bytes, EngineRequest]] = []
        self._paused = False
        self._level: int | None = None
        self._asleep: set[str] = set()

    @property
    def frozen(self) -> bool:
        """No step may be run."""
        return self._paused or self._level is not None

    @property
    def busy(self) -> bool:
        """There is something for `settle` to do."""
        return bool(self._asked) or bool(self._drained())

    def _drained(self) -> list[tuple[bytes, EngineControl, set[str]]]:
        live = self._live() if self._draining else set()
        return [entry for entry in self._draining if not entry[2] & live]

    def ask(self, client_id: bytes, call: EngineControl) -> None:
        """Take a call; it is answered by `settle`."""
        self._asked.append((client_id, call))

    def hold(self, client_id: bytes, request: EngineRequest) -> bool:
        """Keep a request back while others finish; False = take it now."""
        if self._draining:
            self._held.append((client_id, request))
        return bool(self._draining)

    def take_held(self) -> list[tuple[bytes, EngineRequest]]:
        """Requests that need not be kept back any more."""
        if self._draining:
            return []
        held, self._held = self._held, []
        return held

    def drop_held(self, request_ids: Iterable[str]) -> list[tuple[bytes, EngineRequest]]:
        """Take requests out of those kept back."""
        wanted = set(request_ids)
        dropped = [entry for entry in self._held if entry[1].request_id in wanted]
        self._held = [entry for entry in self._held if entry[1].request_id not in wanted]
        return dropped

    def held_ids(self) -> list[str]:
        """Ids of the requests kept back."""
        return [request.request_id for _, request in self._held]

    def lose_client(self, client_id: bytes) -> None:
        """Nobody waits for the answers any more; a drain that has begun still ends in a pause."""
        self._held = [entry for entry in self._held if entry[0] != client_id]

    def settle(self) -> None:
        """Do what was asked for, and end drains that are done. Call between steps."""
        asked, self._asked = self._asked, []
        for client_id, call in asked:
            self._begin(client_id, call)
        for entry in self._drained():
            self._draining.remove(entry)
            self._act(entry[0], entry[1])

    def _begin(self, client_id: bytes, call: EngineControl) -> None:
        if call.method in ("pause", "sleep", "release_kv_cache"):
            if call.mode == "abort":
                self._abort(list(self._live()))
            elif call.mode == "wait" and not self.frozen:
                self._draining.append((client_id, call, self._live()))
                return
        self._act(client_id, call)

    def _act(self, client_id: bytes, call: EngineControl) -> None:
        if call.method in _ENDED_BY:
            self._overtake(_ENDED_BY[call.method])
        reply = EngineReply(call.call_id)
        try:
            self._do(call)
        except Exception as error:
            log.exception("%s failed", call.method)
            reply.success = False
            reply.error = f"{call.method} failed: {error}"
        reply.info = self._state()
        self._reply(client_id, reply)

    def _overtake(self, methods: frozenset[str]) -> None:
        """Answer calls that still wait for requests to finish: what they would begin is over."""
        overtaken = [entry for entry in self._draining if entry[1].method in methods]
        self._draining = [entry for entry in self._draining if entry[1].method not in methods]
        for client_id, call, _ in overtaken:
            self._reply(client_id, EngineReply(call.call_id, info=self._state()))

    def _do(self, call: EngineControl) -> None:
        match call.method:
            case "pause":
                self._paused = True
                if call.clear_cache:
                    self._scheduler.reset_prefix_cache(True)
            case "resume":
                self._paused = False
            case "sleep":
                self._sleep(call.level)
            case "release_kv_cache":
                self._level = max(1, self._level or 0)
                self._scheduler.reset_prefix_cache(True)
                self._release(KV_CACHE, discard=False)
            case "wake_up":
                self._wake_up(call.tags or [*PARTS])
        self._scheduler.counters.sleep_level = self._level or 0

    def _sleep(self, level: int) -> None:
        self._level = max(level, self._level or 0)
        if level < 1:
            return
        # What is cached is lost; requests that were kept compute theirs again.
        self._scheduler.reset_prefix_cache(True)
        self._release(KV_CACHE, discard=False)
        self._release(WEIGHTS, discard=level > 1)
        log.info("asleep at level %d", level)

    def _release(self, part: str, *, discard: bool) -> None:
        if part not in self._asleep:
            self._memory.release(part, discard)
            self._asleep.add(part)

    def _wake_up(self, parts: list[str]) -> None:
        for part in PARTS:
            if part in parts and part in self._asleep:
                self._memory.restore(part)
                self._asleep.discard(part)
        if not self._asleep:
            self._level = None

    def _state(self) -> dict[str, str]:
        paused = self._paused or any(call.method == "pause" for _, call, _ in self._draining)
        return {
            "paused": str(int(paused)),
            "sleeping": str(int(self._level is not None)),
        }
