"""Flags and variables that decide which routes there are."""

import msgspec

from ortloom.commands.arguments import Arguments
from ortloom.config import Config, RouteConfig
from ortloom.environment import Environment


def route_config(args: Arguments, env: Environment) -> RouteConfig:
    """The routes asked for."""
    tokens_only = bool(args.get("--tokens-only"))
    return RouteConfig(
        scale_out=bool(args.get("--enable-scale-out")) or env.scale_out or tokens_only,
        tokens_only=tokens_only,
        tokenizer_info=bool(args.get("--enable-tokenizer-info-endpoint")),
    )


def without_engine(config: Config) -> Config:
    """The tree of a server that only renders."""
    routes = msgspec.structs.replace(
        config.front.routes, render_only=True, scale_out=True, tokens_only=False
    )
    return msgspec.structs.replace(
        config, front=msgspec.structs.replace(config.front, routes=routes)
    )
