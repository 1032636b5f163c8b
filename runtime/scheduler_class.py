"""`--scheduler-cls`: a scheduler of the user's own."""

import importlib

from ortloom.errors import ConfigError
from ortloom.runtime.scheduler import Scheduler


def load_scheduler(path: str | None) -> type[Scheduler]:
    """The class of an import path, `package.module.Class` or `package.module:Class`.

    Args:
        path: None = our own.

    Raises:
        ConfigError: no such module or class, or one that is no `Scheduler`.
    """
    if path is None:
        return Scheduler
    module, _, name = path.rpartition(":" if ":" in path else ".")
    if not module or not name:
        raise ConfigError(f"--scheduler-cls: '{path}' is not of the form package.module.Class")
    try:
        found: object = getattr(importlib.import_module(module), name)
    except Exception as error:  # the module is foreign: it may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"--scheduler-cls: cannot import '{path}' ({reason})") from error
    if not isinstance(found, type) or not issubclass(found, Scheduler):
        raise ConfigError(
            f"--scheduler-cls: '{path}' is not a subclass of ortloom.runtime.scheduler.Scheduler"
        )
    return found
