"""What the exporter needs from a source: facts, files, and weight rows as fp32."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from ortloom.exporter.packed_form import PackedForm

FloatRows = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class TensorInfo:
    """A stored tensor: Hugging Face name order, shape outermost first, stored type by its name
    in the source (`BF16`, `Q4_1` ...)."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Blocks:
    """Rows of a quantised matrix in the block form of kernels/packed_contract.py.

    Attributes:
        codes: uint8 [n, K].
        scales: f16 or f32 [n, K / block_size].
        mins: like `scales`, or None.
    """

    codes: np.ndarray[Any, Any]
    scales: np.ndarray[Any, Any]
    mins: np.ndarray[Any, Any] | None


class Checkpoint(Protocol):
    """A readable source.

    `tensors` has Hugging Face parameter names; `quantised` says that stored values were rounded
    to fewer bits than 16. `warnings` collects what the user should know but need not mend.
    """

    name: str
    format: Literal["safetensors", "gguf", "dummy"]
    quantised: bool
    tensors: dict[str, TensorInfo]
    warnings: list[str]

    def config(self) -> dict[str, Any]:
        """The Hugging Face config as a dict (fresh each time)."""

    def rows(self, name: str, start: int, stop: int) -> FloatRows:
        """Rows start .. stop of a tensor along its first axis as fp32 values.

        Raises:
            SourceInvalid: the stored bytes cannot be read.
        """

    def block_form(self, name: str) -> PackedForm | None:
        """The form that keeps a matrix's stored values exactly in its own number of bits, or None
        where fp32 is the only such form."""

    def block_rows(self, name: str, start: int, stop: int) -> Blocks:
        """Rows start .. stop of a matrix whose `block_form` is quantised.

        Raises:
            SourceInvalid: the stored bytes cannot be read.
        """

    def files(self) -> list[Path]:
        """Every source file that decides the bundle's bytes, sorted by name."""

    def tokenizer_files(self, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json, chat_template.jinja and
        generation_config.json (those that exist) into `folder`.

        Raises:
            SourceInvalid: the source has no usable tokenizer.
        """


def parameter_count(tensors: dict[str, TensorInfo]) -> int:
    """Number of elements of all tensors."""
    total = 0
    for info in tensors.values():
        size = 1
        for dim in info.shape:
            size *= dim
        total += size
    return total
