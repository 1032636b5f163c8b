"""What a user changes about a checkpoint before it is exported: its config, where weights lie."""

import json
from pathlib import Path
from typing import Any

import msgspec


class SourceVariation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a source.

    Attributes:
        weights: a folder whose weight files are read in place of the source's own.
        config: a config.json, or a folder with one, read in place of the source's own.
        overrides: members of the config that are replaced; objects are merged.
        dummy: no weights are read; matrices get random values.
    """

    weights: str | None = None
    config: str | None = None
    overrides: dict[str, Any] = {}
    dummy: bool = False

    @property
    def config_file(self) -> Path | None:
        """The config file named, or None."""
        if self.config is None:
            return None
        path = Path(self.config).expanduser()
        return path / "config.json" if path.is_dir() else path

    @property
    def changes_config(self) -> bool:
        """Whether the config differs from the source's own."""
        return self.config is not None or bool(self.overrides)


AS_IT_IS = SourceVariation()


def overridden(config: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """A config with members replaced; objects are merged member by member.

    `rope_scaling` and `rope_theta` also reach configs that keep both in `rope_parameters`.
    """
    changes = dict(overrides)
    known = config.get("rope_parameters")
    if isinstance(known, dict) and ("rope_scaling" in changes or "rope_theta" in changes):
        rope = dict(known)
        scaling = changes.pop("rope_scaling", None)
        if isinstance(scaling, dict):
            rope = {"rope_theta": known.get("rope_theta", 10000.0), **scaling}
        if "rope_theta" in changes:
            rope["rope_theta"] = changes["rope_theta"]
            if "rope_theta" not in config:
                del changes["rope_theta"]
        config = {**config, "rope_parameters": rope}
    return _merged(config, changes)


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = json.loads(json.dumps(old))
    for key, value in new.items():
        known = out.get(key)
        # a scaling is one thing: members of the one before would not fit it
        if isinstance(known, dict) and isinstance(value, dict) and key != "rope_scaling":
            out[key] = _merged(known, value)
        else:
            out[key] = value
    return out
