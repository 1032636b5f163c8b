"""One-node ONNX models as bytes, written without the onnx package, which serving does not install.

Field numbers are those of onnx.proto; every message is built as a list of encoded fields.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields

from ortloom.kernels.contract import (
    DOMAIN,
    DOMAIN_VERSION,
    INPUTS,
    POOL_OPS,
    PagedAttentionAttributes,
    outputs_of,
)

_IR_VERSION = 8
_OPSET = 17
ELEMENT_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "float16": 10, "bfloat16": 16,
}  # fmt: skip
"""TensorProto.DataType of the types that our ops know."""

_INT32_INPUTS = (
    "cumulative_sequence_length", "past_seqlens", "block_table", "slot_mapping",
    "attention_metadata",
)  # fmt: skip
_RANKS = {
    "query": 2, "key": 2, "value": 2, "key_cache": 4, "value_cache": 4, "block_table": 2,
    "cos_cache": 2, "sin_cache": 2, "output": 2, "key_cache_out": 4, "value_cache_out": 4,
    "k_scale": 3, "v_scale": 3, "k_scale_out": 3, "v_scale_out": 3,
}  # fmt: skip
_RESERVED = ("k_scale", "v_scale", "attention_metadata")

Signature = Mapping[str, tuple[str, int]]
"""Element type and rank of each tensor, by name."""


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


def _value_info(field: int, name: str, element: str, rank: int) -> bytes:
    # TensorShapeProto.dim = 1 with dim_param = 2
    dims = [_message(1, _string(2, f"{name}_{axis}")) for axis in range(rank)]
    tensor = _message(1, _number(1, ELEMENT_TYPES[element]), _message(2, *dims))
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


def one_node_model(
    op: str,
    attributes: Mapping[str, int | float | str],
    slots: Sequence[str],
    inputs: Signature,
    outputs: Signature,
) -> bytes:
    """A model that is one node of our domain.

    Args:
        op: name of the op.
        attributes: of the node.
        slots: the op's inputs in its contract's order; one that `inputs` lacks is left out.
        inputs: of the model and the node.
        outputs: of the model and the node, in the contract's order.
    """
    given = [name if name in inputs else "" for name in slots]
    while given and not given[-1]:
        given.pop()
    node = [_string(1, name) for name in given] + [_string(2, name) for name in outputs]
    node += [_string(4, op), _string(7, DOMAIN)]
    node += [_attribute(name, value) for name, value in attributes.items()]
    graph = [_message(1, *node), _string(2, "probe")]
    graph += [_value_info(11, name, *inputs[name]) for name in inputs]
    graph += [_value_info(12, name, *outputs[name]) for name in outputs]
    return b"".join(
        (
            _number(1, _IR_VERSION),
            _message(7, *graph),
            _message(8, _string(1, ""), _number(2, _OPSET)),
            _message(8, _string(1, DOMAIN), _number(2, DOMAIN_VERSION)),
        )
    )


def paged_attention_model(
    attributes: PagedAttentionAttributes,
    inputs: Sequence[str] | None = None,
    pools: str = "float32",
) -> bytes:
    """A model that is one node of the attention op of `pools`.

    Args:
        attributes: of the node.
        inputs: their names; default: the required ones.
        pools: element type of the key and value pools, one of `contract.POOL_OPS`.
    """
    optional = ("cos_cache", "sin_cache", "head_sink", "q_norm_weight", "k_norm_weight")
    reserved = ("attention_metadata",) if pools == "int8" else _RESERVED
    given = (
        tuple(inputs)
        if inputs is not None
        else tuple(n for n in INPUTS if n not in optional + reserved)
    )

    def kind(name: str) -> str:
        if name in _INT32_INPUTS:
            return "int32"
        return pools if name.removesuffix("_out") in ("key_cache", "value_cache") else "float32"

    def signature(names: Sequence[str]) -> Signature:
        return {n: (kind(n), _RANKS.get(n, 1)) for n in names}

    op = POOL_OPS[pools]
    return one_node_model(
        op,
        {field.name: getattr(attributes, field.name) for field in fields(attributes)},
        INPUTS,
        signature(given),
        signature(outputs_of(op)),
    )
