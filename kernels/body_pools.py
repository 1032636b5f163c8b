"""How the op's body writes keys and values into the pools and gathers a request's blocks.

In the head-major layout the elements of a block lie in another order than the pool's declared shape
says. Writes compute for each element the place in the declared shape that has its address, so that
ScatterND works on the pool itself, in place; reads put the gathered blocks in order, never a pool.
"""

from dataclasses import dataclass

from onnx import TensorProto

from ortloom.kernels.body_builder import BodyBuilder
from ortloom.kernels.contract import HEAD_MAJOR_LAYOUT, KEY_LANES
from ortloom.kernels.pool_values import MOST, SMALLEST

_ELEMENTS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


@dataclass(frozen=True)
class PoolForm:
    """Element type of the key and value pools, and the node's kv_layout."""

    dtype: str
    layout: str

    @property
    def head_major(self) -> bool:
        """Whether blocks lie head by head."""
        return self.layout == HEAD_MAJOR_LAYOUT

    @property
    def quantised(self) -> bool:
        """Whether there are scale pools."""
        return self.dtype == "int8"


@dataclass(frozen=True)
class StepSlots:
    """Where a step's tokens go: `block` and `place` in it, [T] i64; the sizes are 1-D of length 1:
    tokens T, kv_heads KH, head size D, block_size."""

    block: str
    place: str
    tokens: str
    kv_heads: str
    size: str
    block_size: str


def step_slots(
    b: BodyBuilder, slots: str, tokens: str, kv_heads: str, size: str, block_size: str
) -> StepSlots:
    """Block and place of each slot [T] i64; -1 becomes place 0 of the null block."""
    slot = b.op("Max", slots, b.ints(0))
    block = b.op("Div", slot, block_size)
    place = b.op("Sub", slot, b.op("Mul", block, block_size))
    return StepSlots(block, place, tokens, kv_heads, size, block_size)


def _canonical_places(b: BodyBuilder, at: StepSlots) -> str:
    return b.concat(b.unsqueeze(at.block, 1), b.unsqueeze(at.place, 1), axis=1)


def _indices(b: BodyBuilder, at: StepSlots, rank: int, *coordinates: str) -> str:
    """Indices [..., 1 + coordinates] of elements [T, ...]: the block goes before the coordinates,
    which have `rank` axes."""
    shape = b.op("Shape", coordinates[0])
    block = b.op("Expand", b.unsqueeze(at.block, *range(1, rank)), shape)
    return b.concat(*(b.unsqueeze(part, rank) for part in (block, *coordinates)), axis=rank)


def _head_rows(b: BodyBuilder, at: StepSlots) -> str:
    """Indices [T, KH, 3] of head rows in value pools and of single scales in scale pools.

    The row of token `place` of a head has number head * block_size + place in the block; in the
    declared shape [block_size, KH, ...] row n is (n / KH, n % KH).
    """
    first = b.op("Mul", b.count_to(at.kv_heads), at.block_size)
    row = b.op("Add", b.unsqueeze(at.place, 1), b.unsqueeze(first, 0))
    head = b.op("Mod", row, at.kv_heads)
    return _indices(b, at, 2, b.op("Div", row, at.kv_heads), head)


def _key_elements(b: BodyBuilder, at: StepSlots) -> str:
    """Indices [T, KH, D, 4] of a head-major key pool's elements in the declared shape."""
    lanes = b.ints(KEY_LANES)
    tile = b.op("Div", at.place, lanes)
    lane = b.op("Sub", at.place, b.op("Mul", tile, lanes))
    stride = b.op("Mul", at.size, lanes)  # elements of a tile
    first = b.op("Mul", b.count_to(at.kv_heads), b.op("Div", at.block_size, lanes))
    start = b.op("Mul", b.op("Add", b.unsqueeze(tile, 1), b.unsqueeze(first, 0)), stride)
    start = b.unsqueeze(b.op("Add", start, b.unsqueeze(lane, 1)), 2)
    offset = b.op("Add", start, b.op("Mul", b.count_to(at.size), lanes))
    row = b.op("Div", offset, at.size)
    channel, head = b.op("Mod", offset, at.size), b.op("Mod", row, at.kv_heads)
    return _indices(b, at, 3, b.op("Div", row, at.kv_heads), head, channel)


def _quantised(b: BodyBuilder, x: str) -> tuple[str, str]:
    """Codes [T, KH, D] and scales [T, KH] of heads x."""
    most, zero = b.number(float(MOST)), b.number(0.0)
    largest = b.op("ReduceMax", b.op("Abs", x), b.ints(-1), keepdims=1)
    some = b.op("GreaterOrEqual", largest, b.number(SMALLEST))
    inverse = b.op("Where", some, b.op("Div", most, largest), zero)
    steps = b.op("Round", b.op("Mul", x, inverse))
    codes = b.op("Clip", steps, b.number(-float(MOST)), most)
    scale = b.op("Squeeze", b.op("Div", largest, most), b.ints(-1))
    return b.op("Cast", codes, to=TensorProto.INT8), scale


def store(b: BodyBuilder, form: PoolForm, at: StepSlots, key: str, value: str) -> None:
    """Write a step's key and value [T, KH, D] f32; the pools afterwards are the body's outputs."""
    if form.head_major:
        key_places, value_places = _key_elements(b, at), _head_rows(b, at)
    else:
        key_places = value_places = _canonical_places(b, at)
    if form.quantised:
        key, key_scale = _quantised(b, key)
        value, value_scale = _quantised(b, value)
        b.op("ScatterND", "k_scale", value_places, key_scale, out="k_scale_out")
        b.op("ScatterND", "v_scale", value_places, value_scale, out="v_scale_out")
    elif form.dtype in _ELEMENTS:
        key = b.op("Cast", key, to=_ELEMENTS[form.dtype])
        value = b.op("Cast", value, to=_ELEMENTS[form.dtype])
    b.op("ScatterND", "key_cache", key_places, key, out="key_cache_out")
    b.op("ScatterND", "value_cache", value_places, value, out="value_cache_out")


@dataclass(frozen=True)
class RequestBlocks:
    """The blocks of one request: their ids [n] i64, none negative; the sizes are 1-D of length 1:
    length L in tokens, kv_heads KH, head size D, block_size."""

    ids: str
    length: str
    kv_heads: str
    size: str
    block_size: str


def _widened(b: BodyBuilder, form: PoolForm, x: str) -> str:
    return x if form.dtype == "float32" else b.float32(x)


def gathered_keys(b: BodyBuilder, form: PoolForm, of: RequestBlocks) -> str:
    """Keys [KH, D, L] f32 of a request; codes without their scales."""
    blocks = b.op("Gather", "key_cache_out", of.ids, axis=0)
    if form.head_major:
        lanes = b.ints(KEY_LANES)
        tiles = b.op("Div", of.block_size, lanes)
        blocks = b.reshape(blocks, b.dim(of.ids, 0), of.kv_heads, tiles, of.size, lanes)
        blocks = b.op("Transpose", blocks, perm=[1, 3, 0, 2, 4])
        keys = b.slice(
            b.reshape(blocks, of.kv_heads, of.size, b.ints(-1)), b.ints(0), of.length, axis=2
        )
    else:
        rows = b.slice(b.reshape(blocks, b.ints(-1), of.kv_heads, of.size), b.ints(0), of.length)
        keys = b.op("Transpose", rows, perm=[1, 2, 0])
    return _widened(b, form, keys)


def gathered_values(b: BodyBuilder, form: PoolForm, of: RequestBlocks) -> str:
    """Values [KH, L, D] f32 of a request; codes without their scales."""
    blocks = b.op("Gather", "value_cache_out", of.ids, axis=0)
    if form.head_major:
        blocks = b.reshape(blocks, b.dim(of.ids, 0), of.kv_heads, of.block_size, of.size)
        blocks = b.op("Transpose", blocks, perm=[1, 0, 2, 3])
        values = b.slice(
            b.reshape(blocks, of.kv_heads, b.ints(-1), of.size), b.ints(0), of.length, axis=1
        )
    else:
        rows = b.slice(b.reshape(blocks, b.ints(-1), of.kv_heads, of.size), b.ints(0), of.length)
        values = b.op("Transpose", rows, perm=[1, 0, 2])
    return _widened(b, form, values)


def gathered_scales(b: BodyBuilder, pool: str, of: RequestBlocks) -> str:
    """Scales [KH, 1, 1, L] of a request out of a head-major scale pool."""
    blocks = b.op("Gather", pool, of.ids, axis=0)
    blocks = b.reshape(blocks, b.dim(of.ids, 0), of.kv_heads, of.block_size)
    blocks = b.op("Transpose", blocks, perm=[1, 0, 2])
    scales = b.slice(b.reshape(blocks, of.kv_heads, b.ints(-1)), b.ints(0), of.length, axis=1)
    return b.unsqueeze(scales, 1, 2)
