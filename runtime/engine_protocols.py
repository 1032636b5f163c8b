"""What EngineCore needs around it: a runner below, an inbox and an outbox beside."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from ortloom.runtime.messages import ClientMessage, EngineMessage, EngineRequest, ProviderReport
from ortloom.runtime.scheduler_output import ModelRunnerOutput, SchedulerOutput

Delivery = Literal["sent", "full", "gone"]
"""What became of a message; full = the client is connected but does not read."""


class Runner(Protocol):
    """What the loop needs of a ModelRunner."""

    @property
    def num_blocks(self) -> int:
        """Usable KV blocks, the null block not counted."""

    @property
    def block_size(self) -> int:
        """Tokens a block."""

    @property
    def vocab_size(self) -> int:
        """Logits columns."""

    @property
    def max_model_len(self) -> int:
        """Context in tokens."""

    @property
    def kv_cache_bytes(self) -> int:
        """Memory of the pools."""

    @property
    def provider_report(self) -> ProviderReport:
        """Who computes."""

    @property
    def cache_config(self) -> dict[str, str]:
        """Cache settings as text, for vllm:cache_config_info."""

    @property
    def notices(self) -> Sequence[str]:
        """Lines worth showing at start-up."""

    def execute(
        self, plan: SchedulerOutput, meanwhile: Callable[[], None] | None = None
    ) -> ModelRunnerOutput:
        """Compute one step; `meanwhile` is called once in this thread while the graph runs."""

    def remove(self, request_id: str) -> None:
        """Drop what is kept for a request."""

    def warm_up(self) -> None:
        """Run one decode step in block 1, which nobody holds then."""

    def read_ahead(self) -> None:
        """Begin to read what a later request may need; called once, while all is idle."""

    def release(self, part: str, discard: bool) -> None:
        """Give the memory of `weights` or `kv_cache` back; `discard` drops cached files too."""

    def restore(self, part: str) -> None:
        """Have it again."""

    def validate(self, request: EngineRequest) -> None:
        """Refuse what the model side cannot do."""


class Inbox(Protocol):
    """Where messages come from."""

    def drain(self, timeout: float | None) -> Iterable[tuple[bytes, ClientMessage]]:
        """(client, message) pairs that are there, waiting up to `timeout` seconds for the first
        (None = until one comes or the engine is told to stop)."""


class Outbox(Protocol):
    """Where messages go."""

    def send(self, client_id: bytes, message: EngineMessage) -> Delivery:
        """Send without waiting."""


class MessageHandler(Protocol):
    """The engine as its overlap sees it."""

    def apply(self, client_id: bytes, message: ClientMessage) -> None:
        """Take one message."""

    def flush(self, outbox: Outbox) -> None:
        """Send what waits to be sent."""
