"""The `usage` member in its three shapes: whole replies, last stream chunks, running ones."""

from typing import Any

from ortloom.server.openai.generation import GenerationJob
from ortloom.server.openai.sample import Piece, Sample
from ortloom.server.openai.thinking import ReasoningCounter


class UsageCounter:
    """Counts tokens of one API request.

    The prompt counts once for its n samples; cached tokens are those of its first sample.

    Args:
        job: the request.
        details: report cached tokens (`--enable-prompt-tokens-details`).
        reasoning: counts reasoning tokens; None = nothing is reasoning.
    """

    def __init__(
        self, job: GenerationJob, details: bool, reasoning: ReasoningCounter | None = None
    ) -> None:
        self._reasoning = reasoning
        self._n = job.n
        self._details = details
        self._prompt_tokens = sum(len(p.token_ids) for p in job.prompts)
        self._completion_tokens = 0
        self._cached = [0] * len(job.prompts)

    def add(self, piece: Piece) -> None:
        """Count a piece."""
        self._completion_tokens += len(piece.token_ids)
        if self._reasoning is not None:
            self._reasoning.add(piece.index, piece.token_ids, piece.text)
        if piece.output.num_cached_tokens:
            self._cache(piece.index, piece.output.num_cached_tokens)

    def add_sample(self, sample: Sample) -> None:
        """Count a whole sample.

        Where text alone tells the end of its reasoning, `add` for each piece counts that exactly.
        """
        self._completion_tokens += len(sample.token_ids)
        if self._reasoning is not None:
            self._reasoning.add(sample.index, sample.token_ids, "".join(sample.text))
        self._cache(sample.index, sample.num_cached_tokens)

    def _cache(self, index: int, cached: int) -> None:
        if index % self._n == 0:
            number = index // self._n
            self._cached[number] = max(self._cached[number], cached)

    def running(self) -> dict[str, int]:
        """`prompt_tokens`, `total_tokens` and `completion_tokens` so far."""
        return {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
            "completion_tokens": self._completion_tokens,
        }

    def running_chat(self) -> dict[str, Any]:
        """Running usage of a chat stream."""
        return {**self.running(), "completion_tokens_details": self._completion_details()}

    def _completion_details(self) -> dict[str, int] | None:
        return None if self._reasoning is None else {"reasoning_tokens": self._reasoning.total}

    def last_chunk(self) -> dict[str, Any]:
        """Usage of a stream's last chunk: without null members."""
        usage: dict[str, Any] = self.running()
        if self._details:
            usage["prompt_tokens_details"] = {"cached_tokens": sum(self._cached)}
        if self._reasoning is not None:
            usage["completion_tokens_details"] = self._completion_details()
        return usage

    def whole(self) -> dict[str, Any]:
        """Usage of a whole reply: every member, null where there is nothing."""
        details = {
            "cached_tokens": sum(self._cached),
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        }
        return {
            **self.running(),
            "prompt_tokens_details": details if self._details else None,
            "completion_tokens_details": self._completion_details(),
        }
