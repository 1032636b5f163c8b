"""The part of the manifest that says how weight matrices are stored."""

from typing import Literal

import msgspec

WEIGHT_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""`--dtype` of an export → the name of the type here."""


class Dtypes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Element types of activations, weights and logits."""

    activations: str = "float32"
    weights: str = "float32"
    logits: str = "float32"


def quant_name(method: str, bits: int | None) -> str | None:
    """The value of `--quant` that makes a form; None = none."""
    if method == "none":
        return None
    return "keep" if method == "source" else f"int{bits}"


class Quantization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weight matrices are stored. method none = as `Dtypes.weights` says; rtn = rounded at
    export; source = in the blocks of the source, with its values. `bits` are the fewest of any
    matrix; `lm_head_bits` those of the output layer, None where it has no codes; `block_size` is
    None where matrices differ."""

    method: Literal["none", "rtn", "source"] = "none"
    bits: Literal[4, 8] | None = None
    lm_head_bits: Literal[4, 8] | None = None
    block_size: int | None = None
    symmetric: bool = True
    activation_bits: int | None = None  # to which a linear layer rounds its input
    requantised: bool = False  # the source was itself quantised and its values were rounded again
    excluded: tuple[str, ...] = ()

    @property
    def asked(self) -> str | None:
        """The value of `--quant` that makes this form."""
        return quant_name(self.method, self.bits)
