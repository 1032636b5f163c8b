"""The config of a source without opening its weights."""

from pathlib import Path
from typing import Any

from ortloom.exporter.source_variation import AS_IT_IS, SourceVariation
from ortloom.exporter.sources.hf_folder import read_json
from ortloom.exporter.sources.open_source import open_source, settled_config


def read_source_config(
    source: str, variation: SourceVariation = AS_IT_IS
) -> tuple[str, dict[str, Any], list[str]]:
    """(name, Hugging Face config, warnings) of a folder or GGUF file.

    Raises:
        SourceInvalid: no such source, or a config that cannot be read.
    """
    path = Path(source).expanduser()
    if (path / "config.json").exists():
        config = settled_config(lambda: read_json(path / "config.json"), variation)
        return path.resolve().name, config, []
    checkpoint = open_source(source, variation)
    return checkpoint.name, checkpoint.config(), checkpoint.warnings
