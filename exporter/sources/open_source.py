"""SOURCE on the command line → a checkpoint."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortloom.errors import SourceInvalid
from ortloom.exporter.source_variation import AS_IT_IS, SourceVariation, overridden
from ortloom.exporter.sources.checkpoint import Checkpoint
from ortloom.exporter.sources.configured import Configured
from ortloom.exporter.sources.dummy import DummyFolder
from ortloom.exporter.sources.expert_tensors import with_experts
from ortloom.exporter.sources.gguf_file import GgufFile
from ortloom.exporter.sources.hf_folder import HfFolder, read_json

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def open_source(source: str, variation: SourceVariation = AS_IT_IS) -> Checkpoint:
    """Open a local folder or .gguf file.

    Args:
        source: its path.
        variation: what is changed about it.

    Raises:
        SourceInvalid: nothing there, or not a usable checkpoint.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        only_gguf = not (path / "config.json").exists() and len(ggufs) == 1
        if not only_gguf or variation.dummy:
            return with_experts(_folder(path, variation))
        path = ggufs[0]
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise SourceInvalid(
                f"'{source}' is a file but not a .gguf file; give the checkpoint folder instead"
            )
        if variation.weights is not None or variation.dummy:
            raise SourceInvalid(f"'{source}' is a .gguf file, whose weights are its own")
        stored: Checkpoint = GgufFile(path)
        if variation.changes_config:
            stored = Configured(stored, settled_config(stored.config, variation))
        return with_experts(stored)
    if _HUB_ID.fullmatch(source) and not source.startswith("."):
        raise SourceInvalid(
            f"'{source}' is no local path, and downloading from the hub is not supported: fetch "
            f"the checkpoint first (hf download {source} --local-dir DIR) and give DIR"
        )
    raise SourceInvalid(f"'{source}' does not exist")


def settled_config(own: Callable[[], dict[str, Any]], variation: SourceVariation) -> dict[str, Any]:
    """The config that holds.

    Args:
        own: gives the source's own, where it is needed.
        variation: what is changed about it.

    Raises:
        SourceInvalid: a config cannot be read.
    """
    file = variation.config_file
    return overridden(own() if file is None else read_json(file), variation.overrides)


def _folder(path: Path, variation: SourceVariation) -> Checkpoint:
    config = None
    if variation.changes_config:
        config = settled_config(lambda: read_json(path / "config.json"), variation)
    if variation.dummy:
        return DummyFolder(path, config)
    weights = None if variation.weights is None else Path(variation.weights).expanduser()
    return HfFolder(path, weights, config)
