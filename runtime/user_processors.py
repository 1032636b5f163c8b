"""Logits processors that users bring: classes named at start or found by entry point, and factories
that requests name.

A class is made once, with the size of the vocabulary. For each request it is asked for a function
that changes that request's logits, or None:

    class NoSecondWord:
        def __init__(self, vocab_size: int) -> None: ...
        @classmethod
        def validate_params(cls, params: SamplingParams) -> None: ...   # optional; ValueError = 400
        def new_request(self, params: SamplingParams) -> RowProcessor | None: ...

`params.extra_args` is the request's `vllm_xargs`. A function gets the output's ids so far and the
row of logits [V] f32; it changes the row in place or returns another one. It runs after allowed
ids, bad words, min_tokens and logit bias, and before penalties.

A request names a factory by `logits_processors`; its name must match the server's pattern.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortloom.errors import ConfigError, InvalidRequest, UnsupportedParameter
from ortloom.runtime.sampling_params import LogitsProcessorSpec, SamplingParams

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "ortloom.logits_processors"

RowProcessor = Callable[[Sequence[int], NDArray[np.float32]], NDArray[np.float32] | None]

_PARAM = "logits_processors"


class UserProcessorFailed(Exception):
    """A user's function raised, or returned what is no row of logits."""


class UserProcessors:
    """The processors of a server.

    Args:
        names: classes as `module:Class` or `module.Class`; those of the entry points are added.
        pattern: what the names of requests' factories must match; None = requests name none.
        vocab_size: V.

    Raises:
        ConfigError: a class that cannot be imported or made, or a bad pattern.
    """

    def __init__(self, names: Sequence[str], pattern: str | None, vocab_size: int) -> None:
        self._pattern: re.Pattern[str] | None = None
        if pattern is not None:
            try:
                self._pattern = re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"argument --logits-processor-pattern: {error}") from None
        self._made: list[Any] = []
        for point in installed_points():
            self._made.append(_make(point.value, point.load, vocab_size))
        for name in names:
            self._made.append(_make(name, partial(_import, name), vocab_size))

    def validate(self, params: SamplingParams) -> None:
        """Let each class look at a request's parameters, and look for the factories it names.

        Raises:
            InvalidRequest: a class refuses them, or a factory cannot be used.
            UnsupportedParameter: the server lets requests name none.
        """
        for made in self._made:
            check = getattr(made, "validate_params", None)
            if check is None:
                continue
            try:
                check(params)
            except ValueError as error:
                raise InvalidRequest(str(error), "vllm_xargs") from None
        for spec in params.logits_processors or ():
            self._factory(spec)

    def for_request(self, params: SamplingParams) -> list[RowProcessor]:
        """The functions of a request, in the order of the classes and then of its own names.

        Raises:
            InvalidRequest: one cannot be made.
        """
        found: list[RowProcessor] = []
        for made in self._made:
            function = made.new_request(params)
            if function is not None:
                found.append(function)
        for spec in params.logits_processors or ():
            factory = self._factory(spec)
            try:
                takes = spec.args is not None or spec.kwargs is not None
                made = factory(*(spec.args or ()), **(spec.kwargs or {})) if takes else factory
            except Exception as error:
                raise InvalidRequest(f"'{spec.qualname}' failed: {error}", _PARAM) from None
            found.append(made)
        return found

    def _factory(self, spec: LogitsProcessorSpec) -> Any:
        if self._pattern is None:
            raise UnsupportedParameter(
                "logits_processors needs a server started with --logits-processor-pattern.", _PARAM
            )
        if self._pattern.fullmatch(spec.qualname) is None:
            raise InvalidRequest(
                f"'{spec.qualname}' is no logits processor that this server allows.", _PARAM
            )
        try:
            return _import(spec.qualname)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidRequest(f"'{spec.qualname}' cannot be used: {error}", _PARAM) from None


def installed_points() -> "Iterable[EntryPoint]":
    """The entry points of the group.

    The module that reads them is imported only if some package's file names the group: it takes
    longer to import than all those files to read.
    """
    for folder in sys.path:
        for file in Path(folder or ".").glob("*-info/entry_points.txt"):
            if ENTRY_POINTS.encode() in file.read_bytes():
                from importlib.metadata import entry_points

                return entry_points(group=ENTRY_POINTS)
    return ()


def apply_all(
    functions: Sequence[RowProcessor], output: Sequence[int], row: NDArray[np.float32]
) -> None:
    """Change `row` [V] f32 by each function in turn.

    Raises:
        UserProcessorFailed: one raised, or left NaN or another shape.
    """
    for function in functions:
        try:
            changed = function(output, row)
            if changed is not None:
                row[:] = changed
        except (Exception, SystemExit) as error:  # one that gives up ends its request, no more
            raise UserProcessorFailed(f"a logits processor failed: {error}") from error
        if np.isnan(row).any():
            raise UserProcessorFailed("a logits processor left values that are no numbers")


def _import(name: str) -> Any:
    module, _, attribute = name.replace(":", ".").rpartition(".")
    if not module:
        raise ValueError("the name has no module")
    return getattr(importlib.import_module(module), attribute)


def _make(name: str, load: Callable[[], Any], vocab_size: int) -> Any:
    try:
        made = load()(vocab_size)
        if not callable(getattr(made, "new_request", None)):
            raise TypeError("it has no method new_request")
    except Exception as error:
        raise ConfigError(f"the logits processor '{name}' cannot be used: {error}") from None
    return made
