"""The flags about metrics."""

import re
from collections.abc import Iterator

from ortloom.commands.arguments import Arguments
from ortloom.config import MetricsConfig
from ortloom.environment import Environment
from ortloom.errors import ConfigError

_VERSION = re.compile(r"v?\d+\.\d+(\.\d+)?")


def metrics_contradictions(args: Arguments) -> Iterator[str]:
    """Flags whose work nobody would ever see."""
    for name in ("--kv-cache-metrics", "--enable-mfu-metrics"):
        if args.get(name) and args.get("--disable-log-stats"):
            yield f"{name} contradicts --disable-log-stats"
        if args.get(name) and args.get("--enable-metrics") is False:
            yield f"{name} contradicts --disable-metrics"
    if args.get("--kv-cache-metrics-sample") not in (None, 0.01) and not args.get(
        "--kv-cache-metrics"
    ):
        yield "--kv-cache-metrics-sample needs --kv-cache-metrics"


def metrics_config(args: Arguments, env: Environment) -> MetricsConfig:
    """What the flags and the environment ask for.

    Raises:
        ConfigError: a value is out of range.
    """
    version = args.get("--show-hidden-metrics-for-version")
    if version is not None and _VERSION.fullmatch(str(version)) is None:
        raise ConfigError(
            f"argument --show-hidden-metrics-for-version: must be a version X.Y, got '{version}'"
        )
    sample = args.get("--kv-cache-metrics-sample")
    share = sample if isinstance(sample, float) else MetricsConfig().kv_residency_sample
    if not 0.0 < share <= 1.0:
        raise ConfigError(
            f"argument --kv-cache-metrics-sample: must be above 0 and at most 1, got {share:g}"
        )
    return MetricsConfig(
        serve=args.get("--enable-metrics") is not False,
        hidden_since=None if version is None else str(version),
        per_request=bool(args.get("--enable-per-request-metrics")),
        kv_residency=bool(args.get("--kv-cache-metrics")),
        kv_residency_sample=share,
        costs=bool(args.get("--enable-mfu-metrics")),
        corrupted=env.logging.count_corrupted,
    )
