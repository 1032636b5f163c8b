"""--limit-mm-per-prompt and --language-model-only: how many media items a prompt may have.

This build takes no media at all, so every limit is as good as 0 here. The values are checked, so
that a command line that works elsewhere is either right or refused, and who allows media is told.
"""

from ortloom.commands.reader import Reader
from ortloom.errors import ConfigError

KINDS = ("image", "video", "audio")

OPTIONS = {
    "image": ("count", "width", "height"),
    "video": ("count", "num_frames", "width", "height"),
    "audio": ("count", "length"),
}
"""Members of the object form of each kind."""


def check_media_limits(read: Reader, notices: list[str]) -> dict[str, int]:
    """Check the limits.

    Args:
        read: the flags.
        notices: lines to print before start; one is added where a limit allows media.

    Returns:
        Most items of each kind that is named; all kinds at 0 with --language-model-only.

    Raises:
        ConfigError: an unknown kind or option, or a number that is none or below 0.
    """
    limits: dict[str, int] = {}
    value = read.args.get("--limit-mm-per-prompt")
    if value is not None and not isinstance(value, dict):
        raise _wrong("must be a JSON object")
    for name, asked in (value or {}).items():
        kind = str(name).removesuffix("s")
        if kind not in KINDS:
            raise _wrong(f"unknown kind '{name}' (known: {', '.join(KINDS)})")
        limits[kind] = _count(kind, asked)
    if read.get("--language-model-only", bool, False):
        limits = dict.fromkeys(KINDS, 0)
    allowed = [kind for kind in KINDS if limits.get(kind)]
    if allowed:
        notices.append(
            "--limit-mm-per-prompt: this build takes text only, so a prompt may have 0 of "
            f"{', '.join(allowed)}, whatever is allowed here"
        )
    return limits


def _count(kind: str, asked: object) -> int:
    options = asked if isinstance(asked, dict) else {"count": asked}
    count = 999
    for name, number in options.items():
        if name not in OPTIONS[kind]:
            raise _wrong(f"unknown option '{name}' of {kind} (known: {', '.join(OPTIONS[kind])})")
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise _wrong(f"{kind}: '{name}' must be a whole number of 0 or more, got {number!r}")
        if name == "count":
            count = number
    return count


def _wrong(text: str) -> ConfigError:
    return ConfigError(f"argument --limit-mm-per-prompt: {text}")
