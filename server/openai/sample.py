"""One sample while it is generated: engine outputs in, text and its tokens out.

Text is followed token by token, so a stop string ends the sample at the very token that completes
it: whatever the engine produced beyond that token is dropped and not counted.
"""

from dataclasses import dataclass, field

import msgspec

from ortloom.errors import RequestFailed
from ortloom.models.detokenizer import IncrementalDetokenizer
from ortloom.models.stop_strings import StopChecker
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.messages import (
    EngineOutput,
    FinishReason,
    SamplingMask,
    TokenDetail,
    TokenLogprobs,
)
from ortloom.runtime.sampling_params import SamplingParams


class Piece(msgspec.Struct):
    """What one engine output added to a sample.

    `output` is the engine's output without the tokens beyond a stop string.
    """

    index: int  # prompt number × n + sample number
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    output: EngineOutput
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    details: list[TokenDetail] = []
    masks: list[SamplingMask] = []


@dataclass(slots=True)
class Sample:
    """The whole sample so far."""

    index: int
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    details: list[TokenDetail] = field(default_factory=list)
    masks: list[SamplingMask] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Append what came."""
        self.text.append(piece.text)
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.details += piece.details
        self.masks += piece.masks
        output = piece.output
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        self.finish_reason = piece.finish_reason
        self.stop_reason = piece.stop_reason


class SampleText:
    """Turns the outputs of one engine request into pieces.

    Args:
        index: the choice's index.
        tokenizer: None = no text; pieces then have token ids only.
        prompt_token_ids: left context of the text.
        params: of this sample.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
    ) -> None:
        self._index = index
        self._params = params
        self._num_tokens = 0
        self._ending_ids = frozenset(
            [*params.eos_token_ids, *params.secondary_eos_token_ids, *params.stop_token_ids]
        )
        self._hidden_ids = frozenset(params.hidden_token_ids)
        self._stops = StopChecker(params.stop, params.include_stop_str_in_output, params.min_tokens)
        self._text: IncrementalDetokenizer | None = None
        if tokenizer is not None:
            self._text = IncrementalDetokenizer(
                tokenizer,
                prompt_token_ids,
                params.skip_special_tokens,
                params.spaces_between_special_tokens,
            )

    @property
    def stopped(self) -> bool:
        """A stop string ended the sample; the engine's request should be aborted."""
        return self._stops.matched is not None

    def push(self, output: EngineOutput) -> Piece:
        """Follow one output.

        Raises:
            RequestFailed: the engine aborted the request.
        """
        if output.finish_reason in ("abort", "error"):
            raise RequestFailed(output.error or "The request was aborted.")
        ids = output.new_token_ids
        if len(ids) == 1 and output.finish_reason is None and self._stops.idle:
            # the usual output: a token in the middle of a sample without stop strings
            self._num_tokens += 1
            text = ""
            if self._text is not None and ids[0] not in self._hidden_ids:
                text = self._text.push_one(ids[0])
            piece = Piece(self._index, text, ids, output.logprobs or [], output)
            if output.details is not None:
                piece.details = output.details
            if output.masks is not None:
                piece.masks = output.masks
            return piece
        text = ""
        used = 0
        for token in output.new_token_ids:
            used += 1
            self._num_tokens += 1
            text += self._follow(token, used, output)
            if self.stopped:
                break
        if output.finish_reason is not None and not self.stopped:
            text += self._rest()
        return self._piece(output, text, used)

    def _follow(self, token: int, used: int, output: EngineOutput) -> str:
        """Text that one token makes final; the token that ended the request has none."""
        if self._text is None:
            return ""
        last = used == len(output.new_token_ids) and output.finish_reason == "stop"
        if last and token in self._ending_ids and not self._params.include_stop_str_in_output:
            return ""
        if token in self._hidden_ids:
            return ""
        return self._stops.push(self._text.push_one(token), self._num_tokens)

    def _rest(self) -> str:
        """Everything held back, once the engine is done."""
        if self._text is None or not self._num_tokens:
            return ""  # what is held back then is the end of the prompt
        return self._stops.push(self._text.finish(), self._num_tokens) + self._stops.finish()

    def _piece(self, output: EngineOutput, text: str, used: int) -> Piece:
        if used < len(output.new_token_ids):
            logprobs = output.logprobs[:used] if output.logprobs is not None else None
            output = msgspec.structs.replace(
                output, new_token_ids=output.new_token_ids[:used], logprobs=logprobs
            )
        if self.stopped and output.finish_reason is None:
            output = msgspec.structs.replace(output, finish_reason="stop")
        return Piece(
            index=self._index,
            text=text,
            token_ids=output.new_token_ids,
            logprobs=output.logprobs or [],
            output=output,
            finish_reason="stop" if self.stopped else output.finish_reason,
            stop_reason=self._stops.matched if self.stopped else output.stop_reason,
            details=(output.details or [])[:used],
            masks=(output.masks or [])[:used],
        )
