"""Which route modules a server has: all of them, or those of a narrower form.

A module that is not served is not loaded either, and its paths answer 404 like any unknown one.
"""

from collections.abc import Callable

from ortloom.config import FrontConfig, RouteConfig

TOKENS_ONLY = frozenset({"abort", "generate", "health", "metrics", "models"})
"""With --tokens-only."""

RENDER_ONLY = frozenset(
    {"health", "metrics", "models", "render", "render_newer", "tokenize", "tokenizer_info"}
)
"""Without an engine."""

CONDITIONS: dict[str, Callable[[RouteConfig], bool]] = {
    "abort": lambda routes: routes.tokens_only,  # in dev mode there is another one on its path
    "dev": lambda routes: routes.dev_mode,
    "docs": lambda routes: routes.docs,
    "generate": lambda routes: routes.scale_out or routes.tokens_only,
    "profile": lambda routes: routes.profiler,
    "render": lambda routes: routes.scale_out,
    "render_newer": lambda routes: routes.scale_out,
    "scale_out_off": lambda routes: not routes.scale_out,
    "tokenizer_info": lambda routes: routes.tokenizer_info,
}
"""Modules that are not always served."""


def is_served(name: str, config: FrontConfig) -> bool:
    """Whether the routes of a module of `server/routes` are registered.

    Args:
        name: of the module, without its package.
        config: the front's.
    """
    routes = config.routes
    if routes.tokens_only and name not in TOKENS_ONLY:
        return False
    if routes.render_only and name not in RENDER_ONLY:
        return False
    condition = CONDITIONS.get(name)
    return condition is None or condition(routes)
