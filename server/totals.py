"""The supervisor's side of /metrics: every front's newest numbers, asked for when needed."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from ortloom.server.children import Front
from ortloom.server.control import AskTotal, PushNow, Total
from ortloom.server.metrics_snapshot import Snapshot, SnapshotStore

PUSH_WAIT = 0.5  # seconds for the other fronts to send their newest numbers


@dataclass(slots=True, eq=False)
class _Question:
    front: Front
    call_id: int
    missing: set[int]
    due: float


class Totals:
    """Answers `AskTotal` once every other front has sent its numbers, or after PUSH_WAIT."""

    def __init__(self) -> None:
        self._store = SnapshotStore()
        self._questions: list[_Question] = []

    @property
    def due(self) -> float | None:
        """Monotonic time at which a question must be answered with what there is."""
        return min((question.due for question in self._questions), default=None)

    def pushed(self, front: Front, snapshot: Snapshot) -> None:
        """A front sent its numbers."""
        self._store.update(front.index, snapshot)
        for question in self._questions:
            question.missing.discard(front.index)
        self._answer()

    def ask(self, front: Front, ask: AskTotal, fronts: Iterable[Front]) -> None:
        """A front wants the sum."""
        others = [other for other in fronts if other is not front and other.ready is not None]
        question = _Question(
            front, ask.call_id, {other.index for other in others}, time.monotonic() + PUSH_WAIT
        )
        self._questions.append(question)
        self.pushed(front, ask.snapshot)
        for other in others:
            other.send(PushNow())

    def retire(self, index: int) -> None:
        """A front died; nobody waits for it any more, its counters stay."""
        self._store.retire(index)
        self._questions = [q for q in self._questions if q.front.index != index]
        for question in self._questions:
            question.missing.discard(index)
        self._answer()

    def expire(self) -> None:
        """Answer what has waited long enough."""
        now = time.monotonic()
        for question in self._questions:
            if question.due <= now:
                question.missing.clear()
        self._answer()

    def _answer(self) -> None:
        done = [question for question in self._questions if not question.missing]
        if not done:
            return
        total = self._store.total()
        for question in done:
            self._questions.remove(question)
            question.front.send(Total(question.call_id, total))
