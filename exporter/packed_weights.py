"""Jobs that pack a matrix into the panels that our linear and embedding ops read."""

from collections.abc import Callable, Iterator

from ortloom.exporter.fit_blocks import fit_blocks
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.quantize import round_to_nearest
from ortloom.exporter.sources.checkpoint import Blocks
from ortloom.exporter.weights import CHUNK_BYTES, Array, Chunks, StoredTensor, WeightJob
from ortloom.kernels import packing
from ortloom.kernels.packed_contract import PANEL

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "u8": "uint8", "u4": "uint8"}

RowReader = Callable[[str, int, int], Array]
BlockReader = Callable[[str, int, int], Blocks]


def panel_chunks(shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Row ranges that begin at a panel; one fp32 chunk stays near `CHUNK_BYTES`."""
    count, width = shape
    step = max(PANEL, CHUNK_BYTES // max(1, width * 4) // PANEL * PANEL)
    for start in range(0, count, step):
        yield start, min(count, start + step)


def stored_tensors(name: str, form: PackedForm, shape: tuple[int, int]) -> list[StoredTensor]:
    """Panels, scales and minima of a matrix, in this order."""
    panels = packing.weight_shape(form.format, *shape)
    found = [StoredTensor(f"{name}.{form.format}", DTYPES[form.format], panels)]
    if form.quantised:
        blocks = packing.block_shape(form.block_size, *shape)
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
            if not form.quantised:
                arrays = [packing.pack_float(rows(name, start, stop), form.format)]
            else:
                if form.native:
                    found = blocks(name, start, stop)
                elif form.has_mins:
                    found = fit_blocks(rows(name, start, stop))
                else:
                    found = round_to_nearest(rows(name, start, stop), form.element_bits)
                arrays = [packing.pack_codes(found.codes, form.format)]
                for values in (found.scales, found.mins):
                    if values is not None:
                        arrays.append(packing.pack_blocks(values))
            for tensor, array in zip(tensors, arrays, strict=True):
                panel_bytes = tensor.nbytes // tensor.shape[0]
                yield tensor, start // PANEL * panel_bytes, array

    return WeightJob(tuple(tensors), produce)
