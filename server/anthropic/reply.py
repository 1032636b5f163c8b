"""Members of a Messages reply: head, content blocks, usage and why it ended."""

import json
import uuid
from typing import Any

from ortloom.runtime.messages import FinishReason

Block = dict[str, Any]


def message_head(response_id: str, model: str) -> dict[str, Any]:
    """What a message begins with."""
    return {
        "id": response_id,
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": model,
    }


def text_block(text: str) -> Block:
    """Words for the reader."""
    return {"type": "text", "text": text}


def thinking_block(text: str) -> Block:
    """What the model thought. The signature only has to come back with it; nothing reads it."""
    return {"type": "thinking", "thinking": text, "signature": new_signature()}


def new_signature() -> str:
    """A signature for one thinking block."""
    return uuid.uuid4().hex


def tool_block(identity: str, name: str, arguments: str) -> Block:
    """A call. Arguments that were cut short are no JSON; what can be told of them is nothing."""
    return {"type": "tool_use", "id": identity, "name": name, "input": _input(arguments)}


def _input(arguments: str) -> dict[str, Any]:
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def ending(
    finish_reason: FinishReason | None, stop_reason: int | str | None, called: bool
) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence) of a message.

    A message cut by its limit says so even if it began a call, whose arguments may be cut with it.

    Args:
        finish_reason: why the engine stopped.
        stop_reason: the stop string that ended the sample; token ids count for nothing here.
        called: the message holds a call.
    """
    if finish_reason == "length":
        return "max_tokens", None
    if called:
        return "tool_use", None
    if isinstance(stop_reason, str):
        return "stop_sequence", stop_reason
    return "end_turn", None


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, int]:
    """Tokens of a message. The three kinds of input tokens add up to the prompt.

    Args:
        prompt_tokens: of the whole prompt.
        completion_tokens: of the reply.
        cached_tokens: taken from the prefix cache; None = not told, and its members are left out.
    """
    if cached_tokens is None:
        return {"input_tokens": prompt_tokens, "output_tokens": completion_tokens}
    return {
        "input_tokens": max(0, prompt_tokens - cached_tokens),
        "output_tokens": completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
    }
