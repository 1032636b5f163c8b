"""A checkpoint under a config that is not its own."""

import json
from pathlib import Path
from typing import Any, Literal

from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.sources.checkpoint import Blocks, Checkpoint, FloatRows, TensorInfo


class Configured:
    """See `Checkpoint`; everything but the config is that of another checkpoint.

    Args:
        stored: the checkpoint.
        config: the config to report.
    """

    def __init__(self, stored: Checkpoint, config: dict[str, Any]) -> None:
        self._stored = stored
        self._config = config
        self.name: str = stored.name
        self.format: Literal["safetensors", "gguf", "dummy"] = stored.format
        self.quantised: bool = stored.quantised
        self.tensors: dict[str, TensorInfo] = stored.tensors
        self.warnings: list[str] = stored.warnings

    def config(self) -> dict[str, Any]:
        """A copy of the other config."""
        copy: dict[str, Any] = json.loads(json.dumps(self._config))
        return copy

    def rows(self, name: str, start: int, stop: int) -> FloatRows:
        """See `Checkpoint.rows`."""
        return self._stored.rows(name, start, stop)

    def block_form(self, name: str) -> PackedForm | None:
        """See `Checkpoint.block_form`."""
        return self._stored.block_form(name)

    def block_rows(self, name: str, start: int, stop: int) -> Blocks:
        """See `Checkpoint.block_rows`."""
        return self._stored.block_rows(name, start, stop)

    def files(self) -> list[Path]:
        """See `Checkpoint.files`."""
        return self._stored.files()

    def tokenizer_files(self, folder: Path) -> None:
        """See `Checkpoint.tokenizer_files`."""
        self._stored.tokenizer_files(folder)
