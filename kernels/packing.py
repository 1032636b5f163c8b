"""Rows of a weight matrix ↔ the panels of `packed_contract`, NumPy only.

All functions take any number n of neighbouring rows that starts at a multiple of 16, so a matrix
may be packed in slices of rows, panel after panel. The last panel is filled up with rows of zeros:
in quantised formats code, scale and minimum are 0, so that the value is 0 as well.

bfloat16 is held as uint16, its bit pattern, since NumPy has no such type.
"""

from typing import Any, TypeAlias

import numpy as np

from ortloom.kernels.packed_contract import BLOCK_SIZES, PANEL, Format

Array: TypeAlias = np.ndarray[Any, Any]

FLOAT_TYPES: dict[str, str] = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}
CODE_LANES = 4
"""Neighbouring codes of a row that lie side by side, in the four bytes a dot product reads."""
CODES_IN_BYTE: dict[str, int] = {"u8": 1, "u4": 2}


def panel_count(rows: int) -> int:
    """Panels of so many rows, the last one perhaps not full."""
    return -(-rows // PANEL)


def weight_shape(format: Format, rows: int, width: int) -> tuple[int, ...]:
    """Shape of the input `weight` for W [rows, width]."""
    if format in FLOAT_TYPES:
        return (panel_count(rows), width, PANEL)
    groups = width // (CODE_LANES * CODES_IN_BYTE[format])
    return (panel_count(rows), groups, PANEL, CODE_LANES)


def block_shape(block_size: int, rows: int, width: int) -> tuple[int, ...]:
    """Shape of the inputs `scales` and `mins` for W [rows, width]."""
    return (panel_count(rows), width // block_size, PANEL)


def round_to_bf16(values: Array) -> Array:
    """bfloat16 bit patterns uint16 of fp32 values, rounded to nearest, ties to even.

    Raises:
        ValueError: a finite value is rounded to an infinity.
    """
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    odd += np.uint32(0x7FFF)
    odd += bits  # may wrap or change sign for NaN only, which is put right below
    rounded: Array = (odd >> np.uint32(16)).astype("<u2")
    magnitude = bits & np.uint32(0x7FFFFFFF)
    if magnitude.max(initial=0) >= 0x7F7F8000:
        if ((magnitude >= 0x7F7F8000) & (magnitude < 0x7F800000)).any():
            raise ValueError("a value is too large for bfloat16 (above 3.39e38 in magnitude)")
        quiet = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype("<u2")
        rounded = np.where(magnitude > 0x7F800000, quiet, rounded)
    return rounded


def widen_bf16(bits: Array) -> Array:
    """fp32 values of bfloat16 bit patterns uint16; exact."""
    wide = bits.astype("<u4")
    values: Array = np.left_shift(wide, 16, out=wide).view("<f4")
    return values


def round_to_f16(values: Array) -> Array:
    """float16 values, rounded to nearest, ties to even.

    Raises:
        ValueError: a finite value is rounded to an infinity.
    """
    with np.errstate(over="ignore"):
        rounded: Array = values.astype("<f2")
    if (np.isinf(rounded) & np.isfinite(values)).any():
        largest = float(np.abs(values[np.isfinite(values)]).max())
        raise ValueError(f"a value is too large for float16: {largest:g} (limit 65504)")
    return rounded


def _full_panels(rows: Array) -> Array:
    """Rows [n, w] as [P, 16, w], filled up with zeros."""
    if rows.ndim != 2:
        raise ValueError(f"rows must be a matrix, not of shape {list(rows.shape)}")
    count, width = rows.shape
    panels = panel_count(count)
    if panels * PANEL != count:
        full = np.zeros((panels * PANEL, width), dtype=rows.dtype)
        full[:count] = rows
        rows = full
    return rows.reshape(panels, PANEL, width)


def _rows_last(rows: Array) -> Array:
    """[n, w] → [P, w, 16], C-contiguous."""
    return np.ascontiguousarray(_full_panels(rows).transpose(0, 2, 1))


def _rows_first(panels: Array, rows: int) -> Array:
    """[P, w, 16] → [rows, w], C-contiguous."""
    if panels.ndim != 3 or panels.shape[2] != PANEL:
        raise ValueError(f"panels have shape {list(panels.shape)}, not [P, w, {PANEL}]")
    if panel_count(rows) != panels.shape[0]:
        raise ValueError(f"{panels.shape[0]} panels do not hold {rows} rows")
    back = np.ascontiguousarray(panels.transpose(0, 2, 1))
    return back.reshape(panels.shape[0] * PANEL, panels.shape[1])[:rows]


def pack_float(rows: Array, format: Format) -> Array:
    """Panels of fp32 rows in a floating format.

    Args:
        rows: fp32 [n, K].
        format: "f32", "f16" or "bf16"; rounded to nearest, ties to even.

    Returns:
        [P, K, 16] of fp32, fp16, or uint16 for bfloat16 bit patterns.

    Raises:
        ValueError: not a floating format, or a finite value beyond its range.
    """
    if format not in FLOAT_TYPES:
        raise ValueError(f"{format!r} is no floating format")
    if format == "f16":
        rows = round_to_f16(rows)
    elif format == "bf16":
        rows = round_to_bf16(rows)
    else:
        rows = rows.astype("<f4", copy=False)
    return _rows_last(rows)


def unpack_float(panels: Array, format: Format, rows: int) -> Array:
    """fp32 [rows, K] of `pack_float`'s panels, widened exactly.

    Raises:
        ValueError: not a floating format, or panels of another type or number.
    """
    if panels.dtype != np.dtype(FLOAT_TYPES.get(format, "V1")):
        raise ValueError(f"panels of {panels.dtype} are not of the format {format!r}")
    values = _rows_first(panels, rows)
    return widen_bf16(values) if format == "bf16" else values.astype("<f4", copy=False)


def pack_codes(codes: Array, format: Format) -> Array:
    """Panels of codes.

    Args:
        codes: uint8 [n, K], one code an element; K a multiple of 32.
        format: "u8", or "u4" for codes of 0 .. 15.

    Returns:
        uint8 [P, K/4, 16, 4] for "u8", [P, K/8, 16, 4] for "u4".

    Raises:
        ValueError: not a quantised format, a code out of range, or another type or width.
    """
    step = CODE_LANES * _codes_in_byte(format)
    if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] % 32:
        shape = list(codes.shape)
        raise ValueError(f"codes are {codes.dtype} {shape}, not uint8 [n, a multiple of 32]")
    # A group of four codes is moved as one 32-bit word.
    words = np.ascontiguousarray(codes).view("<u4")
    if format == "u4":
        if codes.size and codes.max() > 15:
            raise ValueError(f"code {codes.max()} does not fit 4 bits")
        words = words[:, 0::2] | np.left_shift(words[:, 1::2], 4)
    packed = _rows_last(words).view(np.uint8)
    return packed.reshape(len(packed), codes.shape[1] // step, PANEL, CODE_LANES)


def unpack_codes(panels: Array, format: Format, rows: int) -> Array:
    """uint8 [rows, K], one code an element, of `pack_codes`' panels.

    Raises:
        ValueError: not a quantised format, or panels of another type, shape or number.
    """
    step = CODE_LANES * _codes_in_byte(format)
    if panels.dtype != np.uint8 or panels.ndim != 4 or panels.shape[2:] != (PANEL, CODE_LANES):
        raise ValueError(f"panels are {panels.dtype} {list(panels.shape)}, not uint8 [P, g, 16, 4]")
    count, groups = panels.shape[:2]
    words = np.ascontiguousarray(panels).view("<u4").reshape(count, groups, PANEL)
    words = _rows_first(words, rows)
    if format == "u4":
        low, high = words & np.uint32(0x0F0F0F0F), (words >> np.uint32(4)) & np.uint32(0x0F0F0F0F)
        words = np.stack([low, high], axis=-1)
    return words.reshape(rows, groups * step // CODE_LANES).view(np.uint8)


def pack_blocks(values: Array) -> Array:
    """Panels of scales or minima [n, K / block_size], fp16 or fp32: [P, K / block_size, 16].

    Raises:
        ValueError: of another type or not a matrix.
    """
    if values.dtype not in (np.float16, np.float32):
        raise ValueError(f"scales and minima are fp16 or fp32, not {values.dtype}")
    return _rows_last(values)


def unpack_blocks(panels: Array, rows: int) -> Array:
    """[rows, K / block_size] of `pack_blocks`' panels, the type kept.

    Raises:
        ValueError: another shape or number of panels.
    """
    return _rows_first(panels, rows)


def check_block_size(block_size: int, width: int) -> None:
    """Whether W [n, width] may have blocks of this size.

    Raises:
        ValueError: it may not.
    """
    if block_size not in BLOCK_SIZES:
        raise ValueError(f"block size {block_size} is not one of {list(BLOCK_SIZES)}")
    if width % block_size or width % 32:
        raise ValueError(f"width {width} is not a multiple of 32 and of block size {block_size}")


def _codes_in_byte(format: Format) -> int:
    if format not in CODES_IN_BYTE:
        raise ValueError(f"{format!r} is no quantised format")
    return CODES_IN_BYTE[format]
