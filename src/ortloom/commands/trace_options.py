"""The flags about traces."""

from collections.abc import Iterator

from ortloom.commands.arguments import Arguments
from ortloom.config import TraceConfig
from ortloom.errors import ConfigError

_KINDS = ("model", "worker", "all")


def trace_contradictions(args: Arguments) -> Iterator[str]:
    """Details of traces that go nowhere."""
    if args.get("--collect-detailed-traces") and args.get("--otlp-traces-endpoint") is None:
        yield "--collect-detailed-traces needs --otlp-traces-endpoint"


def trace_config(args: Arguments) -> TraceConfig | None:
    """What the flags ask for; None = no traces.

    Raises:
        ConfigError: an unknown kind of detail, or an empty endpoint.
    """
    endpoint = args.get("--otlp-traces-endpoint")
    if endpoint is None:
        return None
    if not str(endpoint).strip():
        raise ConfigError("argument --otlp-traces-endpoint: needs the collector's address")
    given = args.get("--collect-detailed-traces")
    kinds = (
        [kind for item in given for kind in str(item).split(",")] if isinstance(given, list) else []
    )
    for kind in kinds:
        if kind not in _KINDS:
            raise ConfigError(
                f"argument --collect-detailed-traces: invalid choice: '{kind}' "
                f"(choose from {', '.join(_KINDS)}, or several with commas)"
            )
    return TraceConfig(
        endpoint=str(endpoint),
        model="model" in kinds or "all" in kinds,
        worker="worker" in kinds or "all" in kinds,
    )
