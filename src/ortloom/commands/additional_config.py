"""--additional-config: our own engine options as one JSON object.

Its members are the flags that other servers do not have, without their dashes:
`{"threads": 4, "provider": "cpu"}` is `--threads 4 --provider cpu`. A flag that is given beside it
wins.
"""

from ortloom.commands.arguments import Arguments, Passed
from ortloom.commands.values import parse_value
from ortloom.errors import ConfigError
from ortloom.flags import Flag, FlagTable

OWN = (
    "--provider",
    "--require-provider",
    "--threads",
    "--cpu-affinity",
    "--quant",
    "--bundle-cache",
    "--verify",
)

NAME = "--additional-config"


def expand_additional_config(args: Arguments, table: FlagTable) -> None:
    """Add the members to `args`.

    Raises:
        ConfigError: no object, an unknown member, or a value that does not fit.
    """
    value = args.get(NAME)
    if value is None:
        return
    if not isinstance(value, dict):
        raise ConfigError(f"argument {NAME}: must be a JSON object")
    for key, given in value.items():
        name = "--" + str(key).replace("_", "-").removeprefix("--")
        if name not in OWN:
            known = ", ".join(own.removeprefix("--").replace("-", "_") for own in OWN)
            raise ConfigError(f"argument {NAME}: unknown member '{key}' (known: {known})")
        if name not in args.passed:
            flag = table.by_name(name)
            args.passed[name] = Passed(flag, _value(flag, given), f"{NAME}.{key}")


def _value(flag: Flag, given: object) -> object:
    if flag.kind == "flag":
        if not isinstance(given, bool):
            raise ConfigError(f"argument {NAME}: {flag.name} must be true or false")
        return given
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ConfigError(f"argument {NAME}: {flag.name} takes a string or a number")
    return parse_value(flag, str(given))
