"""The context that prompts and answers of a benchmark must fit into."""

from ortloom.config import Config
from ortloom.errors import ConfigError
from ortloom.models.manifest import Architecture


def known_context(config: Config, architecture: Architecture) -> int:
    """The most tokens the context can have, as far as it is known before the bundle is loaded."""
    asked = config.model.max_model_len
    return architecture.max_position_embeddings if asked is None or asked < 0 else asked


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
