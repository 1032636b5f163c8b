"""Plugin files: Python that registers parsers when it is run.

A plugin calls `ortloom.models.tool_parsers.registry.register(names, parser)` or the function of
the same name in `ortloom.models.reasoning_parsers.registry`.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path

from ortloom.errors import ConfigError


def run_plugin(path: str | Path, flag: str = "the parser plugin") -> None:
    """Run the file as a module of its own, once for each process that parses.

    Args:
        path: the file.
        flag: who asks for it, for the message.

    Raises:
        ConfigError: the file cannot be read or run; the text says why.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"{flag}: there is no file {str(path)!r}")
    name = f"ortloom_plugin_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{flag}: {str(path)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ConfigError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{flag}: {str(path)!r}: {type(error).__name__}: {error}") from error
