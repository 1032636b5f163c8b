"""From logits to tokens for the sampled rows of one step.

Order for one row: grammar mask, (raw values are captured), allowed ids, bad words, min_tokens mask,
logit bias, penalties, greedy pick | temperature, min_p, top_k, top_p, draw, (processed values are
captured). Rows are handled one by one over buffers that fit the cache; a batch of plain greedy
requests takes one argmax over all rows.

The random number of a draw is `philox.uniform(seed, sample index, output position)`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ortloom.errors import InvalidRequest
from ortloom.runtime.logits_processors import LogitsProcessors
from ortloom.runtime.logprobs import LogprobsMode, describe, log_normaliser
from ortloom.runtime.messages import TokenLogprobs
from ortloom.runtime.philox import uniform
from ortloom.runtime.request import Request
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.scheduler_output import RowResult
from ortloom.runtime.structured_output import GrammarCompiler, GrammarState
from ortloom.runtime.token_draw import draw_token

NOT_FINITE = "the model produced logits that are not finite"
NOTHING_ALLOWED = "no token is allowed by the constraints of this request"
GRAMMAR_PARAM = "structured_outputs"


def _restricting(params: SamplingParams) -> str:
    """The field that leaves no token to choose."""
    if params.structured_output is not None:
        return GRAMMAR_PARAM
    return "bad_words" if params.allowed_token_ids is None else "allowed_token_ids"


@dataclass(slots=True)
class SamplingState:
    """What the sampler keeps of one request between steps; follows its output tokens."""

    request: Request
    processors: LogitsProcessors
    grammar: GrammarState | None
    plain: bool  # greedy, nothing changes the logits, nothing to report
    observed: int = 0  # output tokens the processors have counted


class Sampler:
    """Samples rows of logits [N, V] f32.

    Args:
        vocab_size: V.
        logprobs_mode: which values requests with `logprobs` get.
        grammars: compiler of constraints.
    """

    def __init__(
        self, vocab_size: int, logprobs_mode: LogprobsMode, grammars: GrammarCompiler
    ) -> None:
        self._vocab_size = vocab_size
        self._mode = logprobs_mode
        self._grammars = grammars
        self._states: dict[str, SamplingState] = {}
        self._scaled: NDArray[np.float32] = np.empty(vocab_size, np.float32)
        self._scratch: NDArray[np.float32] = np.empty(vocab_size, np.float32)

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        self._states.pop(request_id, None)

    def sample(self, logits: NDArray[np.float32], requests: Sequence[Request]) -> list[RowResult]:
        """One token a row.

        Args:
            logits: [N, V] f32; rows may be overwritten.
            requests: the N requests, in row order.

        Returns:
            N results; a row without a finite maximum, without an allowed token or with a failed
            grammar has `error` and no token.
        """
        picks = logits.argmax(axis=1).tolist()
        results: list[RowResult] = []
        for index, (request, pick) in enumerate(zip(requests, picks, strict=True)):
            row = logits[index]
            try:
                state = self._state(request)
            except InvalidRequest as error:  # a grammar that is compiled again
                results.append(RowResult(error=str(error), error_param=GRAMMAR_PARAM))
                continue
            if not np.isfinite(row[pick]):  # argmax finds NaN first and +inf last
                results.append(RowResult(error=NOT_FINITE))
            elif state.plain:
                results.append(RowResult(token_id=pick))
            else:
                results.append(self._sample_row(row, state, pick))
        return results

    def prompt_logprobs(
        self, logits: NDArray[np.float32], targets: Sequence[int], num_top: int
    ) -> list[TokenLogprobs]:
        """Entries of prompt tokens.

        Args:
            logits: [N, V] f32 as the model gave them; not changed.
            targets: the N prompt tokens the rows predict.
            num_top: top tokens an entry; -1 = all.
        """
        entries: list[TokenLogprobs] = []
        is_logits = self._mode in ("raw_logits", "processed_logits")
        for row, target in zip(logits, targets, strict=True):
            offset = 0.0 if is_logits else log_normaliser(row, self._scratch)
            entries.append(describe(row, offset, target, num_top))
        return entries

    def _state(self, request: Request) -> SamplingState:
        state = self._states.get(request.request_id)
        if state is None or state.request is not request:
            state = self._new_state(request)
            self._states[request.request_id] = state
        return state

    def _new_state(self, request: Request) -> SamplingState:
        params = request.sampling
        processors = LogitsProcessors(params, request.prompt_token_ids, self._vocab_size)
        grammar = None
        if params.structured_output is not None:
            ends = params.eos_token_ids + params.secondary_eos_token_ids
            grammar = self._grammars.start(params.structured_output, ends)
        plain = (
            params.greedy and params.logprobs is None and grammar is None and not processors.active
        )
        return SamplingState(request, processors, grammar, plain)

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
            if grammar.error is not None:
                return RowResult(error=grammar.error, error_param=GRAMMAR_PARAM)
        wants = params.logprobs is not None
        raw = row
        if state.processors.active:
            if wants and self._mode.startswith("raw"):
                raw = row.copy()
            state.processors.observe(output[state.observed :])
            state.observed = len(output)
            state.processors.apply(row, output, honour_min_tokens=not complete)
        if grammar is not None or state.processors.active:
            pick = int(row.argmax())
            if not np.isfinite(row[pick]):
                return RowResult(error=NOTHING_ALLOWED, error_param=_restricting(params))
        if params.greedy:
            entry = self._greedy_logprobs(raw, row, pick, state.request) if wants else None
            return RowResult(token_id=pick, logprobs=entry)
        scaled = row
        if params.temperature != 1.0:
            scaled = self._scaled
            np.divide(row, np.float32(params.temperature), out=scaled)
        random = uniform(state.request.seed, params.sample_index, len(output))
        drawn = draw_token(scaled, params.top_k, params.top_p, params.min_p, random, self._scratch)
        if not wants:
            return RowResult(token_id=drawn.token_id)
        if self._mode.startswith("raw"):
            return RowResult(drawn.token_id, self._raw_logprobs(raw, drawn.token_id, state.request))
        offset = drawn.log_mass if self._mode == "processed_logprobs" else 0.0
        entry = self._describe(scaled, offset, drawn.token_id, state.request, drawn.kept)
        return RowResult(drawn.token_id, entry)

    def _greedy_logprobs(
        self,
        raw: NDArray[np.float32],
        row: NDArray[np.float32],
        pick: int,
        request: Request,
    ) -> TokenLogprobs:
        """Greedy is a cut that leaves one token: processed modes give it all the mass."""
        if self._mode.startswith("raw"):
            return self._raw_logprobs(raw, pick, request)
        offset = float(row[pick]) if self._mode == "processed_logprobs" else 0.0
        return self._describe(row, offset, pick, request, np.array([pick]))

    def _raw_logprobs(self, raw: NDArray[np.float32], own: int, request: Request) -> TokenLogprobs:
        offset = 0.0 if self._mode == "raw_logits" else log_normaliser(raw, self._scratch)
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
