"""A one-node ONNX model as bytes, written without the onnx package, which serving does not install.

Field numbers are those of onnx.proto; every message is built as a list of encoded fields.
"""

import struct
from collections.abc import Sequence
from dataclasses import fields

from ortloom.kernels.contract import (
    DOMAIN,
    DOMAIN_VERSION,
    INPUTS,
    OUTPUTS,
    PAGED_ATTENTION,
    PagedAttentionAttributes,
)

_IR_VERSION = 8
_OPSET = 17
_FLOAT, _INT32 = 1, 6
_INT32_INPUTS = (
    "cumulative_sequence_length", "past_seqlens", "block_table", "slot_mapping",
    "attention_metadata",
)  # fmt: skip
_RANKS = {
    "query": 2, "key": 2, "value": 2, "key_cache": 4, "value_cache": 4, "block_table": 2,
    "cos_cache": 2, "sin_cache": 2, "output": 2, "key_cache_out": 4, "value_cache_out": 4,
}  # fmt: skip
_RESERVED = ("k_scale", "v_scale", "attention_metadata")


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers take ten bytes
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _string(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _value_info(field: int, name: str) -> bytes:
    element = _INT32 if name in _INT32_INPUTS else _FLOAT
    # TensorShapeProto.dim = 1 with dim_param = 2
    dims = [_message(1, _string(2, f"{name}_{axis}")) for axis in range(_RANKS.get(name, 1))]
    tensor = _message(1, _number(1, element), _message(2, *dims))
    return _message(field, _string(1, name), _message(2, tensor))


def _attribute(name: str, value: int | float | str) -> bytes:
    # NodeProto.attribute = 5; AttributeProto: name 1, f 2, i 3, s 4, type 20
    if isinstance(value, float):
        content = _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)
    elif isinstance(value, int):
        content = _number(3, value) + _number(20, 2)
    else:
        content = _string(4, value) + _number(20, 3)
    return _message(5, _string(1, name), content)


def paged_attention_model(
    attributes: PagedAttentionAttributes, inputs: Sequence[str] | None = None
) -> bytes:
    """A model that is one PagedAttention node over `inputs` (default: the required ones)."""
    optional = ("cos_cache", "sin_cache", "head_sink", "q_norm_weight", "k_norm_weight")
    given = (
        tuple(inputs)
        if inputs is not None
        else tuple(n for n in INPUTS if n not in optional + _RESERVED)
    )
    slots = [name if name in given else "" for name in INPUTS]
    while slots and not slots[-1]:
        slots.pop()
    node = [_string(1, name) for name in slots] + [_string(2, name) for name in OUTPUTS]
    node += [_string(4, PAGED_ATTENTION), _string(7, DOMAIN)]
    node += [
        _attribute(field.name, getattr(attributes, field.name)) for field in fields(attributes)
    ]
    graph = [_message(1, *node), _string(2, "probe")]
    graph += [_value_info(11, name) for name in given]
    graph += [_value_info(12, name) for name in OUTPUTS]
    return b"".join(
        (
            _number(1, _IR_VERSION),
            _message(7, *graph),
            _message(8, _string(1, ""), _number(2, _OPSET)),
            _message(8, _string(1, DOMAIN), _number(2, DOMAIN_VERSION)),
        )
    )
