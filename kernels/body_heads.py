"""What the op's body does to heads before attention: taking them apart, RMSNorm and rotation."""

from collections.abc import Callable

from ortloom.kernels.body_builder import BodyBuilder

_END = 2**62


def heads_of_step(
    b: BodyBuilder, separate: bool, tokens: str, heads: str, kv_heads: str, size: str
) -> tuple[str, str, str]:
    """Query [T, H, D], key and value [T, KH, D] of either form of the inputs."""
    if separate:
        return (
            b.reshape("query", tokens, heads, size),
            b.reshape("key", tokens, kv_heads, size),
            b.reshape("value", tokens, kv_heads, size),
        )
    key_end = b.op("Add", heads, kv_heads)
    value_end = b.op("Add", key_end, kv_heads)
    packed = b.reshape("query", tokens, value_end, size)
    return (
        b.slice(packed, b.ints(0), heads, axis=1),
        b.slice(packed, heads, key_end, axis=1),
        b.slice(packed, key_end, value_end, axis=1),
    )


def rms_norm(b: BodyBuilder, x: str, weight: str, epsilon: str) -> str:
    """RMSNorm over the last axis."""
    mean = b.op("ReduceMean", b.op("Mul", x, x), b.ints(-1), keepdims=1)
    return b.op("Mul", b.op("Div", x, b.op("Sqrt", b.op("Add", mean, epsilon))), weight)


def token_positions(b: BodyBuilder, tokens: str, cu: str, past: str) -> str:
    """Absolute position [T] of each packed token."""
    token = b.count_to(tokens)
    # The request of token t is the number of requests that end at or before it.
    ends = b.slice(cu, b.ints(1), b.ints(_END))
    ended = b.op("LessOrEqual", b.unsqueeze(ends, 0), b.unsqueeze(token, 1))
    request = b.op("ReduceSum", b.int64(ended), b.ints(1), keepdims=0)
    start = b.op("Gather", cu, request)
    return b.op("Sub", b.op("Add", b.op("Gather", past, request), token), start)


def rotation(b: BodyBuilder, positions: str, size: str) -> Callable[[str], str]:
    """A function that rotates heads x [T, n, D] as the rotary attributes say.

    y[d] = x[d] * cos[d] + x[partner(d)] * sin[d], with cos 1 and sin 0 on channels that do not
    rotate, so that one form covers both pairings, any offset, and no rotation at all.
    """
    on, interleaved = b.integers("do_rotary"), b.integers("rotary_interleaved")
    half, channel = b.dim("cos_cache", 1), b.count_to(size)
    two = b.ints(2)
    place = b.op("Sub", channel, b.integers("rotary_offset"))
    turned = b.op(
        "And",
        b.op("GreaterOrEqual", place, b.ints(0)),
        b.op("Less", place, b.op("Mul", b.op("Mul", half, two), on)),
    )
    place = b.op("Where", turned, place, b.ints(0))
    paired = b.op("Greater", interleaved, b.ints(0))
    first = b.op(
        "Equal", b.op("Where", paired, b.op("Mod", place, two), b.op("Div", place, half)), b.ints(0)
    )
    index = b.op("Where", paired, b.op("Div", place, two), b.op("Mod", place, half))
    step = b.op("Where", paired, b.ints(1), half)
    step = b.op("Where", first, step, b.op("Neg", step))
    partner = b.op("Add", channel, b.op("Where", turned, step, b.ints(0)))
    # Row 0 without rotation: the tables may then be of any length.
    row = b.op("Mul", positions, on)
    cos = b.op("Gather", b.op("Gather", "cos_cache", row), index, axis=1)
    sin = b.op("Gather", b.op("Gather", "sin_cache", row), index, axis=1)
    sin = b.op("Where", first, b.op("Neg", sin), sin)
    cos = b.unsqueeze(b.op("Where", turned, cos, b.number(1.0)), 1)
    sin = b.unsqueeze(b.op("Where", turned, sin, b.number(0.0)), 1)

    def rotate(x: str) -> str:
        swapped = b.op("Gather", x, partner, axis=2)
        return b.op("Add", b.op("Mul", x, cos), b.op("Mul", swapped, sin))

    return rotate
