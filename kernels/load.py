"""Registering the op library with ONNX Runtime, and the self-test the engine runs at start."""

import ctypes
import math
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ortloom.errors import KernelUnavailable
from ortloom.kernels.contract import (
    DOMAIN,
    HEAD_MAJOR_LAYOUT,
    PAGED_ATTENTION,
    PagedAttentionAttributes,
)
from ortloom.kernels.isa import isa_report
from ortloom.kernels.library import NO_OPS_VARIABLE, library_path
from ortloom.kernels.packed_contract import LINEAR_INPUTS, PACKED_LINEAR, PackedAttributes
from ortloom.kernels.packed_reference import packed_linear
from ortloom.kernels.packing import pack_blocks, pack_codes
from ortloom.kernels.probe_model import one_node_model, paged_attention_model
from ortloom.kernels.reference import paged_attention

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["NO_OPS_VARIABLE", "isa_tier", "library_path", "register", "self_test"]

SELF_TEST_TOLERANCE = 5e-6
"""Of the largest output, as in the numerics suite."""


def isa_tier() -> str:
    """Name of the instruction set tier that our ops use (docs/tiers.md lists them).

    Raises:
        KernelUnavailable: no library, or the environment asks for a tier that cannot be had.
    """
    return isa_report().used


def register(session_options: "onnxruntime.SessionOptions", model: bytes | None = None) -> None:
    """Give the sessions made from these options our ops; call it once for each options object.

    Args:
        session_options: of ONNX Runtime.
        model: the serialised graph, for sessions of this graph only: ops that it does not use
            are left out, which makes its sessions start sooner; default: all ops.

    Raises:
        KernelUnavailable: no library, or it cannot be loaded, or the tier cannot be used.
    """
    path = library_path()
    if model is not None:
        _select_ops(path, model)
    try:
        session_options.register_custom_ops_library(str(path))
    except Exception as error:  # onnxruntime raises its own classes, which share no base
        raise KernelUnavailable(f"{path} cannot be registered: {error}") from error


def _select_ops(path: Path, model: bytes) -> None:
    """Say which ops this thread's next registration is to give; all, where it cannot be said."""
    with suppress(OSError, AttributeError):  # registration says what is wrong with the file
        select = ctypes.CDLL(str(path)).OrtloomSelectOps
        select.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
        select.restype = None
        select(model, len(model))


def _scattered(salt: int, *shape: int) -> npt.NDArray[np.float32]:
    """Values in [-2, 2) without order: Weyl's sequence by the golden ratio.

    numpy.random would do, but loading it is a fiftieth of a server's start.
    """
    count = np.arange(1, math.prod(shape) + 1, dtype=np.uint32)
    turns = (count * np.uint32(2654435769)) ^ np.uint32(salt * 40503)
    return ((turns >> 8).astype(np.float32) * np.float32(2.0**-22) - np.float32(2)).reshape(shape)


def _self_test_inputs() -> dict[str, npt.NDArray[np.generic]]:
    """A prefill of 3 tokens beside one token that has 17 in the cache; blocks out of order."""
    return {
        "query": _scattered(1, 4, 4 * 64),
        "key": _scattered(2, 4, 2 * 64),
        "value": _scattered(3, 4, 2 * 64),
        "key_cache": _scattered(4, 5, 16, 2, 64),
        "value_cache": _scattered(5, 5, 16, 2, 64),
        "cumulative_sequence_length": np.array([0, 3, 4], dtype=np.int32),
        "past_seqlens": np.array([0, 17], dtype=np.int32),
        "block_table": np.array([[3, -1], [4, 1]], dtype=np.int32),
        "slot_mapping": np.array([48, 49, 50, 17], dtype=np.int32),
    }


def self_test() -> None:
    """Run tiny graphs through ONNX Runtime and the library and compare with the oracles.

    Raises:
        KernelUnavailable: the library is missing, cannot be loaded, or computes something else.
    """
    _test_attention()
    _test_packed_linear()


def _session(model: bytes) -> "onnxruntime.InferenceSession":
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    register(options, model)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _compare(
    op: str, name: str, got: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]
) -> None:
    difference = float(np.max(np.abs(got - wanted)))
    if not difference <= SELF_TEST_TOLERANCE * float(np.max(np.abs(wanted))):
        raise KernelUnavailable(
            f"self-test of {DOMAIN}::{op} failed: {name} is off by {difference:g}"
        )


def _test_packed_linear() -> None:
    attributes = PackedAttributes("u4", N=40, K=64, block_size=32)
    codes = ((_scattered(6, 40, 64) + 2.0) * 4.0).astype(np.uint8)
    inputs = {
        "x": _scattered(7, 9, 64),
        "weight": pack_codes(codes, "u4"),
        "scales": pack_blocks((_scattered(8, 40, 2) * 0.25 + 0.5).astype(np.float16)),
    }
    model = one_node_model(
        PACKED_LINEAR,
        asdict(attributes),
        LINEAR_INPUTS,
        {name: (array.dtype.name, array.ndim) for name, array in inputs.items()},
        {"y": ("float32", 2)},
    )
    try:
        (got,) = _session(model).run(None, inputs)
    except KernelUnavailable:
        raise
    except Exception as error:  # onnxruntime raises its own classes, which share no base
        raise KernelUnavailable(
            f"self-test of {DOMAIN}::{PACKED_LINEAR} failed to run: {error}"
        ) from error
    _compare(PACKED_LINEAR, "y", got, packed_linear(attributes, inputs))


def _test_attention() -> None:
    import onnxruntime as ort

    attributes = PagedAttentionAttributes(4, 2, kv_layout=HEAD_MAJOR_LAYOUT)
    inputs = _self_test_inputs()
    expected = paged_attention(attributes, inputs)
    try:
        session = _session(paged_attention_model(attributes))
        binding = session.io_binding()
        pools = {}
        for name, array in inputs.items():
            value = ort.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, value)
            if name.endswith("_cache"):
                binding.bind_ortvalue_output(f"{name}_out", value)
                pools[name] = value
        binding.bind_output("output")
        session.run_with_iobinding(binding)
        output = binding.get_outputs()[-1].numpy()
    except KernelUnavailable:
        raise
    except Exception as error:  # onnxruntime raises its own classes, which share no base
        raise KernelUnavailable(
            f"self-test of {DOMAIN}::{PAGED_ATTENTION} failed to run: {error}"
        ) from error
    for name, got, wanted in (
        ("output", output, expected.output),
        ("key_cache", pools["key_cache"].numpy(), expected.key_cache),
        ("value_cache", pools["value_cache"].numpy(), expected.value_cache),
    ):
        _compare(PAGED_ATTENTION, name, got, wanted)
