"""From logits to tokens for the sampled rows of one step.

The work is done by the op library in one call, or by NumPy where there is none: both take the same
steps in the same order, and sum masses that add up exactly, so a seed gives the same tokens with
either.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ortloom.errors import InvalidRequest, KernelUnavailable
from ortloom.kernels.library import library_path
from ortloom.kernels.sampling import LARGEST_VOCABULARY
from ortloom.runtime.logprobs import LogprobsMode
from ortloom.runtime.messages import TokenLogprobs
from ortloom.runtime.native_sampler import NativeSampler
from ortloom.runtime.numpy_sampler import NumpySampler
from ortloom.runtime.request import Request
from ortloom.runtime.sampling_state import (
    GRAMMAR_PARAM,
    NOT_FINITE,
    NOTHING_ALLOWED,
    SamplingState,
)
from ortloom.runtime.scheduler_output import RowResult
from ortloom.runtime.structured_output import GrammarCompiler
from ortloom.runtime.user_processors import UserProcessors

__all__ = ["GRAMMAR_PARAM", "NOTHING_ALLOWED", "NOT_FINITE", "Sampler"]


def _has_library() -> bool:
    try:
        library_path()
    except KernelUnavailable:
        return False
    return True


class Sampler:
    """Samples rows of logits [N, V] f32.

    Args:
        vocab_size: V.
        logprobs_mode: which values requests with `logprobs` get.
        grammars: compiler of constraints.
        native: True = by the op library, False = by NumPy, None = by the library if it is there and
            takes so large a vocabulary.
        jump_forward: add the tokens that a grammar forces to those that are drawn.
        users: the server's processors of users.

    Raises:
        KernelUnavailable: the library is there, or asked for, but cannot be used.
    """

    def __init__(
        self,
        vocab_size: int,
        logprobs_mode: LogprobsMode,
        grammars: GrammarCompiler,
        native: bool | None = None,
        *,
        jump_forward: bool = False,
        users: UserProcessors | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._grammars = grammars
        self._jump_forward = jump_forward
        self._users = users
        self._python = NumpySampler(vocab_size, logprobs_mode)
        self._states: dict[str, SamplingState] = {}
        if native is None:
            native = vocab_size <= LARGEST_VOCABULARY and _has_library()
        self._rows: NativeSampler | NumpySampler
        if native:
            self._rows = NativeSampler(vocab_size, logprobs_mode)
        else:
            self._rows = NumpySampler(vocab_size, logprobs_mode)

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

        Raises:
            ValueError: the shapes do not fit each other.
            IndexError: a request holds a token id outside the vocabulary.
        """
        known = self._states
        states: list[SamplingState | RowResult] = []
        for request in requests:
            state = known.get(request.request_id)
            if state is None or state.request is not request:
                states.append(self._start(request))
            else:
                states.append(state)
        own = self._sample_custom(logits, states)
        results = self._rows.sample(logits, states)
        for row, result in own.items():
            results[row] = result
        if self._jump_forward:
            for used, result in zip(states, results, strict=True):
                if isinstance(used, SamplingState) and used.jumps and result.token_id is not None:
                    result.forced = used.forced_after(result.token_id)
        return results

    def _sample_custom(
        self, logits: NDArray[np.float32], states: list[SamplingState | RowResult]
    ) -> dict[int, RowResult]:
        """Results of the rows with processors of users, which only NumPy can run; their places
        among `states` are taken out."""
        found: dict[int, RowResult] = {}
        if self._users is None:
            return found
        for row, state in enumerate(states):
            if isinstance(state, SamplingState) and state.processors.custom:
                (found[row],) = self._python.sample(logits[row : row + 1], [state])
                states[row] = RowResult()
        return found

    def prompt_logprobs(
        self, logits: NDArray[np.float32], targets: Sequence[int], num_top: int
    ) -> list[TokenLogprobs]:
        """Entries of prompt tokens.

        Args:
            logits: [N, V] f32 as the model gave them, without NaN; not changed.
            targets: the N prompt tokens the rows predict.
            num_top: top tokens an entry; -1 = all.
        """
        return [
            self._rows.prompt_entry(row, target, num_top)
            for row, target in zip(logits, targets, strict=True)
        ]

    def _start(self, request: Request) -> SamplingState | RowResult:
        try:
            state = SamplingState.start(
                request, self._vocab_size, self._grammars, self._jump_forward, self._users
            )
        except InvalidRequest as error:  # a grammar that is compiled again
            return RowResult(error=str(error), error_param=error.param or GRAMMAR_PARAM)
        self._states[request.request_id] = state
        return state
