"""What every in-process worker speaks; plain Python, as it also runs in the peers' own venvs.

A worker prints one JSON line when its model is loaded and has produced a token. Then it reads
lines and answers each with one JSON line:

    run COUNT LENGTH NEW ID ID ...   COUNT prompts of LENGTH ids each, submitted at once, greedy,
                                     the end token ignored, NEW tokens each
        -> {"first": s, "last": s, "tokens": n}
    score PATH ID ID ...             one prompt; logits or log-probabilities of each position
        -> {"path": PATH, "kind": "logits" | "raw" | "top"}
    quit

`first` and `last` are seconds from submission to the first token and to the last of all; `tokens`
counts what the engine handed out. `score` writes logits [T, V] (fp32) as .npy or, raw, without a
header, or it writes an .npz with `ids` and `logprobs` [T, TOP] of the likeliest tokens.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

TOP = 512
"""Tokens a position in the .npz form: agreement is computed over so many and one bucket more."""

WARM_UP_LENGTH = 16
WARM_UP_NEW = 2


class Engine(Protocol):
    """What a worker module brings."""

    version: str

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> dict[str, float]:
        """Times and count of one submission."""

    def score(self, ids: Sequence[int], path: str) -> str:
        """Writes PATH and names its kind."""


class Times:
    """Seconds since submission of the first and last token, and the count."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._first = self._last = 0.0
        self._tokens = 0

    def add(self, tokens: int) -> None:
        """Tokens that came just now."""
        self._last = time.perf_counter() - self._begin
        self._first = self._first or self._last
        self._tokens += tokens

    def result(self) -> dict[str, float]:
        """The answer of `run`."""
        return {"first": self._first, "last": self._last, "tokens": self._tokens}


def claim_stdout() -> Any:
    """The answers' stream; whatever a library prints goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def serve(engine: Engine, answers: Any) -> None:
    """Warm up, say so, and answer until `quit` or the end of the input."""
    engine.run([list(range(300, 300 + WARM_UP_LENGTH))], WARM_UP_NEW)
    answers.write(json.dumps({"ready": True, "version": engine.version}) + "\n")
    for line in sys.stdin:
        words = line.split()
        if words[0] == "quit":
            return
        if words[0] == "run":
            count, length, new = (int(word) for word in words[1:4])
            ids = [int(word) for word in words[4:]]
            prompts = [ids[i * length : (i + 1) * length] for i in range(count)]
            reply: dict[str, Any] = dict(engine.run(prompts, new))
        else:
            path = words[1]
            kind = engine.score([int(word) for word in words[2:]], path)
            reply = {"path": path, "kind": kind}
        answers.write(json.dumps(reply) + "\n")
