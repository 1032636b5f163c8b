"""How closely an engine's predictions on a fixed text follow those of the model in fp32."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.versus.workers.protocol import TOP

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

TEXT = Path(__file__).with_name("prose.txt")
MAX_TOKENS = 512


@dataclass(frozen=True)
class Agreement:
    """Over `positions` of the text.

    `top1` is the share of positions whose likeliest token is that of fp32. `kl` is the mean
    Kullback-Leibler divergence KL(fp32 || engine) in nats over the engine's TOP likeliest tokens
    and one bucket for all others; merging tokens into a bucket can only lower it, here by very
    little, and all engines are treated alike.
    """

    top1: float
    kl: float
    positions: int


def text_ids(checkpoint: Path) -> list[int]:
    """The fixed text in the model's tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(TEXT.read_text(), add_special_tokens=False).ids
    return ids[:MAX_TOKENS]


def log_softmax(logits: Floats) -> Floats:
    """Along the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def read_logits(path: Path, kind: str, positions: int) -> Floats:
    """Logits [T, V] that a worker wrote as `logits` (.npy) or `raw`."""
    if kind == "raw":
        return np.fromfile(path, np.float32).reshape(positions, -1)
    loaded: Floats = np.load(path)
    return loaded


def read_top(path: Path, kind: str, positions: int) -> tuple[Ids, Floats]:
    """Ids and log-probabilities [T, TOP], likeliest first, of whatever form a worker wrote."""
    if kind == "top":
        with np.load(path) as found:
            return found["ids"].astype(np.int64), found["logprobs"]
    logprobs = log_softmax(read_logits(path, kind, positions))
    ids = np.argpartition(-logprobs, TOP, axis=-1)[:, :TOP]
    chosen = np.take_along_axis(logprobs, ids, -1)
    order = np.argsort(-chosen, axis=-1, kind="stable")
    return np.take_along_axis(ids, order, -1), np.take_along_axis(chosen, order, -1)


def compare(reference: Floats, ids: Ids, logprobs: Floats) -> Agreement:
    """Agreement of an engine's top tokens with the reference's logits [T, V]."""
    count = len(ids)
    exact = log_softmax(reference[:count].astype(np.float64))
    theirs = logprobs.astype(np.float64)
    ours = np.take_along_axis(exact, ids, -1)
    p, q = np.exp(ours), np.exp(theirs)
    rest_p = np.clip(1.0 - p.sum(-1), 1e-12, 1.0)
    rest_q = np.clip(1.0 - q.sum(-1), 1e-12, 1.0)
    divergence = (p * (ours - theirs)).sum(-1) + rest_p * np.log(rest_p / rest_q)
    top1 = float((exact.argmax(-1) == ids[:, 0]).mean())
    return Agreement(top1, float(divergence.mean()), count)


class Judge:
    """The reference's logits of the text, made once and kept as long as text and model stay."""

    def __init__(self, ids: list[int], cache: Path) -> None:
        self.ids = ids
        self._cache = cache
        self._logits: Floats | None = None

    @property
    def path(self) -> Path:
        """Where the reference's logits lie."""
        return self._cache / "reference.npy"

    def ready(self) -> bool:
        """Whether the reference is there, for this text."""
        stamp = self._cache / "reference.ids"
        return self.path.exists() and stamp.exists() and stamp.read_text() == str(self.ids)

    def keep(self) -> None:
        """Notes that the reference at `path` is of this text."""
        (self._cache / "reference.ids").write_text(str(self.ids))

    def judge(self, scorer: Any) -> Agreement:
        """Scores the text with a worker or server and compares."""
        if self._logits is None:
            self._logits = np.load(self.path)
        file = self._cache / "scores"
        try:
            kind = scorer.score(self.ids, file)
            ids, logprobs = read_top(file, kind, len(self.ids))
        finally:
            file.unlink(missing_ok=True)
        return compare(self._logits, ids, logprobs)
