"""Sampling defaults of a model: generation_config.json of the bundle or of a named folder.

A request's own value always wins; a default is used only for a knob the request leaves out.
"""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec

from ortloom.errors import ConfigError

logger = logging.getLogger(__name__)

GENERATION_CONFIG_NAME = "generation_config.json"

_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty")
_INTS = ("top_k", "max_new_tokens")


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resolved defaults; None = the neutral value.

    `max_new_tokens` caps the output of every request. `secondary_eos_token_ids` end a request with
    the id as stop_reason; the primary ids come from the manifest.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    secondary_eos_token_ids: tuple[int, ...] = ()

    def describe(self) -> str:
        """The values that are not neutral, for the start-up log."""
        values = msgspec.to_builtins(self)
        if not values:
            return "sampling defaults: neutral"
        listed = ", ".join(f"{name}={value}" for name, value in values.items())
        return f"sampling defaults: {listed}"

    @classmethod
    def resolve(
        cls,
        bundle: Path,
        source: str = "auto",
        overrides: dict[str, object] | None = None,
        primary_eos_token_ids: tuple[int, ...] = (),
    ) -> "GenerationDefaults":
        """Read and merge.

        A missing or broken file counts as empty and is not reported as an error.

        Args:
            bundle: the bundle folder, read when `source` is auto.
            source: `auto`, `vllm` (neutral, no secondary stop ids) or a folder.
            overrides: members that replace those of the file; null removes one.
            primary_eos_token_ids: ids that are not repeated among the secondary ones.

        Raises:
            ConfigError: an override has the wrong type, or the named folder does not exist.
        """
        values: dict[str, Any] = {}
        if source == "auto":
            values = _read(bundle)
        elif source != "vllm":
            if not Path(source).is_dir():
                raise ConfigError(f"--generation-config: '{source}' is not a folder")
            values = _read(Path(source))
        picked = _pick(values, strict=False) | _pick(dict(overrides or {}), strict=True)
        ids = picked.pop("eos_token_id", ())
        picked["secondary_eos_token_ids"] = tuple(
            dict.fromkeys(i for i in ids if i not in primary_eos_token_ids)
        )
        return cls(**picked)


def _read(folder: Path) -> dict[str, Any]:
    try:
        loaded = json.loads((folder / GENERATION_CONFIG_NAME).read_text("utf-8"))
    except (OSError, ValueError):
        logger.debug("no usable %s", GENERATION_CONFIG_NAME)
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _is_number(value: object, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _pick(values: dict[str, Any], strict: bool) -> dict[str, Any]:
    """The members that are defaults, with the right types; `strict` refuses wrong ones."""
    picked: dict[str, Any] = {}
    for name, kinds in [(n, (int, float)) for n in _FLOATS] + [(n, int) for n in _INTS]:
        if name not in values:
            continue
        value = values[name]
        if value is None or _is_number(value, kinds):
            picked[name] = value
        elif strict:
            raise ConfigError(f"--override-generation-config: {name} must be a number")
    if "eos_token_id" in values:
        ids = values["eos_token_id"]
        listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
        good = [i for i in listed if _is_number(i, int) and i >= 0]
        if strict and len(good) != len(listed):
            raise ConfigError("--override-generation-config: eos_token_id must be token ids")
        picked["eos_token_id"] = tuple(good)
    return picked
