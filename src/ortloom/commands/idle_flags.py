"""Flags that do nothing by what stands beside them: each gets a line, as none is passed over.

What would be wrong, and not only idle, is in `commands.contradictions`.
"""

from collections.abc import Iterator

from ortloom.commands.arguments import Arguments
from ortloom.environment import Environment


def idle_flags(args: Arguments, env: Environment) -> Iterator[str]:
    """Lines to print before start.

    Args:
        args: parsed.
        env: the environment's values.
    """
    if args.get("--uds") is not None:
        for name in ("--host", "--port"):
            if name in args.passed:
                yield f"{name} does nothing: the server listens on --uds {args.get('--uds')}"
    if args.get("--fingerprint-value") is not None and args.get("--fingerprint-mode") != "custom":
        yield "--fingerprint-value does nothing without --fingerprint-mode custom"
    if args.get("--disable-fastapi-docs") and args.get("--enable-offline-docs"):
        yield "--enable-offline-docs does nothing beside --disable-fastapi-docs"
    if args.get("--enable-sleep-mode") and not env.dev_mode:
        yield "--enable-sleep-mode: its routes /sleep and /wake_up need VLLM_SERVER_DEV_MODE=1"
    parsers = ("--reasoning-parser", "--reasoning-config")
    if args.get("--reasoning-effort-budgets") and all(
        args.get(name) in (None, "", "none") for name in parsers
    ):
        yield f"--reasoning-effort-budgets does nothing without {' or '.join(parsers)}"
    if not args.get("--enable-log-requests"):
        yield from _logs(args)


def _logs(args: Arguments) -> Iterator[str]:
    for name in ("--max-log-len", "--no-enable-log-deltas"):
        given = args.passed.get(name.replace("--no-", "--"))
        if given is not None and not given.flag.is_default(given.value):
            yield f"{name} does nothing without --enable-log-requests"
