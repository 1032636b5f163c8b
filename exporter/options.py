"""What `ortloom export` was asked to do."""

from pathlib import Path
from typing import Literal

import msgspec

from ortloom.exporter.source_variation import AS_IT_IS, SourceVariation

Dtype = Literal["fp32", "fp16", "bf16"]
Quant = Literal["int4", "int8", "keep"]
HeadQuant = Literal["int4", "int8"]

SUPPORTED_TARGETS = ("cpu", "plain")


class Storage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weight matrices are stored.

    Attributes:
        dtype: of matrices that are not quantised.
        quant: int8 = blocks of 32 with a scale; int4 = fitted blocks of 64 with a scale and a
            minimum; keep = each matrix in the source's own blocks and element type, with its own
            values.
        lm_head_quant: of the output layer and the embedding table where `quant` is int4.
    """

    dtype: Dtype = "fp32"
    quant: Quant | None = None
    lm_head_quant: HeadQuant = "int8"


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one export.

    Attributes:
        source: a local Hugging Face folder or .gguf file.
        output: the bundle folder to make.
        dtype: of weight matrices that are not quantised; activations are fp32.
        quant: see `Storage`.
        lm_head_quant: see `Storage`.
        check: compare the finished graph with transformers before the bundle appears.
        check_layers: layers of the model the check builds; None = all of them.
        dry_run: only plan.
        json: progress as JSON events.
        force: replace an existing bundle.
        targets: graph variants for these targets.
        hub_id: recorded as the origin of the source.
        revision: recorded with `hub_id`.
        variation: what is changed about the source.
        bars: progress as bars where the stream is a terminal.
    """

    source: str
    output: str
    dtype: Dtype = "fp32"
    quant: Quant | None = None
    lm_head_quant: HeadQuant = "int8"
    check: bool = False
    check_layers: int | None = None
    dry_run: bool = False
    json: bool = False
    force: bool = False
    targets: tuple[str, ...] = SUPPORTED_TARGETS
    hub_id: str | None = None
    revision: str | None = None
    variation: SourceVariation = AS_IT_IS
    bars: bool = True

    @property
    def folder(self) -> Path:
        """The output folder as a path."""
        return Path(self.output).expanduser()

    @property
    def storage(self) -> Storage:
        """How weight matrices are stored."""
        return Storage(dtype=self.dtype, quant=self.quant, lm_head_quant=self.lm_head_quant)
