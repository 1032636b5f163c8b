"""Which grammar engine a server uses, and whether its package is there."""

import importlib.util
from collections.abc import Callable

from ortloom.config import StructuredOutputsConfig
from ortloom.errors import ConfigError
from ortloom.runtime.grammars.backend import GrammarBackend
from ortloom.runtime.grammars.vocabulary import GrammarVocabulary

_PACKAGES: dict[str, tuple[str, str]] = {
    "xgrammar": ("xgrammar", "xgrammar"),
    "outlines": ("outlines_core", "outlines-core"),
    "lm-format-enforcer": ("lmformatenforcer", "lm-format-enforcer"),
}
"""Engines that are not always there: import name and what pip calls it."""

BACKENDS = ("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer")
"""All names; auto is guidance."""

COMPILE_SECONDS: dict[str, float] = {
    "auto": 0.7,
    "guidance": 0.7,
    "xgrammar": 5.0,
    "outlines": 15.0,
    "lm-format-enforcer": 5.0,
}
"""Processor time that compiling one constraint may take, beside what its properties add."""

START_SECONDS: dict[str, float] = {
    "auto": 0.0,
    "guidance": 0.0,
    "xgrammar": 90.0,
    "outlines": 30.0,
    "lm-format-enforcer": 90.0,
}
"""What starting the process that tries constraints out may take beyond the usual: two of the
engines import PyTorch."""

IDLE_SECONDS: dict[str, float] = {
    "auto": 3600.0,
    "guidance": 3600.0,
    "xgrammar": 3600.0,
    "outlines": 600.0,
    "lm-format-enforcer": 3600.0,
}
"""How long that process waits for work before it ends; one that is slow to start stays longer."""

_GIB = 1024**3
MEMORY_BYTES: dict[str, int] = {
    "auto": 2 * _GIB,
    "guidance": 2 * _GIB,
    "xgrammar": 16 * _GIB,
    "outlines": 4 * _GIB,
    "lm-format-enforcer": 16 * _GIB,
}
"""Address space of the process that tries constraints out; PyTorch's libraries count in two."""


def check_options(options: StructuredOutputsConfig) -> None:
    """Refuse an engine that is not installed, or that cannot do what is asked of it.

    Raises:
        ConfigError: which package is missing, or which switch does not go with the engine.
    """
    backend = options.backend
    package = _PACKAGES.get(backend)
    if package is not None and importlib.util.find_spec(package[0]) is None:
        raise ConfigError(
            f"the grammar backend '{backend}' needs the package {package[1]}, which is not "
            f"installed: pip install {package[1]}"
        )
    if options.disable_any_whitespace and backend == "lm-format-enforcer":
        raise ConfigError(
            "disable_any_whitespace cannot be had with the grammar backend 'lm-format-enforcer'"
        )


def make_backend(options: StructuredOutputsConfig, vocabulary: GrammarVocabulary) -> GrammarBackend:
    """The engine of a server.

    Raises:
        InvalidRequest: the bundle has no tokenizer.
    """
    return _FACTORIES[options.backend](vocabulary)


def _guidance(vocabulary: GrammarVocabulary) -> GrammarBackend:
    from ortloom.runtime.grammars.guidance import GuidanceBackend

    return GuidanceBackend(vocabulary)


def _xgrammar(vocabulary: GrammarVocabulary) -> GrammarBackend:
    from ortloom.runtime.grammars.xgrammar import XGrammarBackend

    return XGrammarBackend(vocabulary)


def _outlines(vocabulary: GrammarVocabulary) -> GrammarBackend:
    from ortloom.runtime.grammars.outlines import OutlinesBackend

    return OutlinesBackend(vocabulary)


def _format_enforcer(vocabulary: GrammarVocabulary) -> GrammarBackend:
    from ortloom.runtime.grammars.lm_format_enforcer import FormatEnforcerBackend

    return FormatEnforcerBackend(vocabulary)


_FACTORIES: dict[str, Callable[[GrammarVocabulary], GrammarBackend]] = {
    "auto": _guidance,
    "guidance": _guidance,
    "xgrammar": _xgrammar,
    "outlines": _outlines,
    "lm-format-enforcer": _format_enforcer,
}
