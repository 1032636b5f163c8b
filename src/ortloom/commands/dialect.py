"""What this build says to flags whose work it does not do: a notice line, or a refusal."""

from ortloom.commands.arguments import Arguments, Passed
from ortloom.errors import ConfigError
from ortloom.flags import FlagTable


def apply_dialect(args: Arguments, table: FlagTable) -> list[str]:
    """Judge every given flag by its class.

    Returns:
        One line for each flag that was taken without effect, and for each deprecated name.

    Raises:
        ConfigError: a flag asks for something this build does not do.
    """
    notices: list[str] = []
    for entry in args.passed.values():
        flag = entry.flag
        typed = entry.typed.startswith("-")
        deprecated = flag.instead and flag.class_ == "works" and typed
        if deprecated and not flag.is_default(entry.value):
            notices.append(f"{entry.typed} is deprecated: use {flag.instead}")
        if flag.class_ == "inert" or (flag.class_ == "notice" and not flag.is_default(entry.value)):
            notices.append(notice(entry, table))
        elif flag.class_ in ("later", "refuse") and not flag.is_default(entry.value):
            raise ConfigError(refusal(entry, table))
    return notices


def notice(entry: Passed, table: FlagTable) -> str:
    """The line for a flag that does nothing: as typed, why it was taken, why nothing happens."""
    return (
        f"{entry.typed}: taken only so that published commands run; it does nothing here: "
        f"{table.reason(entry.flag)}"
    )


def refusal(entry: Passed, table: FlagTable) -> str:
    """The message for a flag that asks for something this build does not do."""
    known = "known, but not in this build yet"
    head = known if entry.flag.class_ == "later" else "cannot be had here"
    return f"argument {entry.typed}: {head}: {table.reason(entry.flag)}"
