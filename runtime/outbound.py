"""What the engine's clients are to be sent, and which clients there are."""

from collections.abc import Callable

from ortloom.runtime.engine_protocols import Delivery, Outbox
from ortloom.runtime.messages import EngineMessage, EngineOutput, EngineOutputs
from ortloom.runtime.scheduler import Scheduler
from ortloom.runtime.stats_log import StatsLog
from ortloom.runtime.wide_outputs import in_messages

STATS_INTERVAL = 1.0
"""Seconds between numbers for clients that get no outputs, and between looks for lost clients."""

STOPPED_READING = "The client stopped reading, so its requests were ended."


class Outbound:
    """Keeps answers until `flush`, and adds the requests' outputs to them.

    Args:
        scheduler: whose outputs and numbers are sent.
        clock: monotonic seconds.
        stats_log: told the numbers whenever they are sent round.

    Attributes:
        announce: numbers changed outside a step: the next flush sends them round.
    """

    def __init__(
        self, scheduler: Scheduler, clock: Callable[[], float], stats_log: StatsLog | None
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._stats_log = stats_log
        self._clients: dict[bytes, bool] = {}  # every client heard of -> wants stats
        self._messages: list[tuple[bytes, EngineMessage]] = []
        self._undelivered: dict[bytes, list[str]] = {}
        self._last_broadcast = 0.0
        self.announce = False

    @property
    def waiting(self) -> bool:
        """There is something to send."""
        return bool(self._messages) or self.announce

    @property
    def owes(self) -> bool:
        """A client that stopped reading has to be told of ended requests."""
        return bool(self._undelivered)

    def hear(self, client_id: bytes, *, wants_stats: bool = False) -> None:
        """A client sent something; with `wants_stats` it gets numbers from now on."""
        self._clients[client_id] = wants_stats or self._clients.get(client_id, False)

    def forget(self, client_id: bytes) -> None:
        """A client is gone: nothing is sent to it until it is heard again."""
        self._clients.pop(client_id, None)

    def tell_later(self, client_id: bytes, request_ids: list[str]) -> None:
        """Requests of a client that does not read have ended."""
        self._undelivered.setdefault(client_id, []).extend(request_ids)

    def post(self, client_id: bytes, message: EngineMessage) -> None:
        """Keep a message for the next flush."""
        self._messages.append((client_id, message))

    def post_end(self, client_id: bytes, output: EngineOutput, *, numbers: bool = False) -> None:
        """Keep the end of a request that was never the scheduler's.

        Args:
            client_id: whose.
            output: with its finish reason.
            numbers: send the engine's numbers with it.
        """
        stats = self._scheduler.stats() if numbers else None
        self.post(client_id, EngineOutputs([output], stats, self._clock()))

    def flush(self, outbox: Outbox) -> dict[bytes, Delivery]:
        """Send all there is; the clients that could not be sent theirs, and why."""
        now = self._clock()
        messages, self._messages = self._messages, []
        outputs = self._scheduler.take_outputs()
        stats = self._scheduler.stats() if outputs else None
        for client, items in outputs.items():
            if client in self._clients:
                for part in in_messages(items):
                    messages.append((client, EngineOutputs(part, stats, now)))
        due = self.announce or now - self._last_broadcast >= STATS_INTERVAL
        if due or (messages and not self._scheduler.has_work):
            messages += self._broadcast(now)
        lost: dict[bytes, Delivery] = {}
        for client, message in messages:
            if client not in lost and (result := outbox.send(client, message)) != "sent":
                lost[client] = result
        if due and self._undelivered:
            self._retry_undelivered(outbox, now)
        return lost

    def _broadcast(self, now: float) -> list[tuple[bytes, EngineMessage]]:
        """Numbers for every client; also finds clients that died while their requests wait."""
        self._last_broadcast = now
        self.announce = False
        stats = self._scheduler.stats()
        if self._stats_log is not None:
            self._stats_log.note(stats, now)
        update = EngineOutputs([], stats, now)
        owners = {r.client_id for r in self._scheduler.requests.values()}
        wanting = {client for client, wants in self._clients.items() if wants}
        return [(client, update) for client in owners | wanting]

    def _retry_undelivered(self, outbox: Outbox, now: float) -> None:
        """A client that did not read and reads again must hear that its requests ended."""
        for client, request_ids in list(self._undelivered.items()):
            ends = [
                EngineOutput(i, finish_reason="error", error=STOPPED_READING, error_kind="internal")
                for i in request_ids
            ]
            if outbox.send(client, EngineOutputs(ends, None, now)) != "full":
                del self._undelivered[client]
