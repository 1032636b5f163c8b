"""What a GPU provider needs and this machine lacks, each with the command that mends it."""

import ctypes
import importlib.util
from pathlib import Path

import onnxruntime as ort

from ortloom.models.manifest import Manifest


def missing_device() -> str | None:
    """No NVIDIA device node or driver library."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return "no NVIDIA device (/dev/nvidia0 is absent; in a container start it with --gpus all)"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "the NVIDIA driver library libcuda.so.1 cannot be loaded (install the driver)"
    return None


def missing_ort_provider(name: str) -> str | None:
    """The installed ONNX Runtime was built without `name`."""
    if name in ort.get_available_providers():
        return None
    return (
        f"onnxruntime {ort.__version__} has no {name} "
        "(pip uninstall onnxruntime && pip install 'ortloom[gpu]')"
    )


def missing_module(name: str, extra: str) -> str | None:
    """A Python package is not installed."""
    if importlib.util.find_spec(name) is not None:
        return None
    return f"the package {name} is not installed (pip install 'ortloom[{extra}]')"


def missing_graph(manifest: Manifest | None, variant: str) -> str | None:
    """The bundle was exported without this target."""
    if manifest is None or any(graph.variant == variant for graph in manifest.graphs):
        return None
    have = ",".join(manifest.targets)
    return (
        f"the bundle has no graph for target {variant} "
        f"(export it again with --targets {have},{variant})"
    )


def joined(*reasons: str | None) -> str | None:
    """All reasons in one line, or None if there is none."""
    found = [reason for reason in reasons if reason is not None]
    return "; ".join(found) if found else None


def free_device_memory() -> int:
    """Free bytes of the first NVIDIA device through the driver's own library; 0 if unknown."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return 0
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return 0
    try:
        driver.cuCtxPushCurrent_v2(context)
        if driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)):
            return 0
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    return free.value
