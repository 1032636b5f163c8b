"""Which stored form each parameter of a model gets."""

from ortloom.exporter.fit_blocks import FIT_BLOCK
from ortloom.exporter.options import Storage
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.parameters import EMBEDDING, HEAD
from ortloom.exporter.quantize import BLOCK
from ortloom.exporter.sources.checkpoint import Checkpoint
from ortloom.kernels.packed_contract import ACTIVATION_GROUP, Format

FLOATS: dict[str, Format] = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
"""`--dtype` → format of matrices that are not quantised."""

TABLES = (EMBEDDING, HEAD)
"""Matrices with a row a token. Rounded to 4 bits the output layer's error goes straight into the
logits: of the demo model's KL divergence from fp32 it made a third, for a sixth of the bytes. So
int4 stores such a matrix with 8 bits, as other tools do, unless `Storage.lm_head_quant` says 4."""


ROUTER = ".mlp.gate.weight"
"""End of the name of a matrix that routes tokens to experts. It is small, and a rounded one sends
tokens to other experts, so it is never stored as codes unless it comes so."""


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is a weight matrix [N, K]."""
    return len(shape) == 2 and name.endswith(".weight")


def is_experts(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is the matrices [E, N, K] of experts."""
    return len(shape) == 3 and ".experts." in name


def choose_form(
    name: str,
    shape: tuple[int, ...],
    *,
    read_as_linear: bool,
    storage: Storage,
    checkpoint: Checkpoint | None,
) -> PackedForm | None:
    """The stored form of a parameter; None = fp32, row by row.

    Args:
        name: of the parameter.
        shape: of the parameter.
        read_as_linear: False for a table that only an embedding reads.
        storage: what was asked for.
        checkpoint: the source; None where only sizes of rounded weights are asked for.
    """
    experts = is_experts(name, shape)
    if not experts and not is_matrix(name, shape):
        return None
    read_as_linear = read_as_linear or experts
    plain, quant = PackedForm(FLOATS[storage.dtype]), storage.quant
    if quant == "keep":
        own = None if checkpoint is None else checkpoint.block_form(name)
        if own is not None:
            return own
    elif (
        quant is not None
        and read_as_linear
        and not name.endswith(ROUTER)
        and shape[-1] % ACTIVATION_GROUP == 0
    ):
        eight_bits = quant == "int8" or (name in TABLES and storage.lm_head_quant == "int8")
        return PackedForm("u8", BLOCK) if eight_bits else _fitted(shape[-1])
    if not read_as_linear and plain.format == "f32":
        return None
    return plain


def _fitted(width: int) -> PackedForm:
    """The form of a matrix of rows of `width` that is rounded to 4 bits."""
    if width % FIT_BLOCK == 0:
        return PackedForm("u4", FIT_BLOCK, has_mins=True)
    return PackedForm("u4", BLOCK)
