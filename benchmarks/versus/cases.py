"""What is measured: the cases, and prompts that no engine has seen before."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Unit = Literal["tok/s", "ms", "s", "MiB"]
Prompts = list[list[int]]

FIRST_ID, LAST_ID = 300, 48_000
"""Ordinary tokens of the demo model's vocabulary; the special ones lie below."""


@dataclass(frozen=True)
class Case:
    """`streams` prompts of `prompt` tokens at once, `new` tokens each, greedy, to the last token.

    `repeats` runs make one sample of a round, their median; short cases need several.
    """

    name: str
    what: str
    unit: Unit
    streams: int = 0
    prompt: int = 0
    new: int = 0
    repeats: int = 1

    @property
    def generates(self) -> bool:
        """False for what is not a run of a loaded engine."""
        return self.streams > 0

    @property
    def more_is_better(self) -> bool:
        """Speeds, unlike times and sizes."""
        return self.unit == "tok/s"

    def figure(self, run: dict[str, float]) -> float:
        """The case's figure from a run's first and last token times (s) and its token count."""
        if self.name == "decode1":
            return (run["tokens"] - 1) / (run["last"] - run["first"])
        if self.name.startswith("batch"):
            return run["tokens"] / run["last"]
        if self.name.startswith("prefill"):
            return self.prompt / run["first"]
        return run["first"] * 1000.0


CASES = {
    case.name: case
    for case in (
        Case("decode1", "one stream, 128 new after 128, prefill not counted", "tok/s", 1, 128, 128),
        Case("batch8", "8 streams of 128 + 128, prefill counted", "tok/s", 8, 128, 128),
        Case("batch32", "32 streams of 128 + 128, prefill counted", "tok/s", 32, 128, 128),
        Case("prefill128", "128 prompt tokens to the first token", "tok/s", 1, 128, 1, 3),
        Case("prefill1024", "1024 prompt tokens to the first token", "tok/s", 1, 1024, 1),
        Case("ttft", "first token of a 128-token prompt", "ms", 1, 128, 2, 3),
        Case("startup", "process start to the first token", "s"),
        Case("rss", "peak resident memory of all its processes", "MiB"),
    )
}


class PromptSource:
    """Random prompts of a fixed seed: the same for every engine, and none twice."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def for_case(self, case: Case) -> Iterator[Prompts]:
        """The prompts of each repeat of a case."""
        for _ in range(case.repeats):
            yield [
                [self._draw.randrange(FIRST_ID, LAST_ID) for _ in range(case.prompt)]
                for _ in range(case.streams)
            ]
