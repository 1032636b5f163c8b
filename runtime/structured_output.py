"""Grammar-constrained output: compiling constraints and following them token by token.

The grammar engine is llguidance, or one of `grammars/` that the server was told to use. The
tokenizer's byte table is read from the bundle's tokenizer file at the first constrained request, or
before it in a moment without work. Compiled grammars are kept in a small LRU; each request
follows its own copy.

`GrammarCompiler` may be used from several threads: requests are checked beside the running engine.
A request's state is a function of its output tokens only: it catches up before each use, so
preemption and recompute need no rollback.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortloom.config import StructuredOutputsConfig
from ortloom.errors import InvalidRequest
from ortloom.runtime.grammar_trial import GrammarTrial
from ortloom.runtime.grammars.backend import GrammarBackend, GrammarMatcher
from ortloom.runtime.grammars.select import make_backend
from ortloom.runtime.grammars.vocabulary import GrammarVocabulary
from ortloom.runtime.logits_processors import packed_bits
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.runtime.vocabulary_bytes import VocabularyBytes

CACHED_GRAMMARS = 64

FREE_SECONDS = 1.0
SECONDS_A_TOKEN = 0.02
"""Processor time a request's grammar may take in all: every step it takes holds all others up."""

SLOW_SECONDS = 0.001
"""A call that takes longer has the time of the following ones measured."""

_PARAM = "structured_outputs"
_LONGEST_REASON = 400
_NO_EXTENSION = "NoExtension"  # how the engine says that no token can come first


class GrammarState:
    """One request's place in its grammar.

    Args:
        matcher: at the start of the grammar; owned by this object.
        end_ids: ids that end the request; allowed whenever the grammar may stop.
        vocab_size: V.
        clock: processor seconds of this thread, read at every call; None = once one was slow.

    Attributes:
        address: where the words that `bitmask` writes are.
        error: why the request cannot go on, or None.
    """

    __slots__ = (
        "_bits",
        "_clock",
        "_consumed",
        "_end_bits",
        "_end_ids",
        "_ended",
        "_masked",
        "_matcher",
        "_precise",
        "_spent",
        "_vocab_size",
        "address",
        "error",
    )

    def __init__(
        self,
        matcher: GrammarMatcher,
        end_ids: Sequence[int],
        vocab_size: int,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._precise = clock is not None
        self._clock = clock or time.thread_time
        self._spent = 0.0
        self._matcher = matcher
        self._end_ids = frozenset(end_ids)
        self._vocab_size = vocab_size
        self._bits: NDArray[np.int32] = np.zeros((vocab_size + 31) // 32, np.int32)
        self.address: int = self._bits.ctypes.data
        self._masked = -1  # output tokens the bits are valid after
        self._end_bits = packed_bits(np.array(sorted(self._end_ids), np.int64), vocab_size)
        self._consumed = 0
        self._ended = False
        self.error: str | None = None

    @property
    def complete(self) -> bool:
        """True when only an end token can follow."""
        return self._ended or bool(self._matcher.is_stopped())

    def advance(self, output: Sequence[int]) -> None:
        """Consume the output tokens not seen yet; sets `error` when one does not fit."""
        begun = self._begin()
        try:
            self._advance(output)
        except BaseException as error:
            self._failed(error)
        self._end(begun)

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
        begun = self._begin()
        try:
            self._mask()
        except BaseException as error:
            self._failed(error)
        self._end(begun)
        return self._bits

    def _begin(self) -> float:
        return self._clock() if self._precise else time.perf_counter()

    def _end(self, begun: float) -> None:
        """Add up the time of a call. Reading a thread's processor time costs as much as following
        a common grammar, so it is done once a call has been slow, whatever the reason."""
        if not self._precise:
            self._precise = time.perf_counter() - begun > SLOW_SECONDS
            return
        self._spent += self._clock() - begun
        if self._spent > FREE_SECONDS + SECONDS_A_TOKEN * self._consumed:
            self.error = self.error or "The constraint is too expensive to follow."

    def _failed(self, error: BaseException) -> None:
        """Keep a panic of the grammar engine to this request."""
        if not _is_panic(error):
            raise error
        self.error = "The constraint cannot be followed further."

    def forced(self) -> int | None:
        """The one token that can come next, or None if there are several or none.

        Sets `error` as `mask` does; None then.
        """
        if self._ended:
            return None
        words = self.bitmask()
        if self.error is not None:
            return None
        (places,) = np.nonzero(words)
        if len(places) != 1:
            return None
        word = int(words[places[0]]) & 0xFFFFFFFF
        if word & (word - 1):
            return None
        return int(places[0]) * 32 + word.bit_length() - 1

    def _mask(self) -> None:
        if self._masked == self._consumed:
            return
        if self.complete:
            self._bits[:] = self._end_bits
        else:
            self._matcher.unsafe_compute_mask_ptr(self.address, self._bits.nbytes)
            if self._matcher.is_accepting():
                self._bits |= self._end_bits
        self._masked = self._consumed
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            self.error = _stopped(self._matcher)


def _is_panic(error: BaseException) -> bool:
    """A failed assertion inside the grammar engine; its class is no `Exception` and has no name
    that could be imported."""
    return type(error).__name__ == "PanicException"


def _stopped(matcher: GrammarMatcher) -> str:
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
        options: the grammar engine, and what holds for all constraints.
    """

    def __init__(
        self,
        tokenizer_file: Path | None,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        trial: GrammarTrial | None = None,
        options: StructuredOutputsConfig | None = None,
    ) -> None:
        self.vocabulary = VocabularyBytes(tokenizer_file, vocab_size)
        self._trial = trial
        self._options = options or StructuredOutputsConfig()
        self._vocab_size = vocab_size
        self._vocabulary = GrammarVocabulary(tokenizer_file, vocab_size, eos_token_ids)
        self._backend: GrammarBackend | None = None
        self._backend_lock = threading.Lock()
        self._cache: OrderedDict[StructuredOutput, GrammarMatcher] = OrderedDict()
        self._cache_lock = threading.Lock()
        self._new_lock = threading.Lock()

    def load(self) -> None:
        """Read the byte table now, instead of at the first constraint; the trial's process, if
        there is one, does so at the same time.

        Raises:
            InvalidRequest: there is no tokenizer.
        """
        if self._trial is not None:
            self._trial.start()
        self._engine()

    def begin_to_load(self) -> None:
        """As `load`, if there is a tokenizer, in a thread of its own.

        The trial's process is started by the caller's thread, since it ends with the thread that
        started it.
        """
        if not self._vocabulary.known:
            return
        if self._trial is not None:
            self._trial.start()
        threading.Thread(target=self._engine, name="ortloom-grammars", daemon=True).start()

    def validate(self, constraint: StructuredOutput) -> None:
        """Try a constraint out and compile it, so that `start` finds it ready.

        Raises:
            InvalidRequest: as `compile`, or it takes too much time or memory.
        """
        constraint = self._effective(constraint)
        if self._knows(constraint):
            return
        with self._new_lock:  # samples of one request come together and share what it is made into
            if self._knows(constraint):
                return
            if self._trial is not None:
                if self._backend is None:
                    self.load()
                self._trial.check(constraint)
            self.compile(constraint)

    def _knows(self, constraint: StructuredOutput) -> bool:
        """Whether a constraint is compiled; it is then the last to be dropped."""
        with self._cache_lock:
            known = constraint in self._cache
            if known:
                self._cache.move_to_end(constraint)
            return known

    def close(self) -> None:
        """End the trial's process."""
        if self._trial is not None:
            self._trial.close()

    def compile(self, constraint: StructuredOutput) -> GrammarMatcher:
        """A fresh matcher at the start of the grammar.

        Raises:
            InvalidRequest: the constraint cannot be compiled, is over a limit, or allows nothing.
        """
        constraint = self._effective(constraint)
        with self._cache_lock:
            found = self._cache.get(constraint)
            if found is not None:
                self._cache.move_to_end(constraint)
                return found.deep_copy()
        matcher = self._engine().compile(constraint)
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
        return GrammarState(matcher, [*ends, *self._vocabulary.end_ids], self._vocab_size)

    def _effective(self, constraint: StructuredOutput) -> StructuredOutput:
        """A constraint with what the server adds to all of them."""
        options = self._options
        if options.disable_any_whitespace and not constraint.disable_any_whitespace:
            constraint = msgspec.structs.replace(constraint, disable_any_whitespace=True)
        if options.disable_additional_properties and not constraint.disable_additional_properties:
            constraint = msgspec.structs.replace(constraint, disable_additional_properties=True)
        return constraint

    def _engine(self) -> GrammarBackend:
        with self._backend_lock:
            if self._backend is None:
                self._backend = make_backend(self._options, self._vocabulary)
                self._vocabulary.tokenizer()
            return self._backend

    def _check_satisfiable(self, matcher: GrammarMatcher, constraint: StructuredOutput) -> None:
        probe = matcher.deep_copy()
        empty = False
        if not probe.is_error():
            bits = np.zeros((self._vocab_size + 31) // 32, np.int32)
            probe.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            empty = not bits.any() and not probe.is_accepting()
        reason = _one_line(probe.get_error()) if probe.is_error() else ""
        if empty or reason.startswith(_NO_EXTENSION):
            raise InvalidRequest(
                f"The {constraint.kind} constraint allows no output at all.", _PARAM
            )
        if reason:
            raise InvalidRequest(f"Invalid {constraint.kind} constraint: {reason}", _PARAM)
