"""One streamed generation: its request body, and its record of times and tokens.

Counts come from the server's usage object. Times are seconds of `time.perf_counter()`.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from ortloom.bench.event_stream import EventParser
from ortloom.bench.http_client import HttpClient
from ortloom.bench.samples import Sample

Api = Literal["completions", "chat"]

DONE = b"[DONE]"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go and what all of them carry.

    `models` are asked in turn (one, or adapters by `pick`). `fields` are merged into every body
    last, so that they can override what is there.
    """

    api: Api
    path: str
    models: tuple[str, ...]
    ignore_eos: bool = False
    logprobs: int | None = None
    fields: Mapping[str, object] = {}
    request_id_prefix: str = ""

    def body(self, sample: Sample, model: str) -> bytes:
        """The JSON body for a prompt."""
        body: dict[str, object] = {"model": model}
        if self.api == "chat":
            body["messages"] = [{"role": "user", "content": sample.prompt}]
            body["max_completion_tokens"] = sample.output_len
            if self.logprobs is not None:
                body |= {"logprobs": True, "top_logprobs": self.logprobs}
        else:
            body["prompt"] = sample.prompt
            body["max_tokens"] = sample.output_len
            if self.logprobs is not None:
                body["logprobs"] = self.logprobs
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode(body | dict(self.fields))


@dataclass(slots=True)
class Record:
    """What came of one request.

    `prompt_tokens` and `output_tokens` are the server's usage; without a usage object the sample's
    length and None. `ttft` is from the start to the first token, `latency` to the last; `itls` are
    the gaps between pieces that brought tokens. `error` is empty when the request succeeded.
    """

    prompt_tokens: int
    output_tokens: int | None = None
    start: float = 0.0
    ttft: float = 0.0
    latency: float = 0.0
    itls: list[float] = field(default_factory=list)
    text: str = ""
    error: str = ""

    @property
    def success(self) -> bool:
        """Whether the whole answer came."""
        return not self.error


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[object] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> str:
        """The text it brings."""
        delta = self.delta
        if delta is None:
            return self.text or ""
        return (delta.reasoning or delta.reasoning_content or "") + (delta.content or "")

    @property
    def brings_tokens(self) -> bool:
        """False for what only names the role or only says that the answer is over.

        A token may have no text of its own (a part of a character), so text is not asked for.
        """
        if self.piece or (self.delta is not None and self.delta.tool_calls):
            return True
        role_only = self.delta is not None and self.delta.role is not None
        return self.finish_reason is None and not role_only


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: object = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class _Listener:
    """Takes the response as it arrives."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._events = EventParser()
        self._last = 0.0
        self._texts: list[str] = []
        self.any_choice = 0.0
        self.ended = False
        self.refusal = b""

    def __call__(self, status: int, piece: bytes) -> None:
        if status != 200:
            self.refusal += piece
            return
        now = time.perf_counter()
        for data in self._events.feed(piece):
            if data == DONE:
                self.ended = True
            elif not self._record.error:
                self._chunk(data, now)

    def _chunk(self, data: bytes, now: float) -> None:
        record = self._record
        try:
            chunk = _decode_chunk(data)
        except msgspec.MsgspecError:
            record.error = f"an event of the stream is not what was expected: {_short(data)}"
            return
        if chunk.error is not None:
            record.error = f"error in the stream: {error_text(data)}"
            return
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            record.output_tokens = chunk.usage.completion_tokens
            record.prompt_tokens = chunk.usage.prompt_tokens or record.prompt_tokens
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        self.any_choice = self.any_choice or now
        record.latency = now - record.start
        self.ended = self.ended or choice.finish_reason is not None
        if not choice.brings_tokens:
            return
        if self._last:
            record.itls.append(now - self._last)
        else:
            record.ttft = now - record.start
        self._last = now
        self._texts.append(choice.piece)

    def close(self) -> None:
        """Fill in what is known at the end."""
        record = self._record
        record.text = "".join(self._texts)
        if not self._last and self.any_choice:
            record.ttft = self.any_choice - record.start
        if not record.error and not (self.ended and self.any_choice):
            record.error = "the stream ended before the answer did"


async def generate(
    client: HttpClient, target: Target, sample: Sample, model: str, name: str
) -> Record:
    """Send one request and read its stream; a failure becomes the record's `error`.

    Args:
        client: connections to the server.
        target: path and common fields.
        sample: the prompt.
        model: model name to ask for.
        name: id of the request, sent as X-Request-Id behind the target's prefix.
    """
    record = Record(prompt_tokens=sample.prompt_len)
    body = target.body(sample, model)
    headers = {"X-Request-Id": target.request_id_prefix + name}
    listener = _Listener(record)
    record.start = time.perf_counter()
    try:
        reply = await client.post(target.path, body, headers, listener)
    except OSError as error:
        record.error = record.error or describe(error)
        return record
    if reply.status != 200:
        record.error = f"HTTP {reply.status}: {error_text(listener.refusal)}"
        return record
    listener.close()
    return record


def describe(error: OSError) -> str:
    """A connection failure in words."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio's own text names the call and not the reason
    return error.strerror or str(error) or type(error).__name__


def error_text(body: bytes) -> str:
    """The message inside an error body, or the beginning of the body."""
    try:
        tree = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return _short(body)
    inner = tree.get("error", tree) if isinstance(tree, dict) else tree
    if isinstance(inner, dict):
        inner = inner.get("message", inner)
    return inner if isinstance(inner, str) else _short(body)


def _short(data: bytes) -> str:
    text = " ".join(data.decode("utf-8", "replace").split())
    return text if len(text) <= 300 else text[:297] + "..."
