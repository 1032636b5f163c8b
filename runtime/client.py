"""How a process reaches the engine: the `EngineClient` protocol."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, Protocol

from ortloom.runtime.messages import (
    EngineControl,
    EngineOutput,
    EngineReady,
    EngineRequest,
    EngineStats,
)

OutputTaker = Callable[[EngineOutput], bool]
"""Is offered an output on the event loop; True = taken. It must not wait."""


class EngineClient(Protocol):
    """Async access to one engine: ZmqClient (fronts), InProcessClient (LLM, tests)."""

    @property
    def ready(self) -> EngineReady | None:
        """None until the engine has run one decode step."""

    @property
    def dead(self) -> str | None:
        """Why the engine is gone, or None while it lives."""

    @property
    def stats(self) -> EngineStats:
        """The newest numbers of the engine."""

    async def start(self) -> None:
        """Connect; returns at once, `ready` turns non-None later."""

    def generate(
        self, request: EngineRequest, taker: OutputTaker | None = None
    ) -> AsyncIterator[EngineOutput]:
        """Outputs of one request up to its finish.

        Closing or cancelling the iterator aborts the request. Outputs that are ready together may
        come merged into one.

        Args:
            request: what to generate.
            taker: is offered each output that comes while the iterator's reader waits for it; what
                it takes the iterator does not give, so that the reader need not be woken. What it
                raises, the iterator raises.

        Raises:
            InvalidRequest: the engine refuses the request (before the first output).
            QueueFull: an admission limit is reached (before the first output).
            EngineDead: the engine is gone.
            RequestFailed: the request failed inside the engine.
        """

    async def abort(
        self,
        request_ids: Sequence[str],
        finish_reason: Literal["abort", "stop"] = "abort",
    ) -> None:
        """Stop requests; unknown ids are ignored.

        Args:
            request_ids: which.
            finish_reason: stop = the caller found a stop string (counts as finished).
        """

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes; False while any block is in use."""

    async def control(self, call: EngineControl) -> dict[str, str]:
        """Make a control call; what the engine says of itself after it.

        Raises:
            EngineDead: the engine is gone.
            RequestFailed: it could not be done.
        """

    async def fetch_stats(self) -> EngineStats:
        """The engine's numbers of now, asked for.

        Raises:
            EngineDead: the engine is gone.
        """

    def mark_dead(self, reason: str) -> None:
        """The engine is known to be gone: every reader gets EngineDead."""

    async def close(self) -> None:
        """Abort what is left and disconnect."""
