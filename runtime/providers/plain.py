"""The fallback: ONNX Runtime alone runs the ops' bodies of standard ops."""

from collections.abc import Sequence

import onnxruntime as ort

from ortloom.models.manifest import Manifest
from ortloom.runtime import machine
from ortloom.runtime.kv_pools import PoolSpec, host_pool
from ortloom.runtime.providers.gpu_probe import missing_graph
from ortloom.runtime.providers.host_options import host_session_options


class PlainProvider:
    """The plain graph on ONNX Runtime's CPU provider, without our op library."""

    name = "plain"
    graph_variant = "plain"
    ort_provider = "CPUExecutionProvider"
    kv_cache_dtypes: tuple[str, ...] = ("float32",)
    max_call_tokens = 512
    reads_weights_in_place = False

    def available(self, manifest: Manifest | None) -> str | None:
        """Needs a plain graph only."""
        return missing_graph(manifest, self.graph_variant)

    def session_options(self, manifest: Manifest, model: bytes, threads: int) -> ort.SessionOptions:
        """Host options, no custom op."""
        return host_session_options(threads)

    def provider_options(self) -> list[tuple[str, dict[str, str]]]:
        """The CPU provider."""
        return [(self.ort_provider, {})]

    def allocate_kv(
        self, pools: Sequence[PoolSpec], num_blocks: int, block_size: int
    ) -> list[ort.OrtValue]:
        """Pools in host memory."""
        return [host_pool(pool, num_blocks, block_size) for pool in pools]

    def free_memory(self) -> int:
        """Host memory left."""
        return machine.memory_left()

    def detail(self) -> str:
        """The runtime's version."""
        return f"onnxruntime {ort.__version__}, standard ops"

    def notices(self) -> list[str]:
        """That this is slow, and the cap."""
        return [
            "provider plain: the op library is not in use, so attention runs as standard ops: "
            f"slower, more memory, and at most {self.max_call_tokens} tokens a graph call"
        ]
