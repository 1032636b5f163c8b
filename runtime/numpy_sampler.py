"""Sampling in NumPy: the path without the op library, and the oracle of the one with it.

Order for one row: grammar mask, (raw values are captured), allowed ids, bad words, min_tokens mask,
logit bias, penalties, greedy pick | temperature, min_p, top_k, top_p, draw, (processed values are
captured). Rows are handled one by one over buffers that fit the cache; a batch of plain greedy
requests takes one argmax over all rows.

The random number of a draw is `philox.uniform(seed, sample index, output position)`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ortloom.runtime.logprobs import LogprobsMode, describe, log_normaliser
from ortloom.runtime.messages import SamplingMask, TokenDetail, TokenLogprobs
from ortloom.runtime.philox import uniform
from ortloom.runtime.request import Request
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.sampling_state import NOT_FINITE, SamplingState
from ortloom.runtime.scheduler_output import RowResult
from ortloom.runtime.token_draw import Draw, draw_token, ordered, scaled_by
from ortloom.runtime.user_processors import UserProcessorFailed


class NumpySampler:
    """Samples rows of logits [N, V] f32.

    Args:
        vocab_size: V.
        logprobs_mode: which values requests with `logprobs` get.
    """

    def __init__(self, vocab_size: int, logprobs_mode: LogprobsMode) -> None:
        self._mode = logprobs_mode
        self._scaled: NDArray[np.float32] = np.empty(vocab_size, np.float32)

    def sample(
        self, logits: NDArray[np.float32], states: Sequence[SamplingState | RowResult]
    ) -> list[RowResult]:
        """As `Sampler.sample`; a RowResult among the states is passed on."""
        picks = logits.argmax(axis=1).tolist()
        results: list[RowResult] = []
        for row, state, pick in zip(logits, states, picks, strict=True):
            if isinstance(state, RowResult):
                results.append(state)
            elif not np.isfinite(row[pick]):  # argmax finds NaN first and +inf last
                results.append(RowResult(error=NOT_FINITE))
            elif state.plain:
                results.append(RowResult(token_id=pick))
            else:
                results.append(self._sample_row(row, state, pick))
        return results

    def prompt_entry(self, row: NDArray[np.float32], target: int, num_top: int) -> TokenLogprobs:
        """The entry of one prompt token; as `Sampler.prompt_logprobs`."""
        is_logits = self._mode in ("raw_logits", "processed_logits")
        offset = 0.0 if is_logits else log_normaliser(row)
        return describe(row, offset, target, num_top)

    def _sample_row(self, row: NDArray[np.float32], state: SamplingState, pick: int) -> RowResult:
        params = state.request.sampling
        output = state.request.output_token_ids
        complete = False
        grammar = state.grammar
        if grammar is not None:
            grammar.advance(output)
            complete = grammar.complete
            if grammar.error is None:
                grammar.mask(row)
            failure = state.grammar_failure()
            if failure is not None:
                return failure
        wants = params.logprobs is not None
        raw = row
        if state.processors.active:
            if params.logprobs_detail or (wants and self._mode.startswith("raw")):
                raw = row.copy()
            state.observe()
            try:
                state.processors.apply(row, output, honour_min_tokens=not complete)
            except UserProcessorFailed as error:
                return RowResult(error=str(error))
        if grammar is not None or state.processors.active:
            pick = int(row.argmax())
            if not np.isfinite(row[pick]):
                return state.nothing_allowed()
        if params.greedy:
            entry = self._greedy_logprobs(raw, row, pick, state.request) if wants else None
            only = Draw(pick, np.array([pick]), float(row[pick]))
            return _with_detail(RowResult(token_id=pick, logprobs=entry), params, raw, row, only)
        scaled = scaled_by(row, params.temperature, self._scaled)
        if not np.isfinite(scaled.max()):
            return RowResult(error=NOT_FINITE)
        random = uniform(state.request.seed, params.sample_index, len(output))
        drawn = draw_token(scaled, params.top_k, params.top_p, params.min_p, random)
        result = RowResult(token_id=drawn.token_id)
        if wants and self._mode.startswith("raw"):
            result.logprobs = self._raw_logprobs(raw, drawn.token_id, state.request)
        elif wants:
            offset = drawn.log_mass if self._mode == "processed_logprobs" else 0.0
            result.logprobs = self._describe(
                scaled, offset, drawn.token_id, state.request, drawn.kept
            )
        return _with_detail(result, params, raw, scaled, drawn)

    def _greedy_logprobs(
        self,
        raw: NDArray[np.float32],
        row: NDArray[np.float32],
        pick: int,
        request: Request,
    ) -> TokenLogprobs:
        """A greedy pick cuts nothing: processed modes tell of the whole row it was made from."""
        if self._mode.startswith("raw"):
            return self._raw_logprobs(raw, pick, request)
        offset = log_normaliser(row) if self._mode == "processed_logprobs" else 0.0
        return self._describe(row, offset, pick, request, None)

    def _raw_logprobs(self, raw: NDArray[np.float32], own: int, request: Request) -> TokenLogprobs:
        offset = 0.0 if self._mode == "raw_logits" else log_normaliser(raw)
        return self._describe(raw, offset, own, request, None)

    def _describe(
        self,
        row: NDArray[np.float32],
        offset: float,
        own: int,
        request: Request,
        kept: NDArray[np.int64] | None,
    ) -> TokenLogprobs:
        params = request.sampling
        num_top = params.logprobs or 0
        return describe(row, offset, own, num_top, params.logprob_token_ids or (), kept)


def _with_detail(
    result: RowResult,
    params: SamplingParams,
    raw: NDArray[np.float32],
    scaled: NDArray[np.float32],
    drawn: Draw,
) -> RowResult:
    """Add what `logprobs_detail` and `sampling_mask` ask for.

    Args:
        result: changed and returned.
        params: of the request.
        raw: [V] f32 logits before the processors.
        scaled: [V] f32 logits after them and the temperature.
        drawn: the draw.
    """
    token = drawn.token_id
    if params.logprobs_detail:
        result.detail = TokenDetail(
            float(raw[token]) - log_normaliser(raw),
            float(scaled[token]) - drawn.log_mass,
            int(np.count_nonzero(raw >= raw[token])),
        )
    if params.sampling_mask:
        result.mask = _mask(scaled, drawn)
    return result


def _mask(scaled: NDArray[np.float32], drawn: Draw) -> SamplingMask:
    """What the draw could have taken."""
    kept = drawn.kept
    if kept is None:
        kept = np.flatnonzero(scaled > -np.inf)
        if len(kept) < len(scaled):
            kept = ordered(scaled, kept)
    return None if len(kept) == len(scaled) else kept.tolist()
