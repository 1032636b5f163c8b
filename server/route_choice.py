"""Which route modules a server has: all of them, or those of a narrower form.

A module that is not served answers 404 like any unknown path. A module may also decide for itself:
its `served(config)` is asked, where there is one.
"""

from types import ModuleType

from ortloom.config import FrontConfig

TOKENS_ONLY = frozenset({"abort", "generate", "health", "metrics", "models"})
"""With --tokens-only."""


def is_served(module: ModuleType, config: FrontConfig) -> bool:
    """Whether the routes of a module of `server/routes` are registered."""
    if config.routes.tokens_only:
        return module.__name__.rpartition(".")[2] in TOKENS_ONLY
    served = getattr(module, "served", None)
    return served is None or bool(served(config))
