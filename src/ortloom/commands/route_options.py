"""Flags and variables that decide which routes there are."""

from ortloom.commands.arguments import Arguments
from ortloom.config import RouteConfig
from ortloom.environment import Environment


def route_config(args: Arguments, env: Environment) -> RouteConfig:
    """The routes asked for."""
    tokens_only = bool(args.get("--tokens-only"))
    return RouteConfig(
        scale_out=bool(args.get("--enable-scale-out")) or env.scale_out or tokens_only,
        tokens_only=tokens_only,
    )
