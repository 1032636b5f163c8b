"""TensorRT through ONNX Runtime's TensorRT execution provider."""

from ortloom.models.manifest import Manifest
from ortloom.runtime.providers import gpu_probe
from ortloom.runtime.providers.cuda import CudaProvider


class TensorrtEpProvider(CudaProvider):
    """The tensorrt graph on ONNX Runtime's TensorRT provider; nodes it leaves go to CUDA."""

    name = "tensorrt_ep"
    graph_variant = "tensorrt"
    ort_provider = "TensorrtExecutionProvider"

    def available(self, manifest: Manifest | None) -> str | None:
        """Device, driver, ONNX Runtime with TensorRT, its libraries, and a tensorrt graph."""
        return gpu_probe.joined(
            gpu_probe.missing_device(),
            gpu_probe.missing_ort_provider(self.ort_provider),
            gpu_probe.missing_module("tensorrt", "tensorrt-ep"),
            gpu_probe.missing_graph(manifest, self.graph_variant),
        )

    def provider_options(self) -> list[tuple[str, dict[str, str]]]:
        """TensorRT first, CUDA for the rest."""
        return [
            (self.ort_provider, {"device_id": "0"}),
            ("CUDAExecutionProvider", {"device_id": "0"}),
        ]
