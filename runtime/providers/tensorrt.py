"""Ahead-of-time TensorRT engines stored in the bundle."""

from ortloom.models.manifest import Manifest
from ortloom.runtime.providers import gpu_probe
from ortloom.runtime.providers.cuda import CudaProvider


class TensorrtProvider(CudaProvider):
    """A TensorRT plan built for exactly this device.

    Plans are not ONNX graphs, so this provider also needs an engine runner of its own; until the
    package has one `available` says so beside whatever else is missing.
    """

    name = "tensorrt"
    graph_variant = "tensorrt"
    ort_provider = "TensorrtExecutionProvider"

    def available(self, manifest: Manifest | None) -> str | None:
        """Device, driver, the tensorrt package, a plan in the bundle, and a runner for it."""
        no_engine = None
        if manifest is not None and not any(e.provider == self.name for e in manifest.engines):
            no_engine = "the bundle holds no TensorRT engine"
        return gpu_probe.joined(
            gpu_probe.missing_device(),
            gpu_probe.missing_module("tensorrt", "tensorrt"),
            no_engine,
            "this version of ortloom has no runner for TensorRT engines (use tensorrt_ep or cuda)",
        )
