"""The response object: the same members in replies, in events and in the store."""

from typing import Any

import msgspec

from ortloom.runtime.sampling_params import SamplingParams
from ortloom.server.openai.responses.tools import ToolSet
from ortloom.server.openai.responses.wire import ResponsesRequest, TextConfig


class ResponseObject:
    """Makes the object of one response; members that never change are made once.

    Args:
        response_id: `resp_…`.
        created: unix seconds.
        model: the served name.
        body: the request.
        params: its resolved sampling parameters, for what is echoed.
        max_tokens: its resolved output limit.
        tools: its tools.
    """

    def __init__(
        self,
        response_id: str,
        created: int,
        model: str,
        body: ResponsesRequest,
        params: SamplingParams,
        max_tokens: int,
        tools: ToolSet,
    ) -> None:
        self._first = {
            "id": response_id,
            "created_at": created,
        }
        self._head = {
            "instructions": body.instructions,
            "metadata": body.metadata,
            "model": model,
            "object": "response",
        }
        self._middle = {
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": params.temperature,
            "tool_choice": tools.echo_choice,
            "tools": tools.echo,
            "top_p": params.top_p,
            "background": bool(body.background),
            "max_output_tokens": max_tokens,
            "max_tool_calls": body.max_tool_calls,
            "previous_response_id": body.previous_response_id,
            "prompt": None,
            "reasoning": msgspec.to_builtins(body.reasoning),
            "service_tier": body.service_tier or "auto",
        }
        self._tail = {
            "text": None if body.text is None else text_echo(body.text),
            "top_logprobs": params.logprobs,
            "truncation": body.truncation or "disabled",
        }
        self._last = {
            "user": body.user,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
        }

    def build(
        self,
        status: str,
        output: list[dict[str, Any]],
        usage: dict[str, Any] | None = None,
        error: dict[str, str] | None = None,
        messages: tuple[list[Any], list[Any]] | None = None,
    ) -> dict[str, Any]:
        """The object as it stands.

        Args:
            status: `queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
            output: items.
            usage: None until the end.
            error: `code` and `message` of a failed response; the member is absent otherwise.
            messages: what the model read and wrote, if that was asked for.
        """
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        read, written = (None, None) if messages is None else messages
        return {
            **self._first,
            **({} if error is None else {"error": error}),
            "incomplete_details": details,
            **self._head,
            "output": output,
            **self._middle,
            "status": status,
            **self._tail,
            "usage": usage,
            **self._last,
            "input_messages": read,
            "output_messages": written,
        }


def text_echo(text: TextConfig) -> dict[str, Any]:
    """`text` as it is echoed: a format has the members of its type."""
    form = text.format
    echoed: dict[str, Any] | None
    if form is None:
        echoed = None
    elif form.type != "json_schema":
        echoed = {"type": form.type}
    else:
        echoed = {
            "name": form.name,
            "schema": form.schema,
            "type": form.type,
            "description": form.description,
            "strict": form.strict,
        }
    return {"format": echoed, "verbosity": text.verbosity}


def raw_message(text: str, token_ids: list[int]) -> dict[str, Any]:
    """An entry of `input_messages` or `output_messages`."""
    return {"message": text, "tokens": token_ids, "type": "raw_message_tokens"}


def usage_of(
    input_tokens: int, cached_tokens: int, output_tokens: int, reasoning_tokens: int
) -> dict[str, Any]:
    """The `usage` member."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": cached_tokens,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": input_tokens + output_tokens,
    }
