"""What the tables of request fields are made of, and how a row is tried.

A `Kind` is a request type: where it is posted, what a good body is, and a `Field` for each of its
fields. A field says what to look at (`seen`), what is seen there when the field is left out, what
other values make of it, and what is refused how.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

BAD = "Bad Request"
REFUSED = "BadRequestError"
RULE = "invalid_request_error"


class _Mark:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name


SAME = _Mark("SAME")
"""What is seen when the field is left out."""
OMIT = _Mark("OMIT")
"""As a value: the field is left out."""


@dataclass
class Sight:
    """What one request left behind."""

    body: dict
    response: Any
    engine: Any
    tokenizer: Any
    encoded: list
    app: Any

    @property
    def kept(self):
        """Whether the response can be had again."""
        return self.app.client.get(f"/v1/responses/{self.json['id']}").status_code == 200

    def finished(self):
        """The status a background response ends with; None of another."""
        status = self.json["status"]
        if status not in ("queued", "in_progress"):
            return None
        path = f"/v1/responses/{self.json['id']}"

        def ended():
            found = self.app.client.get(path).json()["status"]
            return None if found in ("queued", "in_progress") else found

        return self.until(ended)

    def until(self, what):
        """The first true value of `what()`."""
        for _ in range(2000):
            if value := what():
                return value
            time.sleep(0.005)
        raise AssertionError("not within ten seconds")

    @property
    def prompts(self):
        """The prompts as texts, in their order."""
        return [self.tokenizer.decode(r.prompt_token_ids, False) for r in self.engine.requests]

    @property
    def json(self):
        return self.response.json()

    @property
    def events(self):
        return events_of(self.response)

    @property
    def prompt(self):
        """The prompt as text."""
        return self.tokenizer.decode(self.engine.requests[0].prompt_token_ids, False)

    @property
    def request(self):
        return self.engine.requests[0]

    @property
    def everything(self):
        """All that was asked and answered, without ids and times."""
        asked = [
            {**msgspec.to_builtins(r), "request_id": 0, "arrival_time": 0}
            for r in self.engine.requests
        ]
        return asked, plain(self.json)


def plain(value):
    """A reply without its ids and times."""
    if isinstance(value, dict):
        volatile = ("id", "created", "created_at", "request_id", "completed_at", "signature")
        return {k: plain(v) for k, v in value.items() if k not in volatile}
    return [plain(v) for v in value] if isinstance(value, list) else value


def events_of(response):
    """The data of all events of a stream, parsed where it is JSON."""
    found = []
    for line in response.text.splitlines():
        if line.startswith("data: "):
            data = line[6:]
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


# ---- what can be looked at


def sampling(name):
    return lambda sight: getattr(sight.request.sampling, name)


def asked(name):
    return lambda sight: getattr(sight.request, name)


def reply(*path):
    """A member of the reply; a missing one is MISSING."""

    def see(sight):
        value = sight.json
        for name in path:
            if isinstance(value, dict) and name not in value:
                return MISSING
            value = value[name]
        return value

    return see


MISSING = _Mark("MISSING")


def everything(sight):
    return sight.everything


def prompt(sight):
    return sight.prompt


def prompt_size(sight):
    return len(sight.request.prompt_token_ids)


def samples(sight):
    return len(sight.engine.requests)


def response_id(sight):
    """The part of the id after its prefix; a random one is RANDOM."""
    given = sight.json.get("id", sight.json.get("request_id"))
    last = given.rpartition("-")[2] if "resp_" not in given else given.removeprefix("resp_")
    return "RANDOM" if len(last) == 32 and not set(last) - set("0123456789abcdef") else last


# ---- rows


@dataclass(frozen=True)
class Taken:
    """A value that is taken: what is seen then, beside which other fields, on which server."""

    value: Any
    seen: Any
    beside: dict = field(default_factory=dict)
    on: str | None = None


@dataclass(frozen=True)
class Refusal:
    """A value that is refused; the message holds `says`, or else the field's name."""

    value: Any
    type: str
    param: str | None
    beside: dict = field(default_factory=dict)
    says: str | None = None
    status: int = 400
    on: str | None = None


@dataclass(frozen=True)
class Field:
    """One field of a request type.

    `null` is what is seen with null (SAME as leaving it out), or a Refusal. `default` SAME means
    that what is seen without it is not named here (it is everything). A field with `missing` is
    required: that is what is answered without it.
    """

    seen: Callable[[Sight], Any]
    default: Any
    taken: list[Taken]
    refused: list[Refusal]
    beside: dict = field(default_factory=dict)
    null: Any = SAME
    missing: Refusal | None = None
    on: str | None = None

    def but(self, **changes):
        """The same with some members changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Kind:
    """One request type, or a part of one.

    Attributes:
        structs: the types its fields are listed from; `left_out` are those that others list.
        body: fields of the part -> the whole body.
        on: the server it is tried on, where neither row nor field names another.
        query: its fields are parameters of the URL, which no type lists.
    """

    name: str
    path: str
    structs: tuple[type, ...]
    fields: dict[str, Field]
    body: Callable[[dict], dict]
    on: str = "plain"
    anthropic: bool = False
    left_out: frozenset = frozenset()
    method: str = "POST"
    query: bool = False


def ok(value, seen=SAME, /, on=None, **beside):
    return Taken(value, seen, beside, on)


def no(value, kind, param=None, says=None, /, on=None, status=400, **beside):
    return Refusal(value, kind, param, beside, says, status, on)


def wrong(name, *values, start="body"):
    """Values of a wrong type, refused by the schema at the field's own place."""
    return [Refusal(value, BAD, f"{start}.{name}") for value in values]


def ignored(*values, refused=(), **more):
    """A field that is taken and changes nothing."""
    return Field(everything, SAME, [ok(value) for value in values], list(refused), **more)
