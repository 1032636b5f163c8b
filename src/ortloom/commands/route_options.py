"""Flags and variables that decide which routes there are."""

import msgspec

from ortloom.commands.arguments import Arguments
from ortloom.config import Config, ProfilerConfig, RouteConfig
from ortloom.environment import Environment
from ortloom.errors import ConfigError


def route_config(args: Arguments, env: Environment) -> RouteConfig:
    """The routes asked for."""
    tokens_only = bool(args.get("--tokens-only"))
    return RouteConfig(
        scale_out=bool(args.get("--enable-scale-out")) or env.scale_out or tokens_only,
        tokens_only=tokens_only,
        tokenizer_info=bool(args.get("--enable-tokenizer-info-endpoint")),
        dev_mode=env.dev_mode,
        docs=not args.get("--disable-fastapi-docs"),
        offline_docs=bool(args.get("--enable-offline-docs")),
        profiler=profiler_config(args).folder is not None,
    )


def without_engine(config: Config) -> Config:
    """The tree of a server that only renders."""
    routes = msgspec.structs.replace(
        config.front.routes, render_only=True, scale_out=True, tokens_only=False
    )
    return msgspec.structs.replace(
        config, front=msgspec.structs.replace(config.front, routes=routes)
    )


PROFILERS = ("torch", "python")
"""Both give a profile of the engine's Python calls: there is no torch here to ask."""

TORCH_OPTIONS = (
    "torch_profiler_dump_cuda_time_total",
    "torch_profiler_record_shapes",
    "torch_profiler_use_gzip",
    "torch_profiler_with_flops",
    "torch_profiler_with_memory",
    "torch_profiler_with_stack",
)
"""Members of --profiler-config that say how torch profiles."""


def profiler_config(args: Arguments, notices: list[str] | None = None) -> ProfilerConfig:
    """Where --profiler-config wants profiles.

    Args:
        args: parsed.
        notices: lines to print before start; one is added for options that do nothing here.

    Raises:
        ConfigError: not an object, another profiler, or no folder.
    """
    given = args.get("--profiler-config")
    if given in (None, {}):
        return ProfilerConfig()
    name = "argument --profiler-config"
    if not isinstance(given, dict):
        raise ConfigError(f"{name}: must be a JSON object")
    kind = given.get("profiler", "python")
    if kind == "cuda":
        raise ConfigError(f"{name}: the cuda profiler needs a GPU provider, and none runs here")
    if kind not in PROFILERS:
        raise ConfigError(f"{name}: profiler must be one of {', '.join(PROFILERS)}, got '{kind}'")
    folder = given.get("torch_profiler_dir", given.get("dir"))
    if not isinstance(folder, str) or not folder:
        raise ConfigError(f"{name}: dir (or torch_profiler_dir) must name a folder")
    known = ("profiler", "dir", "torch_profiler_dir", *TORCH_OPTIONS)
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ConfigError(f"{name}: unknown key '{unknown[0]}'")
    idle = [key for key in given if key in TORCH_OPTIONS]
    if idle and notices is not None:
        notices.append(
            f"--profiler-config: {', '.join(idle)} does nothing here: profiles are of the engine's "
            "Python calls"
        )
    return ProfilerConfig(folder=folder)
