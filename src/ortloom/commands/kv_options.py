"""Flags about what the KV cache tells others, and about scales."""

import msgspec

from ortloom.commands.reader import Reader
from ortloom.config import KVEventsConfig
from ortloom.errors import ConfigError

PUBLISHERS = ("zmq", "null")


def kv_events(read: Reader) -> KVEventsConfig | None:
    """Where events go; None = nowhere.

    Raises:
        ConfigError: an unknown member, or a value of the wrong type.
    """
    value = read.args.get("--kv-events-config")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _wrong("must be a JSON object")
    members = dict(value)
    enabled = members.pop("enable_kv_cache_events", False)
    if not isinstance(enabled, bool):
        raise _wrong("enable_kv_cache_events must be true or false")
    publisher = members.pop("publisher", None)
    if publisher not in (None, *PUBLISHERS):
        raise _wrong(f"publisher must be one of {', '.join(PUBLISHERS)}, got {publisher!r}")
    try:
        config = msgspec.convert(members, KVEventsConfig)
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from None
    if min(config.buffer_steps, config.hwm, config.max_queue_size) < 1:
        raise _wrong("buffer_steps, hwm and max_queue_size must be at least 1")
    return config if enabled and publisher != "null" else None


def _wrong(text: str) -> ConfigError:
    return ConfigError(f"argument --kv-events-config: {text}")


def check_scales(read: Reader, kv_cache_dtype: str, notices: list[str]) -> None:
    """--calculate-kv-scales: scales belong to the 8-bit cache, whose scales are always computed.

    Raises:
        ConfigError: the cache has no scales.
    """
    if not read.get("--calculate-kv-scales", bool, False):
        return
    if kv_cache_dtype != "int8_per_token_head":
        raise ConfigError(
            "argument --calculate-kv-scales: a KV cache of floats has no scales; it goes with "
            "--kv-cache-dtype int8 or one of the 8-bit kinds"
        )
    notices.append(
        "--calculate-kv-scales: scales are computed for every token and head as it is stored, "
        "with this flag and without"
    )
