"""A checkpoint without weights: config and tokenizer are a folder's, the values are drawn."""

import hashlib
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ortloom.exporter.architectures import parameter_shapes
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.sources.checkpoint import Blocks, FloatRows, TensorInfo
from ortloom.exporter.sources.hf_folder import FolderFiles

SPREAD = 0.02
"""Standard deviation of the values of matrices, as models are initialised. Gains of norms are 1, so
that activations keep the size they have in a trained model."""

ROWS_A_DRAW = 64
"""Rows that come out of one generator: any range of rows can be made by itself."""


class DummyFolder(FolderFiles):
    """See `Checkpoint`. Values depend on the tensor's name and the row alone, so every export of a
    config gives the same bytes.

    Raises:
        SourceInvalid: the config cannot be read, or lacks sizes.
    """

    format: Literal["safetensors", "gguf", "dummy"] = "dummy"
    quantised = False

    def __init__(self, folder: Path, config: dict[str, Any] | None = None) -> None:
        super().__init__(folder, config)
        self.tensors = {
            name: TensorInfo(shape, "F32") for name, shape in parameter_shapes(self._config).items()
        }

    def rows(self, name: str, start: int, stop: int) -> FloatRows:
        """See `Checkpoint.rows`."""
        shape = self.tensors[name].shape
        if name.endswith("norm.weight"):
            return np.ones((stop - start, *shape[1:]), np.float32)
        if len(shape) == 1:
            return np.zeros(stop - start, np.float32)
        first, last = start // ROWS_A_DRAW, -(-stop // ROWS_A_DRAW)
        parts = [self._draw(name, number, shape) for number in range(first, last)]
        rows: FloatRows = np.concatenate(parts)
        return rows[start - first * ROWS_A_DRAW : stop - first * ROWS_A_DRAW]

    def _draw(self, name: str, number: int, shape: tuple[int, ...]) -> FloatRows:
        digest = hashlib.sha256(f"{name}\0{number}".encode()).digest()
        generator = np.random.Generator(np.random.SFC64(int.from_bytes(digest[:8], "little")))
        count = min(ROWS_A_DRAW, shape[0] - number * ROWS_A_DRAW)
        values = generator.standard_normal((count, *shape[1:]), np.float32)
        values *= np.float32(SPREAD)
        return values

    def block_form(self, name: str) -> PackedForm | None:
        """See `Checkpoint.block_form`: values are fp32."""
        return None

    def block_rows(self, name: str, start: int, stop: int) -> Blocks:
        """See `Checkpoint.block_rows`; no matrix is quantised.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"tensor '{name}' is not stored in blocks")

    def files(self) -> list[Path]:
        """Config and tokenizer files."""
        return sorted(self.small_files())
