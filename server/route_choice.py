"""Which route modules a server has: all of them, or those of a narrower form.

A module that is not served answers 404 like any unknown path. A module may also decide for itself:
its `served(config)` is asked, where there is one.
"""

from types import ModuleType

from ortloom.config import FrontConfig

TOKENS_ONLY = frozenset({"abort", "generate", "health", "metrics", "models"})
"""With --tokens-only."""

RENDER_ONLY = frozenset({"health", "metrics", "models", "render", "tokenize", "tokenizer_info"})
"""Without an engine."""


def is_served(module: ModuleType, config: FrontConfig) -> bool:
    """Whether the routes of a module of `server/routes` are registered."""
    name = module.__name__.rpartition(".")[2]
    if config.routes.tokens_only:
        return name in TOKENS_ONLY
    if config.routes.render_only and name not in RENDER_ONLY:
        return False
    served = getattr(module, "served", None)
    return served is None or bool(served(config))
