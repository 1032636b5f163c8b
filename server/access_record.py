"""What is known about one HTTP exchange until its access line is written."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class AccessRecord:
    """Filled in by the connection and, for token counts, by `RequestMetrics`."""

    start: float  # monotonic seconds
    bytes_before: int  # bytes the connection had sent before
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_token: float = 0.0  # monotonic seconds, 0.0 = none yet
    finish_reason: str = ""


current_record: ContextVar[AccessRecord | None] = ContextVar("access_record", default=None)
"""The record of the request that the running task serves."""
