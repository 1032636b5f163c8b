"""What `ortloom export` was asked to do."""

from pathlib import Path
from typing import Literal

import msgspec

SUPPORTED_TARGETS = ("cpu", "plain")


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one export.

    Attributes:
        source: a local Hugging Face folder or .gguf file.
        output: the bundle folder to make.
        dtype: of activations and unquantised weights.
        quant: int8 or int4 = weight-only round-to-nearest in blocks of 32.
        check: compare the finished graph with transformers before the bundle appears.
        check_layers: layers of the model the check builds; None = all of them.
        dry_run: only plan.
        json: progress as JSON events.
        force: replace an existing bundle.
        targets: graph variants for these targets.
        hub_id: recorded as the origin of the source.
        revision: recorded with `hub_id`.
    """

    source: str
    output: str
    dtype: Literal["fp32", "float32"] = "fp32"
    quant: Literal["int4", "int8"] | None = None
    check: bool = False
    check_layers: int | None = None
    dry_run: bool = False
    json: bool = False
    force: bool = False
    targets: tuple[str, ...] = SUPPORTED_TARGETS
    hub_id: str | None = None
    revision: str | None = None

    @property
    def folder(self) -> Path:
        """The output folder as a path."""
        return Path(self.output).expanduser()

    @property
    def bits(self) -> Literal[4, 8] | None:
        """Bits of a quantised weight, None for plain floats."""
        if self.quant is None:
            return None
        return 4 if self.quant == "int4" else 8
