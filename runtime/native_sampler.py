"""Sampling by the op library: filling its rows from requests, and reading them back.

A request's row lives as long as its sampling state; a step writes only what changes. Everything a
row points to is kept alive here.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ortloom.kernels import sampling
from ortloom.kernels.sampling import LogprobsReport, SampleRow
from ortloom.runtime.logits_processors import packed_bits
from ortloom.runtime.logprobs import LogprobsMode
from ortloom.runtime.messages import TokenDetail, TokenLogprobs
from ortloom.runtime.sampling_state import NOT_FINITE, SamplingState
from ortloom.runtime.scheduler_output import RowResult
from ortloom.runtime.token_draw import inverse_temperature, log_floor

_FLOAT32 = np.dtype(np.float32)


def _kind(mode: LogprobsMode) -> int:
    return sampling.LOGITS if mode.endswith("logits") else sampling.LOGPROBS


class _Report:
    """Arrays that the library writes the entries of one position into.

    Args:
        target: the row's report, filled here.
        kind: LOGPROBS or LOGITS.
        num_top: top tokens, at most V.
        extra: ids listed after them.
    """

    __slots__ = ("_extra", "_ids", "_ranks", "_values")

    def __init__(
        self, target: LogprobsReport, kind: int, num_top: int, extra: Sequence[int]
    ) -> None:
        count = 1 + num_top + len(extra)
        self._extra = np.array(extra, np.int64)
        self._ids = np.empty(count, np.int64)
        self._values = np.empty(count, np.float64)
        self._ranks = np.empty(count, np.int64)
        target.kind = kind
        target.num_top = num_top
        target.num_extra = len(extra)
        target.extra = self._extra.ctypes.data
        target.ids = self._ids.ctypes.data
        target.values = self._values.ctypes.data
        target.ranks = self._ranks.ctypes.data

    def read(self) -> TokenLogprobs:
        """A copy of the entries."""
        return TokenLogprobs(self._ids.tolist(), self._values.tolist(), self._ranks.tolist())


class NativeRow:
    """One request's row.

    Attributes:
        uncut: processed entries of a greedy pick, which are of the whole row, while the library
            takes such a pick as a cut to one token; None = not wanted. To be filled after the row
            has been sampled.

    Args:
        state: of the request.
        vocab_size: V.
        mode: which values a request with `logprobs` gets.
    """

    __slots__ = (
        "_allowed",
        "_forbidden",
        "_forbidden_ids",
        "_kept",
        "_state",
        "_vocab_size",
        "address",
        "report",
        "row",
        "uncut",
    )

    def __init__(self, state: SamplingState, vocab_size: int, mode: LogprobsMode) -> None:
        self._state = state
        self._vocab_size = vocab_size
        self._forbidden_ids: list[int] = []
        self.row = SampleRow()
        self.address = ctypes.addressof(self.row)
        self.report: _Report | None = None
        self.uncut: LogprobsReport | None = None
        self._fill_parameters()
        self._fill_processors(vocab_size)
        params = state.request.sampling
        if params.logprobs is not None:
            target = self.row.raw if mode.startswith("raw") else self.row.processed
            if params.greedy and not mode.startswith("raw"):
                target = self.uncut = LogprobsReport()
            num_top = vocab_size if params.logprobs < 0 else min(params.logprobs, vocab_size)
            extra = params.logprob_token_ids or ()
            self.report = _Report(target, _kind(mode), num_top, extra)
        self.row.detail = params.logprobs_detail
        self._kept: NDArray[np.int64] | None = None
        if params.sampling_mask:
            room = params.top_k if 0 < params.top_k < vocab_size else vocab_size
            self._kept = np.empty(room, np.int64)
            self.row.kept = self._kept.ctypes.data
            self.row.kept_room = room

    def update(self) -> RowResult | None:
        """Write what this step needs; a result instead if the grammar has failed."""
        state, row = self._state, self.row
        request = state.request
        tokens = request.token_ids
        num_output = len(tokens) - len(request.prompt_token_ids)
        row.position = num_output
        complete = False
        grammar = state.grammar
        if grammar is not None:
            grammar.advance(request.output_token_ids)
            complete = grammar.complete
            if grammar.error is None:
                grammar.bitmask()
                row.grammar = grammar.address
            failure = state.grammar_failure()
            if failure is not None:
                return failure
        processors = state.processors
        if not processors.active:
            return None
        state.observe()
        forbidden = processors.forbidden(tokens, num_output)
        if forbidden != self._forbidden_ids:
            self._forbidden_ids = forbidden
            self._forbidden = np.array(forbidden, np.int64)
            row.forbidden = self._forbidden.ctypes.data
            row.num_forbidden = len(forbidden)
        holds_back = not complete and processors.holds_back_ends(num_output)
        row.num_ends = len(processors.end_ids) if holds_back else 0
        seen, output = processors.seen, processors.output
        if seen is not None:
            row.seen_ids = seen.ids_address
            row.num_seen = seen.size
        if output is not None:
            row.output_ids = output.ids_address
            row.output_counts = output.counts_address
            row.num_output = output.size
        return None

    def result(self) -> RowResult:
        """What the library made of the row.

        Raises:
            IndexError: the request holds a token id outside the vocabulary.
        """
        row = self.row
        status = row.status
        if status == sampling.SAMPLED:
            result = RowResult(row.token)
            if self.report is not None:
                result.logprobs = self.report.read()
            if row.detail:
                result.detail = TokenDetail(row.raw_logprob, row.processed_logprob, row.rank)
            if self._kept is not None and row.num_kept < self._vocab_size:
                result.mask = self._kept[: row.num_kept].tolist()
            return result
        if status == sampling.NOT_FINITE:
            return RowResult(error=NOT_FINITE)
        if status == sampling.NOTHING_ALLOWED:
            return self._state.nothing_allowed()
        raise IndexError(f"request {self._state.request.request_id} holds a token id out of range")

    def _fill_parameters(self) -> None:
        request, row = self._state.request, self.row
        params = request.sampling
        greedy = params.greedy
        row.inverse_temperature = 0.0 if greedy else inverse_temperature(params.temperature)
        row.log_min_p = log_floor(params.min_p)
        row.top_p = params.top_p
        row.top_k = max(params.top_k, 0)
        row.seed = request.seed & 0xFFFFFFFFFFFFFFFF
        row.sample_index = params.sample_index & 0xFFFFFFFF

    def _fill_processors(self, vocab_size: int) -> None:
        processors, row = self._state.processors, self.row
        if processors.allowed is not None:
            self._allowed = packed_bits(processors.allowed, vocab_size)
            row.allowed = self._allowed.ctypes.data
        row.ends = processors.end_ids.ctypes.data
        row.bias_ids = processors.bias_ids.ctypes.data
        row.bias = processors.bias.ctypes.data
        row.num_bias = len(processors.bias_ids)
        row.repetition_penalty = processors.repetition
        row.frequency_penalty = processors.frequency
        row.presence_penalty = processors.presence


class NativeSampler:
    """Samples rows of logits [N, V] f32 with the op library.

    Args:
        vocab_size: V.
        logprobs_mode: which values requests with `logprobs` get.

    Raises:
        KernelUnavailable: as `kernels.sampling.Sampler`.
    """

    def __init__(self, vocab_size: int, logprobs_mode: LogprobsMode) -> None:
        self._vocab_size = vocab_size
        self._mode = logprobs_mode
        self._library = sampling.Sampler(vocab_size)

    def sample(
        self, logits: NDArray[np.float32], states: Sequence[SamplingState | RowResult]
    ) -> list[RowResult]:
        """As `Sampler.sample`; a RowResult among the states is passed on."""
        if not states:
            return []
        flags = logits.flags
        if not (flags.c_contiguous and flags.writeable) or logits.dtype != _FLOAT32:
            logits = np.array(logits, np.float32, order="C")
        for state in states:
            if isinstance(state, RowResult) or not state.plain:
                break
        else:
            return [
                RowResult(token) if token >= 0 else RowResult(error=NOT_FINITE)
                for token in self._library.argmax(logits)
            ]
        rows = [state if isinstance(state, RowResult) else self._row(state) for state in states]
        self._library.run(
            logits, [row.address if isinstance(row, NativeRow) else 0 for row in rows]
        )
        for index, row in enumerate(rows):
            if isinstance(row, NativeRow) and row.uncut and row.row.status == sampling.SAMPLED:
                # the library has processed the row in place
                self._library.describe(logits[index : index + 1], row.row.token, row.uncut)
        return [row.result() if isinstance(row, NativeRow) else row for row in rows]

    def prompt_entry(self, row: NDArray[np.float32], target: int, num_top: int) -> TokenLogprobs:
        """The entry of one prompt token; as `Sampler.prompt_logprobs`."""
        num_top = self._vocab_size if num_top < 0 else min(num_top, self._vocab_size)
        target_report = LogprobsReport()
        report = _Report(target_report, _kind(self._mode), num_top, ())
        values = np.ascontiguousarray(row, np.float32)[np.newaxis]
        self._library.describe(values, target, target_report)
        return report.read()

    def _row(self, state: SamplingState) -> NativeRow | RowResult:
        """The request's row for this step, or its result where there is nothing to sample."""
        row = state.native
        if row is None:
            row = NativeRow(state, self._vocab_size, self._mode)
            state.native = row
        return row.update() or row
