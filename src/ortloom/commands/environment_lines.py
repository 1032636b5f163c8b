"""What a start says about variables that change nothing."""

from ortloom.commands.arguments import Arguments
from ortloom.environment import Environment
from ortloom.errors import ConfigError
from ortloom.logs import say


def warn_about_environment(env: Environment, args: Arguments) -> None:
    """Print a line for each variable that is unknown, or known and not honoured.

    Raises:
        ConfigError: one is unknown, and --fail-on-environ-validation is given.
    """
    if env.unknown and args.get("--fail-on-environ-validation"):
        raise ConfigError(f"unknown environment variables: {', '.join(env.unknown)}")
    for name in env.unknown:
        say(f"warning: unknown environment variable {name}")
    for name in env.without_effect:
        say(f"warning: {name} is set; it is known, but not honoured in this build yet")
