"""The config of a source without opening its weights."""

from pathlib import Path
from typing import Any

from ortloom.exporter.sources.hf_folder import read_json
from ortloom.exporter.sources.open_source import open_source


def read_source_config(source: str) -> tuple[str, dict[str, Any], list[str]]:
    """(name, Hugging Face config, warnings) of a folder or GGUF file.

    Raises:
        SourceInvalid: no such source, or a config that cannot be read.
    """
    path = Path(source).expanduser()
    if (path / "config.json").exists():
        return path.resolve().name, read_json(path / "config.json"), []
    checkpoint = open_source(source)
    return checkpoint.name, checkpoint.config(), checkpoint.warnings
