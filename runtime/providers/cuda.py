"""CUDA through ONNX Runtime: the cuda graph, pools in device memory."""

from collections.abc import Sequence

import onnxruntime as ort

from ortloom.models.manifest import Manifest
from ortloom.runtime.kv_pools import ONNX_ELEMENT_TYPES, PoolSpec
from ortloom.runtime.providers import gpu_probe


class CudaProvider:
    """ONNX Runtime's CUDA execution provider on device 0."""

    name = "cuda"
    graph_variant = "cuda"
    ort_provider = "CUDAExecutionProvider"
    kv_cache_dtypes: tuple[str, ...] = ("float16", "bfloat16")
    max_call_tokens = 8192
    reads_weights_in_place = False

    def available(self, manifest: Manifest | None) -> str | None:
        """Device, driver, an ONNX Runtime with CUDA, and a cuda graph are needed."""
        return gpu_probe.joined(
            gpu_probe.missing_device(),
            gpu_probe.missing_ort_provider(self.ort_provider),
            gpu_probe.missing_graph(manifest, self.graph_variant),
        )

    def session_options(self, manifest: Manifest, model: bytes, threads: int) -> ort.SessionOptions:
        """Plain options: the graph runs on the device."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        return options

    def provider_options(self) -> list[tuple[str, dict[str, str]]]:
        """CUDA; ONNX Runtime adds its CPU provider behind it for shape arithmetic."""
        return [(self.ort_provider, {"device_id": "0"})]

    def allocate_kv(
        self, pools: Sequence[PoolSpec], num_blocks: int, block_size: int
    ) -> list[ort.OrtValue]:
        """Pools [num_blocks + 1, block_size, ...] on the device."""
        values: list[ort.OrtValue] = []
        for pool in pools:
            shape = [num_blocks + 1, block_size, *pool.tail]
            element = ONNX_ELEMENT_TYPES[pool.dtype]
            values.append(ort.OrtValue.ortvalue_from_shape_and_type(shape, element, "cuda", 0))
        return values

    def free_memory(self) -> int:
        """Free bytes of device 0, asked from the driver."""
        return gpu_probe.free_device_memory()

    def detail(self) -> str:
        """The runtime's version."""
        return f"onnxruntime {ort.__version__}, device 0"

    def notices(self) -> list[str]:
        """None."""
        return []
