"""What a server without an engine has in place of one: facts of the model, and no generation."""

from ortloom.config import Config
from ortloom.models.manifest import Manifest
from ortloom.runtime.messages import (
    ClientMessage,
    EngineControl,
    EngineOutput,
    EngineOutputs,
    EngineReady,
    EngineReply,
    EngineRequest,
    EngineStats,
    ProviderReport,
)
from ortloom.runtime.streaming_client import StreamingClient

NO_ENGINE = "This server has no engine."


class EnginelessClient(StreamingClient):
    """Ready at once; refuses to generate.

    Args:
        config: the tree.
        manifest: the bundle's.
    """

    def __init__(self, config: Config, manifest: Manifest) -> None:
        super().__init__()
        limit = manifest.architecture.max_position_embeddings
        asked = config.model.max_model_len
        self._facts = EngineReady(
            max_model_len=limit if asked is None or asked < 1 else asked,
            vocab_size=manifest.architecture.vocab_size,
            block_size=config.cache.block_size,
            num_blocks=0,
            kv_cache_bytes=0,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=0,
            enable_prefix_caching=False,
            provider=ProviderReport("none", "none", detail="requests are only rendered"),
        )

    async def start(self) -> None:
        """Be ready."""
        self._receive(self._facts)

    async def close(self) -> None:
        """Refuse everything from now on."""
        self.mark_dead("the server is shutting down")

    def _post(self, message: ClientMessage) -> None:
        match message:
            case EngineControl():
                self._receive(EngineReply(message.call_id, False, stats=EngineStats()))
            case EngineRequest():
                refusal = EngineOutput(
                    message.request_id,
                    finish_reason="error",
                    error=NO_ENGINE,
                    error_kind="invalid",
                )
                self._receive(EngineOutputs([refusal]))
