"""The context that prompts and answers of a benchmark must fit into."""

import json
from pathlib import Path

from ortloom.config import Config
from ortloom.errors import ConfigError
from ortloom.models.manifest import Architecture


def known_context(config: Config, architecture: Architecture) -> int:
    """The most tokens the context can have, as far as it is known before the bundle is loaded."""
    asked = config.model.max_model_len
    return architecture.max_position_embeddings if asked is None or asked < 0 else asked


def context_before_export(config: Config) -> int | None:
    """The same for a model that may have to be exported first; None = nothing tells it yet."""
    asked = config.model.max_model_len
    if asked is not None and asked > 0:
        return asked
    folder = Path(config.model.bundle).expanduser()
    if (folder / "manifest.json").is_file():
        return None  # a bundle, which says it itself
    try:
        tree = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None  # a file, a hub's id, or nothing that can be used: who loads it says so
    found = tree.get("max_position_embeddings") if isinstance(tree, dict) else None
    return found if isinstance(found, int) and found > 0 else None


def check_room(context: int, prompt_len: int, output_len: int) -> None:
    """Refuse lengths that a context of so many tokens has no room for.

    Raises:
        ConfigError: naming the lengths and the context.
    """
    if prompt_len + output_len > context:
        raise ConfigError(
            f"a prompt of {prompt_len} tokens with {output_len} new ones does not fit the context "
            f"of {context} tokens; shorten them, or raise --max-model-len if the model allows it"
        )
