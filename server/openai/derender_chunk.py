"""One chunk of a `/inference/v1/generate` stream as the OpenAI chunk that it stands for.

Nothing is kept between calls: the state that a client sends along is the sequence so far, which is
played again, and the number of events it had given.
"""

from typing import Any

import msgspec

from ortloom.errors import InvalidRequest
from ortloom.runtime.messages import EngineOutput
from ortloom.server.context import FrontContext
from ortloom.server.openai.generated import check_generated, id_of
from ortloom.server.openai.replay import output_of, unscored
from ortloom.server.openai.to_engine import check_token_ids, engine_ready
from ortloom.server.openai.wire_derender import Generated, StreamState

CHAT_CHUNK = "chat.completion.chunk"
TEXT_CHUNK = "text_completion"


def outputs_until(
    chunk: Generated, state: StreamState, front: FrontContext
) -> list[EngineOutput] | None:
    """The sequence so far as engine outputs; None for a chunk that only tells usage."""
    check_generated(chunk, front)
    if not chunk.choices:
        return None
    if len(chunk.choices) > 1:
        raise InvalidRequest("A chunk has one choice.", "generate_chunk")
    before = state.output_token_ids
    if sum(state.output_chunk_lens) != len(before):
        raise InvalidRequest(
            "output_chunk_lens must sum up to the number of output_token_ids.", "stream_state"
        )
    new = output_of(chunk.choices[0])
    most = engine_ready(front)
    check_token_ids(before, most.vocab_size)
    if len(before) + len(new.new_token_ids) > most.max_model_len:
        raise InvalidRequest(
            f"stream_state holds more than the context of {most.max_model_len} tokens.",
            "stream_state",
        )
    outputs, start = [], 0
    for length in state.output_chunk_lens:
        ids = before[start : start + length]
        outputs.append(unscored(ids, new.logprobs is not None))
        start += length
    return [*outputs, new]


def chunk_reply(
    chunk: Generated,
    state: StreamState,
    events: list[dict[str, Any]],
    kind: str,
    prefix: str,
    front: FrontContext,
) -> dict[str, Any]:
    """The chunk that a chunk with a choice stands for, and the state after it.

    Args:
        chunk: the generate chunk.
        state: before it.
        events: of the whole sequence, this chunk's included.
        kind: `object` of the OpenAI chunk.
        prefix: of its id.
        front: whose model it is.
    """
    choice = chunk.choices[0]
    ids = choice.token_ids or []
    new = events[state.events :]
    merged = _merged(new) if new else _head(chunk, kind, prefix, front)
    if not new:
        shown: dict[str, Any] = {"text": ""} if kind == TEXT_CHUNK else {"delta": {}}
        merged["choices"] = [{"index": 0, **shown, "logprobs": None, "finish_reason": None}]
    merged["id"] = id_of(chunk, prefix)
    for entry in merged["choices"]:
        entry["index"] = choice.index
    if chunk.usage is not None:
        merged["usage"] = chunk.usage
    after = StreamState(
        output_token_ids=state.output_token_ids + ids,
        output_chunk_lens=[*state.output_chunk_lens, len(ids)],
        events=len(events),
    )
    return {"chunk": merged, "stream_state": msgspec.to_builtins(after)}


def usage_chunk(
    chunk: Generated,
    state: StreamState,
    kind: str,
    prefix: str,
    front: FrontContext,
    prompt_tokens: int | None,
) -> dict[str, Any]:
    """The chunk that a chunk without a choice stands for; it may correct the prompt's length."""
    usage = None if chunk.usage is None else dict(chunk.usage)
    if usage is not None and prompt_tokens is not None:
        usage["prompt_tokens"] = prompt_tokens
    body = {**_head(chunk, kind, prefix, front), "choices": [], "usage": usage}
    return {"chunk": body, "stream_state": msgspec.to_builtins(state)}


def _head(chunk: Generated, kind: str, prefix: str, front: FrontContext) -> dict[str, Any]:
    return {
        "id": id_of(chunk, prefix),
        "object": kind,
        "created": chunk.created or 0,
        "model": front.served_names[0],
    }


def _merged(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Several events of one choice as one: the role and the first text come together."""
    first = events[0]
    for event in events[1:]:
        first = {
            **first,
            **{k: v for k, v in event.items() if k != "choices"},
            "choices": first["choices"],
        }
        for ours, more in zip(first["choices"], event["choices"], strict=True):
            delta = ours.get("delta")
            joined = _joined(delta, more.get("delta")) if isinstance(delta, dict) else None
            ours.update(more)
            if joined is not None:
                ours["delta"] = joined
    return first


def _joined(first: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    out = dict(first)
    for name, value in more.items():
        known = out.get(name)
        both = isinstance(value, str | list) and type(known) is type(value)
        out[name] = known + value if both and name != "role" else value
    return out
