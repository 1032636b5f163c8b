"""`--help`, `--help=all`, `--help=<group or word>` of a command with a flag table."""

import textwrap
from collections.abc import Mapping

from ortloom.flags import GROUPS, Flag, FlagTable

USAGE = "usage: ortloom serve [model] [options]"
ABOUT = "Serve a bundle, a checkpoint folder or a .gguf file over the OpenAI HTTP API."

_TIP = (
    "Structured options take one JSON document or dotted keys:\n"
    "  --override-generation-config '{\"temperature\": 0.5}'\n"
    "  --override-generation-config.temperature 0.5\n"
)
_FOOTER = (
    "  --help=all          every option\n"
    "  --help=<group>      the options of one group, as --help={group}\n"
    "  --help=<word>       every option whose name has the word, as --help={word}\n"
)
_NOT_HERE = {
    "later": "not in this build yet",
    "refuse": "not available here",
    "inert": "accepted without effect",
    "notice": "accepted without effect",
}


def help_text(
    word: str | None,
    table: FlagTable,
    groups: Mapping[str, str] = GROUPS,
    usage: str = USAGE,
    about: str = ABOUT,
) -> str:
    """The text of one help request.

    Args:
        word: what was asked for; None is the overview.
        table: the command's flags.
        groups: what each of its groups is, in the order they are shown.
        usage: first line.
        about: what the command does.
    """
    if word is None or _plain(word) == "listgroup":
        return _overview(table, groups, usage, about)
    if _plain(word) in ("all", "page"):
        parts = [usage, ""]
        for group, text in groups.items():
            parts += [f"{group}: {text}", *_rows(_of(group, table), table), ""]
        return "\n".join([*parts, _TIP])
    for group, text in groups.items():
        if _plain(group) == _plain(word):
            rows = _rows(_of(group, table), table)
            return "\n".join([f"{group}: {text}", *rows, "", _TIP])
    fits = [flag for flag in table.flags if _matches(flag, _plain(word))]
    if not fits:
        return f"no group or option matches '{word}'; see --help or --help=all\n"
    return "\n".join([f"options matching '{word}':", *_rows(fits, table)]) + "\n"


def _plain(word: str) -> str:
    return word.lower().replace("_", "-").removeprefix("--")


def _matches(flag: Flag, word: str) -> bool:
    names = (flag.name, flag.negative or "", *flag.aliases)
    return any(word in name.lower() for name in names)


def _of(group: str, table: FlagTable) -> list[Flag]:
    return [flag for flag in table.flags if flag.group == group]


def _overview(table: FlagTable, groups: Mapping[str, str], usage: str, about: str) -> str:
    names = [flag.name.removeprefix("--") for flag in table.flags]
    group = "ModelConfig" if "ModelConfig" in groups else next(iter(groups))
    word = "max-num-seqs" if "max-num-seqs" in names else names[0]
    width = max(map(len, groups)) + 2
    lines = [
        usage,
        "",
        about,
        "",
        "Config Groups:",
        *(f"  {group:<{width}}{text}" for group, text in groups.items()),
        "",
        _FOOTER.format(group=group, word=word),
    ]
    return "\n".join(lines)


def _rows(flags: list[Flag], table: FlagTable) -> list[str]:
    lines: list[str] = []
    for flag in sorted(flags, key=lambda flag: flag.name):
        names = ", ".join([*flag.aliases, flag.name, *([flag.negative] if flag.negative else [])])
        lines.append(f"  {names}{_operand(flag)}")
        text = flag.help or f"{_NOT_HERE[flag.class_]}: {table.reason(flag)}"
        shown = "" if flag.default in (None, False, "", {}, []) else f" (default: {flag.default})"
        lines += textwrap.wrap(text + shown, 96, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return lines


def _operand(flag: Flag) -> str:
    if flag.kind in ("switch", "flag"):
        return ""
    if flag.kind == "choice":
        return " {" + ",".join(flag.offered) + "}"
    name = flag.name.lstrip("-").split("-")[-1].upper()
    return f" {name} [{name} ...]" if flag.kind in ("list", "ints") else f" {name}"
