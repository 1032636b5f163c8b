"""What `ortloom chat` and `ortloom complete` share: flags, the loop, one streamed answer."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from ortloom.bench.event_stream import EventParser
from ortloom.bench.http_client import HttpClient
from ortloom.commands.arguments import Arguments
from ortloom.commands.help_text import help_text
from ortloom.commands.serve import help_request, parse, show_help
from ortloom.errors import ConfigError, OrtloomError
from ortloom.flags import FlagTable
from ortloom.logs import say
from ortloom.process_title import blank_arguments

Command = Literal["chat", "complete"]

_NOT_OF = {"chat": "--max-tokens", "complete": "--system-prompt"}
_GROUPS = {"Client": "the server, and what is asked of it"}
DEFAULT_URL = "http://localhost:8000/v1"


class AnswerFailed(OrtloomError):
    """The server cannot be reached, or did not answer."""


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The flags. `quick` None = a loop over what the user types."""

    url: str
    api_key: str
    model: str | None
    system_prompt: str | None
    max_tokens: int | None
    quick: str | None
    stats: bool


def client_table(command: Command) -> FlagTable:
    """The flags of a command."""
    table = msgspec.json.decode(
        Path(__file__).with_name("client_flags.json").read_bytes(), type=FlagTable
    )
    flags = tuple(flag for flag in table.flags if flag.name != _NOT_OF[command])
    return FlagTable(table.reasons, flags)


def read_client_options(command: Command, tokens: list[str], about: str) -> ClientOptions | None:
    """The options; None = help was asked for and has been printed.

    Raises:
        ConfigError: a flag is wrong.
    """
    table = client_table(command)
    word = help_request(tokens)
    if word is not None:
        usage = f"usage: ortloom {command} [options]"
        show_help(help_text(word or None, table, _GROUPS, usage, about), paged=word == "page")
        return None
    args = parse(tokens, table)
    for line in args.warnings:
        say(f"warning: {line}")
    key = args.get("--api-key")
    if key is not None:
        blank_arguments([str(key)])  # any user of the machine can read argument lists
    max_tokens = args.get("--max-tokens")
    if isinstance(max_tokens, int) and max_tokens < 1:
        raise ConfigError(f"argument --max-tokens: must be at least 1, got {max_tokens}")
    return ClientOptions(
        url=str(args.get("--url") or DEFAULT_URL),
        api_key=str(key or os.environ.get("OPENAI_API_KEY") or "EMPTY"),
        model=_text(args, "--model-name"),
        system_prompt=_text(args, "--system-prompt"),
        max_tokens=max_tokens if isinstance(max_tokens, int) else None,
        quick=_quick(args),
        stats=bool(args.get("--stats")),
    )


def _text(args: Arguments, name: str) -> str | None:
    value = args.get(name)
    return None if value is None else str(value)


def _quick(args: Arguments) -> str | None:
    """The message of -q, with the words that follow it."""
    message = args.get("--quick")
    if message is None:
        if args.positionals:
            raise ConfigError(f"unrecognized arguments: {' '.join(args.positionals)}")
        return None
    return " ".join([str(message), *args.positionals])


class Answerer:
    """Asks one server; use as a context manager.

    Args:
        options: server and key.

    Attributes:
        model: the name that is asked for.

    Raises:
        ConfigError: the URL cannot be used.
        AnswerFailed: the server cannot be reached or lists no model.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._runner = asyncio.Runner()
        headers = {"Authorization": f"Bearer {options.api_key}"}
        self._client = HttpClient(options.url.rstrip("/"), headers)
        self.model = options.model or self._first_model()

    def __enter__(self) -> "Answerer":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._runner.close()

    def _first_model(self) -> str:
        try:
            reply = self._runner.run(self._client.get("/models"))
        except OSError as error:
            raise AnswerFailed(f"cannot reach {self._options.url}: {_reason(error)}") from None
        if reply.status != 200:
            raise AnswerFailed(
                f"{self._options.url}/models: {_error_text(reply.status, reply.body)}"
            )
        try:
            return str(json.loads(reply.body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise AnswerFailed(f"{self._options.url}/models lists no model") from None

    def ask(
        self, path: str, fields: Mapping[str, Any], text_of: Callable[[dict[str, Any]], str | None]
    ) -> str:
        """Print an answer as it comes.

        Args:
            path: of the route, below the URL.
            fields: of the body; model and streaming are added.
            text_of: the text of a chunk's choice.

        Returns:
            The answer.

        Raises:
            AnswerFailed: there is none, or not all of it.
        """
        answer = _Answer(text_of)
        options = {"include_usage": True}
        body = {"model": self.model, **fields, "stream": True, "stream_options": options}
        try:
            reply = self._runner.run(
                self._client.post(path, json.dumps(body).encode(), sink=answer.take)
            )
        except OSError as error:
            raise AnswerFailed(f"the answer broke off: {_reason(error)}") from None
        if answer.text or reply.status == 200:
            print(flush=True)
        if reply.status != 200:
            raise AnswerFailed(_error_text(reply.status, bytes(answer.refusal)))
        if answer.error is not None:
            raise AnswerFailed(answer.error)
        if self._options.stats:
            print(answer.stats(), flush=True)
        return "".join(answer.text)


class _Answer:
    """Prints and keeps the pieces of one answer."""

    def __init__(self, text_of: Callable[[dict[str, Any]], str | None]) -> None:
        self._text_of = text_of
        self._events = EventParser()
        self._begin = time.monotonic()
        self._first = self._last = 0.0
        self._tokens = 0
        self.text: list[str] = []
        self.error: str | None = None
        self.refusal = bytearray()

    def take(self, status: int, piece: bytes) -> None:
        """Bytes of the reply."""
        if status != 200:
            self.refusal += piece
            return
        for data in self._events.feed(piece):
            if data != b"[DONE]":
                self._event(json.loads(data))

    def _event(self, event: dict[str, Any]) -> None:
        if event.get("error") is not None:
            self.error = str(event["error"].get("message", event["error"]))
            return
        usage = event.get("usage")
        if usage:
            self._tokens = int(usage.get("completion_tokens") or 0)
        for choice in event.get("choices") or ():
            text = self._text_of(choice)
            if text:
                self._last = time.monotonic()
                self._first = self._first or self._last
                self.text.append(text)
                print(text, end="", flush=True)

    def stats(self) -> str:
        """The line of --stats."""
        tokens = self._tokens or len(self.text)
        span = self._last - self._begin
        rate = tokens / span if span > 0 else 0.0
        ttft = 1000 * (self._first - self._begin) if self._first else 0.0
        return f"TTFT: {ttft:.1f} ms, {rate:.2f} tokens/s ({tokens} tokens)"


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _error_text(status: int, body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return f"{status}: {error['message']}"
    except (ValueError, LookupError, TypeError):
        return f"the server answered {status}"


def typed_lines() -> Iterable[str]:
    """What the user types, without empty lines, up to the end of the input."""
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  (input() then edits lines)
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        if line.strip():
            yield line


def converse(options: ClientOptions, ask: Callable[[Answerer, str], None], hint: str) -> int:
    """Answer the one message of -q, or all that the user types; returns the exit code.

    Args:
        options: the flags.
        ask: prints the answer to a message.
        hint: what to type.

    Raises:
        AnswerFailed: with -q, or where the server cannot be reached at all.
    """
    try:
        with Answerer(options) as answerer:
            if options.quick is not None:
                ask(answerer, options.quick)
                return 0
            print(f"Using model: {answerer.model}", flush=True)
            print(hint, flush=True)
            for line in typed_lines():
                try:
                    ask(answerer, line)
                except AnswerFailed as error:
                    say(f"error: {error}")
    except KeyboardInterrupt:
        print()
    return 0
