"""Engine outputs of one sample -> CompletionOutput: text, stop strings, logprobs."""

from collections.abc import Sequence

from ortloom.models.detokenizer import IncrementalDetokenizer
from ortloom.models.stop_strings import StopChecker
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.messages import EngineOutput, RequestTimes, TokenLogprobs
from ortloom.runtime.request_output import CompletionOutput, Logprob, PositionLogprobs
from ortloom.runtime.sampling_params import SamplingParams


def position_logprobs(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> PositionLogprobs:
    """The wire form of one position as a mapping."""
    found: PositionLogprobs = {}
    for token, logprob, rank in zip(entry.token_ids, entry.logprobs, entry.ranks, strict=True):
        if token not in found:
            text = None if tokenizer is None else tokenizer.token_text(token)
            found[token] = Logprob(logprob, rank, text)
    return found


class CompletionBuilder:
    """Follows one sample.

    Args:
        index: which of n samples.
        params: of the request.
        prompt_token_ids: left context of the text.
        tokenizer: None = no text.
    """

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        tokenizer: Tokenizer | None,
    ) -> None:
        self._params = params
        self._tokenizer = tokenizer
        self._ending_ids = frozenset(
            [*params.eos_token_ids, *params.secondary_eos_token_ids, *params.stop_token_ids]
        )
        self._stops = StopChecker(params.stop, params.include_stop_str_in_output, params.min_tokens)
        self._text: IncrementalDetokenizer | None = None
        if tokenizer is not None and params.detokenize:
            self._text = IncrementalDetokenizer(
                tokenizer,
                prompt_token_ids,
                params.skip_special_tokens,
                params.spaces_between_special_tokens,
            )
        self.completion = CompletionOutput(index)
        if params.logprobs is not None:
            self.completion.logprobs = []
            self.completion.cumulative_logprob = 0.0
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.times = RequestTimes()
        self.num_cached_tokens = 0
        self.num_preemptions = 0

    def push(self, output: EngineOutput) -> bool:
        """Follow one output; True once a stop string ended the sample.

        Tokens after a stop string are dropped, whether they came in the same output or not.
        """
        done = self.completion
        self.num_cached_tokens = output.num_cached_tokens
        self.num_preemptions = output.num_preemptions
        if output.times is not None:
            self.times = output.times
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        ended_by_token = output.finish_reason == "stop"
        for place, token in enumerate(output.new_token_ids):
            last = place == len(output.new_token_ids) - 1
            done.token_ids.append(token)
            self._keep_logprobs(output, place, token)
            hidden = ended_by_token and last and token in self._ending_ids
            if self._text is not None:
                shown = not hidden or self._params.include_stop_str_in_output
                piece = self._text.push((token,)) if shown else ""
                done.text += self._stops.push(piece, len(done.token_ids))
                if self._stops.matched is not None:
                    return self._stop()
        if output.finish_reason is not None:
            if self._text is not None:
                done.text += self._stops.push(self._text.finish(), len(done.token_ids))
                if self._stops.matched is not None:
                    return self._stop()
                done.text += self._stops.finish()
            done.finish_reason = output.finish_reason
            done.stop_reason = output.stop_reason
        return False

    def _stop(self) -> bool:
        self.completion.finish_reason = "stop"
        self.completion.stop_reason = self._stops.matched
        return True

    def _keep_logprobs(self, output: EngineOutput, place: int, token: int) -> None:
        done = self.completion
        if done.logprobs is None or done.cumulative_logprob is None or output.logprobs is None:
            return
        entry = position_logprobs(output.logprobs[place], self._tokenizer)
        done.logprobs.append(entry)
        done.cumulative_logprob += entry[token].logprob
