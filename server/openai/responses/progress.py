"""One response while it is generated: pieces in, events out, the response object at any time."""

from typing import Any

from ortloom.errors import CapacityError, RequestError
from ortloom.models.tool_parsers.tool_parser import ArgumentsDelta, CallStart, ContentDelta
from ortloom.server.openai.output_parts import OutputEvent, ReasoningDelta
from ortloom.server.openai.responses.events import Event, lifecycle
from ortloom.server.openai.responses.items import extended
from ortloom.server.openai.responses.output import OutputItems
from ortloom.server.openai.responses.prepare import Call
from ortloom.server.openai.responses.reply import raw_message, usage_of
from ortloom.server.openai.responses.store import Conversation
from ortloom.server.openai.sample import Piece, Sample


class Progress:
    """Follows one response.

    Attributes:
        status: as the response object tells it.

    Args:
        call: the request.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._sample = Sample(0)
        self._parts = call.output.follow()
        self._output = OutputItems(
            call.logprobs is not None, bool(call.body.logprobs_detail), call.tools.namespaces
        )
        self._usage: dict[str, Any] | None = None
        self._error: dict[str, str] | None = None
        self.status = "queued" if call.body.background else "in_progress"

    def begin(self) -> list[Event]:
        """The first events."""
        self.status = "in_progress"
        response = self.response()
        return [lifecycle("created", response), lifecycle("in_progress", response)]

    def add(self, piece: Piece) -> list[Event]:
        """Follow a piece."""
        self._sample.add(piece)
        if self._call.logprobs is not None and piece.logprobs:
            entries = self._call.logprobs.build(piece.logprobs, piece.details)["content"]
            self._output.note(entries, piece.masks)
        if self._call.reasoning is not None:
            self._call.reasoning.add(0, piece.token_ids, piece.text)
        found = self._parts.push(piece.text)
        if piece.finish_reason is not None:
            found += self._parts.finish()
        if self._parts.reasoning:
            self._output.forget()  # not shown, or shown without logprobs
        return [event for part in found for event in self._show(part)]

    def _show(self, part: OutputEvent) -> list[Event]:
        match part:
            case ContentDelta(text):
                return self._output.text(text)
            case ReasoningDelta(text):
                return self._output.reasoning(text)
            case CallStart():
                return self._output.call(part)
            case ArgumentsDelta(_, fragment):
                return self._output.arguments(fragment)

    def finish(self) -> list[Event]:
        """Close everything after the last piece; the last event is the final one."""
        cut = self._sample.finish_reason == "length"
        events = self._output.close("incomplete" if cut and self._output.in_call else "completed")
        if self._call.output.plain:
            self._output.empty_message()
        self.status = "incomplete" if cut else "completed"
        return [*events, self._end(self.status)]

    def cancel(self) -> list[Event]:
        """The client wants no more; what there is stays."""
        events = self._output.close("incomplete")
        self.status = "cancelled"
        return [*events, self._end("incomplete")]

    def fail(self, error: BaseException, message: str) -> list[Event]:
        """It cannot be finished.

        Args:
            error: why.
            message: the same for the client.
        """
        events = self._output.close("incomplete")
        self.status = "failed"
        self._error = {"code": _code(error), "message": message}
        return [*events, self._end("failed")]

    def _end(self, name: str) -> Event:
        prompt = self._call.job.prompts[0]
        reasoning = self._call.reasoning
        self._usage = usage_of(
            len(prompt.token_ids),
            self._sample.num_cached_tokens,
            len(self._sample.token_ids),
            0 if reasoning is None else reasoning.total,
        )
        return lifecycle(name, self.response())

    def response(self) -> dict[str, Any]:
        """The response object as it stands; open items are left out."""
        return self._call.response.build(
            self.status, list(self._output.items), self._usage, self._error, self._messages()
        )

    def item_ids(self) -> list[str]:
        """Ids of the closed output items."""
        return [item["id"] for item in self._output.items]

    def conversation(self) -> Conversation:
        """For the next turn."""
        call = self._call
        return extended(call.before, call.messages, self._output.items, call.continued)

    def _messages(self) -> tuple[list[Any], list[Any]] | None:
        call, sample = self._call, self._sample
        if not call.body.enable_response_messages or call.body.background or self._usage is None:
            return None
        prompt = call.job.prompts[0]
        return (
            [raw_message(prompt.text or "", prompt.token_ids)],
            [raw_message("".join(sample.text), sample.token_ids)],
        )


def _code(error: BaseException) -> str:
    """One of OpenAI's codes of failed responses."""
    if isinstance(error, RequestError):
        return "invalid_prompt"
    return "rate_limit_exceeded" if isinstance(error, CapacityError) else "server_error"
