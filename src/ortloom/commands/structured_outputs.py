"""Grammar settings of the command line: `--structured-outputs-config`, its older spellings, and
`--enable-jump-forward`, which VT_ENABLE_JUMP_FORWARD overrides."""

from typing import Any

from ortloom.commands.arguments import Arguments, Passed
from ortloom.config import StructuredOutputsConfig
from ortloom.environment import Environment
from ortloom.errors import ConfigError
from ortloom.flags import FlagTable
from ortloom.runtime.grammars.select import BACKENDS, check_options

_FLAG = "--structured-outputs-config"
_OLD = "--guided-decoding-"
_SWITCHES = ("disable_any_whitespace", "disable_additional_properties")
_ELSEWHERE = {
    "reasoning_parser": "--reasoning-parser",
    "reasoning_parser_plugin": "--reasoning-parser-plugin",
}
_WITHOUT_EFFECT = {
    "disable_fallback": "auto never tries another backend",
    "enable_in_reasoning": "constraints start where reasoning ends",
}


def with_reasoning_flags(args: Arguments, table: FlagTable) -> Arguments:
    """The arguments with the reasoning members of `--structured-outputs-config` as the flags of
    their own that they are another spelling of.

    Raises:
        ConfigError: both spellings are given and differ.
    """
    entry = args.passed.get(_FLAG)
    if entry is None or not isinstance(entry.value, dict):
        return args
    rest = dict(entry.value)
    moved: dict[str, Passed] = {}
    for key, name in _ELSEWHERE.items():
        value = rest.pop(key, None)
        if value in ("", None):
            continue
        known = args.passed.get(name)
        if known is not None and known.value != value:
            raise ConfigError(f"{_FLAG}.{key} ({value}) contradicts {name} ({known.value})")
        moved[name] = Passed(table.by_name(name), value, f"{entry.typed} ({key})")
    kept = Passed(entry.flag, rest, entry.typed)
    return Arguments({**args.passed, **moved, _FLAG: kept}, args.positionals, args.warnings)


def structured_outputs(
    args: Arguments, env: Environment, notices: list[str]
) -> StructuredOutputsConfig:
    """The settings.

    Args:
        args: parsed.
        env: the environment's values.
        notices: lines to show at start; more are added.

    Raises:
        ConfigError: an unknown key or backend, a value of a wrong type, two spellings that differ,
            or a backend whose package is not installed.
    """
    given = args.get(_FLAG)
    given = dict(given) if isinstance(given, dict) else {}
    for key, reason in _WITHOUT_EFFECT.items():
        if _switch(given, key):
            notices.append(f"{_FLAG}.{key} does nothing here: {reason}")
        given.pop(key, None)
    backend = given.pop("backend", None)
    if backend is not None and backend not in BACKENDS:
        raise ConfigError(
            f"argument {_FLAG}: backend must be one of {', '.join(BACKENDS)}, got '{backend}'"
        )
    old = args.get(f"{_OLD}backend") if f"{_OLD}backend" in args.passed else None
    if None not in (backend, old) and backend != old:
        raise ConfigError(f"{_FLAG}.backend ({backend}) contradicts {_OLD}backend ({old})")
    chosen: Any = backend or old or "auto"  # one of BACKENDS: both were checked
    switches = {}
    for key in _SWITCHES:
        asked = _switch(given, key)
        given.pop(key, None)
        switches[key] = asked or args.get(_OLD + key.replace("_", "-")) is True
    if given:
        raise ConfigError(f"argument {_FLAG}: unknown key '{sorted(map(str, given))[0]}'")
    jump = args.get("--enable-jump-forward") is True
    if env.jump_forward is not None:
        jump = env.jump_forward
    config = StructuredOutputsConfig(
        backend=chosen,
        disable_any_whitespace=switches["disable_any_whitespace"],
        disable_additional_properties=switches["disable_additional_properties"],
        jump_forward=jump,
        load_early=jump or chosen != "auto" or any(switches.values()),
    )
    check_options(config)
    return config


def _switch(given: dict[str, object], key: str) -> bool:
    value = given.get(key)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"argument {_FLAG}: {key} must be true or false, got {value!r}")
    return value is True
