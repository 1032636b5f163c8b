"""Grammar-constrained output: compiling constraints and following them token by token.

The grammar engine is llguidance. The tokenizer's byte table is read from the bundle's tokenizer
file at the first constrained request, so an engine that sees none never pays for it. Compiled
grammars are kept in a small LRU; each request follows its own copy.

`GrammarCompiler` may be used from several threads: requests are checked beside the running engine.
A request's state is a function of its output tokens only: it catches up before each use, so
preemption and recompute need no rollback.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ortloom.errors import InvalidRequest
from ortloom.runtime.grammar_source import compile_limits, grammar_text
from ortloom.runtime.grammar_trial import GrammarTrial
from ortloom.runtime.logits_processors import packed_bits
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.runtime.vocabulary_bytes import VocabularyBytes

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

CACHED_GRAMMARS = 64

FREE_SECONDS = 1.0
SECONDS_A_TOKEN = 0.02
"""Processor time a request's grammar may take in all: every step it takes holds all others up."""

_PARAM = "structured_outputs"
_LONGEST_REASON = 400
_NO_EXTENSION = "NoExtension"  # how the engine says that no token can come first


class GrammarState:
    """One request's place in its grammar.

    Args:
        matcher: at the start of the grammar; owned by this object.
        end_ids: ids that end the request; allowed whenever the grammar may stop.
        vocab_size: V.
        clock: processor seconds of this thread.
    """

    __slots__ = (
        "_bits",
        "_clock",
        "_consumed",
        "_end_bits",
        "_end_ids",
        "_ended",
        "_matcher",
        "_spent",
        "_vocab_size",
        "error",
    )

    def __init__(
        self,
        matcher: "LLMatcher",
        end_ids: Sequence[int],
        vocab_size: int,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._spent = 0.0
        self._matcher = matcher
        self._end_ids = np.array(sorted(set(end_ids)), dtype=np.int64)
        self._vocab_size = vocab_size
        self._bits: NDArray[np.int32] = np.zeros((vocab_size + 31) // 32, np.int32)
        self._end_bits = packed_bits(self._end_ids, vocab_size)
        self._consumed = 0
        self._ended = False
        self.error: str | None = None

    @property
    def complete(self) -> bool:
        """True when only an end token can follow."""
        return self._ended or bool(self._matcher.is_stopped())

    def advance(self, output: Sequence[int]) -> None:
        """Consume the output tokens not seen yet; sets `error` when one does not fit."""
        with self._measured():
            self._advance(output)

    def _advance(self, output: Sequence[int]) -> None:
        for token in output[self._consumed :]:
            self._consumed += 1
            if self._ended or self.error is not None:
                continue
            if token in self._end_ids and self._matcher.is_accepting():
                self._ended = True
            elif not self._matcher.consume_token(token):
                self.error = _stopped(self._matcher)

    def mask(self, row: NDArray[np.float32]) -> None:
        """Set the logits [V] f32 of every token the grammar does not allow next to -inf.

        Sets `error` when the grammar fails, or takes more time than a request may have.
        """
        bits = self.bitmask()
        if self.error is None:
            allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: self._vocab_size]
            np.copyto(row, np.float32(-np.inf), where=allowed == 0)

    def bitmask(self) -> NDArray[np.int32]:
        """The tokens the grammar allows next: [ceil(V / 32)], bit i % 32 of word i // 32.

        Valid until the next call, which writes the same array. Sets `error` as `mask` does.
        """
        with self._measured():
            self._mask()
        return self._bits

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Add up the time of a block, and keep a panic of the grammar engine to this request."""
        start = self._clock()
        try:
            yield
        except BaseException as error:
            if not _is_panic(error):
                raise
            self.error = "The constraint cannot be followed further."
        self._spent += self._clock() - start
        if self._spent > FREE_SECONDS + SECONDS_A_TOKEN * self._consumed:
            self.error = self.error or "The constraint is too expensive to follow."

    def _mask(self) -> None:
        if self.complete:
            self._bits[:] = self._end_bits
        else:
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
            if self._matcher.is_accepting():
                self._bits |= self._end_bits
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            self.error = _stopped(self._matcher)


def _is_panic(error: BaseException) -> bool:
    """A failed assertion inside the grammar engine; its class is no `Exception` and has no name
    that could be imported."""
    return type(error).__name__ == "PanicException"


def _stopped(matcher: "LLMatcher") -> str:
    return f"The constraint cannot be followed further: {_one_line(matcher.get_error())}"


def _one_line(text: str) -> str:
    return " ".join(text.replace("<non-verbose/>", "").split())[:_LONGEST_REASON]


class GrammarCompiler:
    """Compiles constraints against one tokenizer.

    Args:
        tokenizer_file: the bundle's tokenizer.json; None = constraints are refused.
        vocab_size: number of logits columns, V.
        eos_token_ids: the model's primary end ids.
        trial: where constraints that nobody vouches for are tried out first; None = nowhere.
    """

    def __init__(
        self,
        tokenizer_file: Path | None,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        trial: GrammarTrial | None = None,
    ) -> None:
        self._file = tokenizer_file
        self.vocabulary = VocabularyBytes(tokenizer_file, vocab_size)
        self._trial = trial
        self._vocab_size = vocab_size
        self._eos = [t for t in eos_token_ids if 0 <= t < vocab_size]
        self._tokenizer: LLTokenizer | None = None
        self._cache: OrderedDict[StructuredOutput, LLMatcher] = OrderedDict()
        self._cache_lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()

    def validate(self, constraint: StructuredOutput) -> None:
        """Try a constraint out and compile it, so that `start` finds it ready.

        Raises:
            InvalidRequest: as `compile`, or it takes too much time or memory.
        """
        with self._cache_lock:
            known = constraint in self._cache
        if not known and self._trial is not None:
            self._trial.check(constraint)
        self.compile(constraint)

    def close(self) -> None:
        """End the trial's process."""
        if self._trial is not None:
            self._trial.close()

    def compile(self, constraint: StructuredOutput) -> "LLMatcher":
        """A fresh matcher at the start of the grammar.

        Raises:
            InvalidRequest: the constraint cannot be compiled, is over a limit, or allows nothing.
        """
        with self._cache_lock:
            found = self._cache.get(constraint)
            if found is not None:
                self._cache.move_to_end(constraint)
                return found.deep_copy()
        from llguidance import LLMatcher

        matcher = LLMatcher(
            self._load_tokenizer(), grammar_text(constraint), log_level=0, limits=compile_limits()
        )
        self._check_satisfiable(matcher, constraint)
        with self._cache_lock:
            self._cache[constraint] = matcher
            if len(self._cache) > CACHED_GRAMMARS:
                self._cache.popitem(last=False)
            return matcher.deep_copy()

    def start(self, constraint: StructuredOutput, end_ids: Sequence[int]) -> GrammarState:
        """The state of a new request.

        Args:
            constraint: what the output must look like.
            end_ids: the request's own end ids; the model's are added.

        Raises:
            InvalidRequest: as `compile`.
        """
        matcher = self.compile(constraint)
        ends = [t for t in end_ids if 0 <= t < self._vocab_size]
        return GrammarState(matcher, [*ends, *self._eos], self._vocab_size)

    def _load_tokenizer(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        with self._tokenizer_lock:
            if self._tokenizer is None:
                if self._file is None:
                    raise InvalidRequest("The bundle has no tokenizer, so no grammar.", _PARAM)
                text = self._file.read_text(encoding="utf-8")
                eos = self._eos or None
                self._tokenizer = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=eos)
            return self._tokenizer

    def _check_satisfiable(self, matcher: "LLMatcher", constraint: StructuredOutput) -> None:
        probe = matcher.deep_copy()
        empty = False
        if not probe.is_error():
            bits: NDArray[np.uint8] = np.frombuffer(probe.compute_bitmask(), np.uint8)
            empty = not bits.any() and not probe.is_accepting()
        reason = _one_line(probe.get_error()) if probe.is_error() else ""
        if empty or reason.startswith(_NO_EXTENSION):
            raise InvalidRequest(
                f"The {constraint.kind} constraint allows no output at all.", _PARAM
            )
        if reason:
            raise InvalidRequest(f"Invalid {constraint.kind} constraint: {reason}", _PARAM)
