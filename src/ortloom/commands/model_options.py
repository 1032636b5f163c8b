"""Flags about the model's source: what is read, from where, and what is changed about it."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec

from ortloom.commands.reader import Reader
from ortloom.environment import Environment
from ortloom.errors import ConfigError

LOADED = ("auto", "hf", "safetensors", "gguf", "dummy")
"""Values of --load-format that are read; others are refused by name."""

MULTITHREAD = ("enable_multithread_load", "num_threads")
"""Members of --model-loader-extra-config of the usual loader."""


class SourcePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model comes from.

    `token` None = what the hub's library finds, True = the cached login. `overrides` replace
    members of config.json. `bars` = progress as bars on a terminal. `long_context` is a context in
    tokens that may be longer than the model's own, where the user says that it may.
    """

    load_format: str = "auto"
    revision: str | None = None
    token: str | bool | None = None
    download_dir: str | None = None
    ignore_patterns: tuple[str, ...] = ()
    weights: str | None = None
    config_path: str | None = None
    overrides: dict[str, object] = {}
    tokenizer: str | None = None
    tokenizer_revision: str | None = None
    bars: bool = True
    long_context: int | None = None

    @property
    def changes_checkpoint(self) -> str | None:
        """A flag that can only act on a checkpoint while it is exported, or None."""
        if self.load_format == "dummy":
            return "--load-format dummy"
        if self.weights is not None:
            return "--model-weights"
        if self.config_path is not None:
            return "--hf-config-path"
        if self.overrides:
            return "--hf-overrides, --rope-scaling or --rope-theta"
        return None


def source_plan(read: Reader, env: Environment, notices: list[str]) -> SourcePlan:
    """Build it; lines to print before start are added to `notices`.

    Raises:
        ConfigError: a value cannot be had here, or does not exist.
    """
    config_format = read.get("--config-format", str, "auto")
    if config_format not in ("auto", "hf"):
        raise _unknown("--config-format", config_format, ("mistral",), "config.json is read")
    mode = read.get("--tokenizer-mode", str, "auto")
    if mode not in ("auto", "hf"):
        raise _unknown(
            "--tokenizer-mode", mode, OTHER_TOKENIZERS, "tokenizers are read from tokenizer.json"
        )
    load_format = read.get("--load-format", str, "auto")
    if load_format not in LOADED:
        raise _unknown(
            "--load-format",
            load_format,
            OTHER_LOADERS,
            "weights are read as safetensors or GGUF, and mapped",
        )
    _loader_config(read, notices)
    return SourcePlan(
        load_format=load_format,
        revision=read.maybe("--revision", str),
        token=_token(read),
        download_dir=read.maybe("--download-dir", str),
        ignore_patterns=read.strings("--ignore-patterns") or ("original/**/*",),
        weights=read.get("--model-weights", str, "") or None,
        config_path=_existing(read, "--hf-config-path"),
        overrides=_overrides(read),
        tokenizer=read.maybe("--tokenizer", str),
        tokenizer_revision=read.maybe("--tokenizer-revision", str),
        long_context=read.maybe("--max-model-len", int) if env.allow_long_context else None,
        bars=read.get("--use-tqdm-on-load", bool, True),
    )


OTHER_TOKENIZERS = (
    "slow",
    "mistral",
    "deepseek_v32",
    "deepseek_v4",
    "inkling",
    "kimi_k3",
    "cohere",
    "custom",
)
OTHER_LOADERS = (
    "fastsafetensors",
    "instanttensor",
    "mistral",
    "modelexpress",
    "npcache",
    "pt",
    "runai_streamer",
    "runai_streamer_sharded",
    "sharded_state",
    "tensorizer",
    "bitsandbytes",
)


def _unknown(name: str, value: str, known: tuple[str, ...], why: str) -> ConfigError:
    if value in known:
        return ConfigError(f"argument {name}: '{value}' cannot be had here: {why}")
    return ConfigError(f"argument {name}: invalid choice: '{value}' ({why})")


def _loader_config(read: Reader, notices: list[str]) -> None:
    value = read.args.get("--model-loader-extra-config")
    if value is None:
        return
    if not isinstance(value, dict):
        raise ConfigError("argument --model-loader-extra-config: must be a JSON object")
    for key in value:
        if key not in MULTITHREAD:
            raise ConfigError(
                f"argument --model-loader-extra-config: '{key}' is no option of the loader here "
                f"(known: {', '.join(MULTITHREAD)})"
            )
    if value:
        notices.append(
            "--model-loader-extra-config: taken only so that published commands run; it does "
            "nothing here: weights are memory-mapped out of the bundle"
        )


def _token(read: Reader) -> str | bool | None:
    value = read.args.get("--hf-token")
    return value if isinstance(value, str | bool) else None


def _existing(read: Reader, name: str) -> str | None:
    value = read.maybe(name, str)
    if value is not None and not Path(value).expanduser().exists():
        raise ConfigError(f"argument {name}: '{value}' does not exist")
    return value


def _overrides(read: Reader) -> dict[str, object]:
    """--hf-overrides with --rope-scaling and --rope-theta over them."""
    changes: dict[str, object] = {}
    for name, key in (("--hf-overrides", None), ("--rope-scaling", "rope_scaling")):
        value = read.args.get(name)
        if value is None or value == {}:
            continue
        if not isinstance(value, dict):
            raise ConfigError(f"argument {name}: must be a JSON object")
        changes |= value if key is None else {key: value}
    theta = read.maybe("--rope-theta", float)
    if theta is not None:
        if not theta > 0.0:
            raise ConfigError(f"argument --rope-theta: must be above 0, got {theta:g}")
        changes["rope_theta"] = theta
    return changes


def export_options(source: SourcePlan) -> dict[str, str]:
    """Options of `ortloom export` that follow; they are part of what a bundle is found by."""
    options: dict[str, str] = {}
    if source.load_format == "dummy":
        options["load-format"] = "dummy"
    if source.overrides:
        options["hf-overrides"] = json.dumps(source.overrides, sort_keys=True)
    return options


def export_paths(source: SourcePlan, locate: Callable[[str], Path]) -> dict[str, Path]:
    """Options of `ortloom export` that name files; their contents are part of it too.

    Args:
        source: the plan.
        locate: gives the folder of weights that are named.
    """
    paths: dict[str, Path] = {}
    if source.weights is not None:
        paths["model-weights"] = locate(source.weights)
    if source.config_path is not None:
        file = Path(source.config_path).expanduser()
        paths["hf-config-path"] = file / "config.json" if file.is_dir() else file
    return paths
