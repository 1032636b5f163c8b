"""Jobs that pack matrices into the panels that our linear, embedding and expert ops read."""

from collections.abc import Callable, Iterator

from ortloom.exporter.fit_blocks import fit_blocks
from ortloom.exporter.fit_scales import fit_scales
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.quantize import round_to_nearest
from ortloom.exporter.sources.checkpoint import Blocks
from ortloom.exporter.weights import CHUNK_BYTES, Array, Chunks, StoredTensor, WeightJob
from ortloom.kernels import packing
from ortloom.kernels.packed_contract import PANEL

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "u8": "uint8", "u4": "uint8"}

RowReader = Callable[[str, int, int], Array]
ExpertReader = Callable[[str, int, int, int], Array]
ExpertBlockReader = Callable[[str, int, int, int], Blocks]
BlockReader = Callable[[str, int, int], Blocks]


def panel_chunks(shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Row ranges that begin at a panel; one fp32 chunk stays near `CHUNK_BYTES`."""
    count, width = shape
    step = max(PANEL, CHUNK_BYTES // max(1, width * 4) // PANEL * PANEL)
    for start in range(0, count, step):
        yield start, min(count, start + step)


def stored_tensors(name: str, form: PackedForm, shape: tuple[int, ...]) -> list[StoredTensor]:
    """Panels, scales and minima of a matrix [N, K] or of experts [E, N, K], in this order."""
    *experts, rows, width = shape
    panels = (*experts, *packing.weight_shape(form.format, rows, width))
    found = [StoredTensor(f"{name}.{form.format}", DTYPES[form.format], panels)]
    if form.quantised:
        blocks = (*experts, *packing.block_shape(form.block_size, rows, width))
        found.append(StoredTensor(f"{name}.scales", form.scale_dtype, blocks))
        if form.has_mins:
            found.append(StoredTensor(f"{name}.mins", form.scale_dtype, blocks))
    return found


def packed_job(
    name: str, form: PackedForm, shape: tuple[int, int], rows: RowReader, blocks: BlockReader
) -> WeightJob:
    """The stored tensors `<name>.<format>`, `<name>.scales`, `<name>.mins` of a matrix.

    Args:
        name: of the parameter.
        form: how it is stored.
        shape: [N, K].
        rows: reads fp32 rows of a parameter.
        blocks: reads rows of a parameter's own blocks, for `form.native`.
    """
    tensors = stored_tensors(name, form, shape)

    def produce() -> Chunks:
        for start, stop in panel_chunks(shape):
            if form.native and form.quantised:
                arrays = _packed_blocks(blocks(name, start, stop), form)
            else:
                arrays = _packed_rows(rows(name, start, stop), form)
            for tensor, array in zip(tensors, arrays, strict=True):
                panel_bytes = tensor.nbytes // tensor.shape[0]
                yield tensor, start // PANEL * panel_bytes, array

    return WeightJob(tuple(tensors), produce)


def _packed_rows(rows: Array, form: PackedForm) -> list[Array]:
    """Panels (and scales) of fp32 rows [n, K]."""
    if not form.quantised:
        return [packing.pack_float(rows, form.format)]
    if form.has_mins:
        return _packed_blocks(fit_blocks(rows), form)
    if form.format == "u8":
        return _packed_blocks(fit_scales(rows), form)
    return _packed_blocks(round_to_nearest(rows, form.element_bits), form)


def _packed_blocks(found: Blocks, form: PackedForm) -> list[Array]:
    """Panels, scales and minima of rows in blocks."""
    arrays = [packing.pack_codes(found.codes, form.format)]
    for values in (found.scales, found.mins):
        if values is not None:
            arrays.append(packing.pack_blocks(values))
    return arrays


def experts_job(
    name: str,
    form: PackedForm,
    shape: tuple[int, int, int],
    rows: ExpertReader,
    blocks: ExpertBlockReader,
) -> WeightJob:
    """The stored tensors of experts, expert after expert; see `packed_job`.

    Args:
        name: of the parameter.
        form: how it is stored.
        shape: [E, N, K].
        rows: reads fp32 rows of one expert's matrix (name, expert, start, stop).
        blocks: reads the same rows in the source's own blocks, for `form.native`.
    """
    tensors = stored_tensors(name, form, shape)

    def produce() -> Chunks:
        for expert in range(shape[0]):
            for start, stop in panel_chunks(shape[1:]):
                if form.native and form.quantised:
                    arrays = _packed_blocks(blocks(name, expert, start, stop), form)
                else:
                    arrays = _packed_rows(rows(name, expert, start, stop), form)
                for tensor, array in zip(tensors, arrays, strict=True):
                    expert_bytes = tensor.nbytes // tensor.shape[0]
                    panel_bytes = expert_bytes // tensor.shape[1]
                    offset = expert * expert_bytes + start // PANEL * panel_bytes
                    yield tensor, offset, array

    return WeightJob(tuple(tensors), produce)
