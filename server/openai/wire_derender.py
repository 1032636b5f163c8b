"""Bodies of the derender routes: what /inference/v1/generate answered, and what had been asked."""

from typing import Annotated, Any

import msgspec

TokenId = Annotated[int, msgspec.Meta(ge=0)]


class GeneratedEntry(msgspec.Struct, kw_only=True):
    """A token with its value."""

    token_id: TokenId
    logprob: float
    rank: int | None = None
    raw_logprob: float | None = None
    processed_logprob: float | None = None


class GeneratedPosition(GeneratedEntry, kw_only=True):
    """One output position."""

    top_logprobs: list[GeneratedEntry] = []


class GeneratedLogprobs(msgspec.Struct, kw_only=True):
    """`logprobs` of a choice."""

    content: list[GeneratedPosition] | None = None


class GeneratedChoice(msgspec.Struct, kw_only=True):
    """A choice of a reply or chunk."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    token_ids: list[TokenId] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: GeneratedLogprobs | None = None
    sampling_mask: list[list[TokenId] | None] | None = None


class Generated(msgspec.Struct, kw_only=True):
    """A reply or chunk in output_mode tokens."""

    choices: list[GeneratedChoice]
    request_id: str | None = None
    model: str | None = None
    created: int | None = None
    usage: dict[str, Any] | None = None
    output_mode: str = "tokens"
    prompt_token_ids: list[TokenId] | None = None


class StreamState(msgspec.Struct, kw_only=True):
    """What the client carries from chunk to chunk of one sequence.

    `output_token_ids` are all tokens so far, `output_chunk_lens` how they came, `events` the events
    that were handed out for them.
    """

    output_token_ids: list[TokenId] = []
    output_chunk_lens: list[Annotated[int, msgspec.Meta(ge=0)]] = []
    events: Annotated[int, msgspec.Meta(ge=0)] = 0


class DerenderCommon(msgspec.Struct, kw_only=True):
    """Fields of both derender routes. `stream` true takes a chunk in place of a reply."""

    model: str | None = None
    stream: bool | None = None
    generate_chunk: Generated | None = None
    stream_state: StreamState | None = None


class DerenderChat(DerenderCommon, kw_only=True):
    """POST /v1/chat/completions/derender; `chat_request` is decoded apart."""

    generate_response: Generated | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: list[TokenId] | None = None
    chat_request: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class DerenderCompletion(DerenderCommon, kw_only=True):
    """POST /v1/completions/derender; `completion_request` is decoded apart. In the stream form
    `prompt_tokens` and `prompt_token_ids` are those of the one prompt."""

    generate_responses: list[Generated] | None = None
    prompt_tokens: int | list[int] | None = None
    prompt_token_ids: list[TokenId | list[TokenId] | None] | None = None
    completion_request: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
