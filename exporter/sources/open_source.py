"""SOURCE on the command line → a checkpoint."""

import re
from pathlib import Path

from ortloom.errors import SourceInvalid
from ortloom.exporter.sources.checkpoint import Checkpoint
from ortloom.exporter.sources.expert_tensors import with_experts
from ortloom.exporter.sources.gguf_file import GgufFile
from ortloom.exporter.sources.hf_folder import HfFolder

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def open_source(source: str) -> Checkpoint:
    """Open a local folder or .gguf file.

    Raises:
        SourceInvalid: nothing there, or not a usable checkpoint.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if not (path / "config.json").exists() and len(ggufs) == 1:
            return with_experts(GgufFile(ggufs[0]))
        return with_experts(HfFolder(path))
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise SourceInvalid(
                f"'{source}' is a file but not a .gguf file; give the checkpoint folder instead"
            )
        return with_experts(GgufFile(path))
    if _HUB_ID.fullmatch(source) and not source.startswith("."):
        raise SourceInvalid(
            f"'{source}' is no local path, and downloading from the hub is not supported: fetch "
            f"the checkpoint first (hf download {source} --local-dir DIR) and give DIR"
        )
    raise SourceInvalid(f"'{source}' does not exist")
