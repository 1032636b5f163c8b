"""Every field of every request type: its default, what its values do, and how others are refused.

The fields are listed from the types themselves, so that a new one without rows fails.
"""

import importlib
import pkgutil
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

from field_tables import (  # noqa: E402
    chat,
    completions,
    controls,
    derender,
    documented,
    generate,
    messages,
    parts,
    responses,
    tokenize,
)
from field_tables.rows import OMIT, SAME, Field, Refusal, Sight, Taken, everything  # noqa: E402
from parser_doubles import AngleThinking, BracketCalls  # noqa: E402

from ortloom import server  # noqa: E402
from ortloom.config import RouteConfig  # noqa: E402
from ortloom.models.generation_config import GenerationDefaults  # noqa: E402
from ortloom.server.output_parsers import OutputParsers, ThinkingMarkers  # noqa: E402

MODULES = (
    completions, chat, parts, responses, messages, tokenize, generate, derender, controls,
)  # fmt: skip
KINDS = {kind.name: kind for module in MODULES for kind in module.KINDS}
CASES = [(kind.name, name) for kind in KINDS.values() for name in kind.fields]

SHOWING = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m.name is defined %}({{ m.name }}){% endif %}"
    "{% if m.reasoning is defined %}{{ '{' + m.reasoning + '}' }}{% endif %}"
    "{% if m.tool_call_id is defined %}#{{ m.tool_call_id }} {% endif %}"
    "{% for c in m.tool_calls or [] %}"
    "call {{ c.function.name }} {{ c.function.arguments.city }} @{{ c.id }}{% endfor %}"
    "{{ m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{{ tools | tojson if tools else '' }}{{ documents | tojson if documents else '' }}"
    "{% if enable_thinking is defined %}{{ 'think' if enable_thinking else 'quick' }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template that writes all it is given."""


@pytest.fixture(scope="module")
def servers(start, shared_app, tokenizer):
    closing = tuple(tokenizer.encode("</r>", add_special_tokens=False))
    markers = ThinkingMarkers("<r>", "</r>", None, None, (), closing)
    parsers = OutputParsers(tool=BracketCalls, auto=True, reasoning=AngleThinking, markers=markers)
    front = {
        "routes": RouteConfig(scale_out=True, dev_mode=True, tokenizer_info=True),
        "trust_request_chat_template": True,
        "enable_responses_store": True,
    }
    defaults = GenerationDefaults(
        temperature=0.3, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.1
    )
    with (
        start(
            front=front,
            model={"logits_processor_pattern": "allowed.*", "enable_sleep_mode": True},
            template=SHOWING,
            parsers=parsers,
        ) as everything_on,
        start(front={"routes": RouteConfig(scale_out=True)}) as scale_out,
        start(defaults=defaults, model={"max_logprobs": -1}) as configured,
        start(front={"routes": RouteConfig(tokens_only=True)}) as tokens_only,
    ):
        yield {
            "plain": shared_app,
            "open": everything_on,
            "scale_out": scale_out,
            "configured": configured,
            "tokens_only": tokens_only,
        }


@pytest.fixture
def attempt(servers, engine, tokenizer, monkeypatch):
    """Send one row; what it left behind."""
    encoded = []
    real = type(tokenizer).encode

    def encode(self, text, add_special_tokens=True):
        encoded.append((text, add_special_tokens))
        return real(self, text, add_special_tokens)

    monkeypatch.setattr(type(tokenizer), "encode", encode)

    def send(kind, name, row):
        field = kind.fields[name]
        fields = {**field.beside, **row.beside, name: row.value}
        engine.reset()
        encoded.clear()
        text = fields.pop("_say", None)
        ids = real(tokenizer, text or " is a place of endless wonder", False)
        engine.reply = lambda request: [*ids, tokenizer.eos_token_id] if text else ids
        body = kind.body(fields)
        body = without_omitted(body)
        app = servers[on := row.on or field.on or kind.on]
        if on == "open":  # its template writes more
            engine.ready = msgspec.structs.replace(engine.ready, max_model_len=512)
        if kind.query:
            response = app.client.request(kind.method, kind.path, params=body)
        else:
            response = app.post(kind.path, body)
        return Sight(body, response, engine, tokenizer, encoded, app)

    return send


def without_omitted(value):
    if isinstance(value, dict):
        return {k: without_omitted(v) for k, v in value.items() if v is not OMIT}
    return [without_omitted(v) for v in value] if isinstance(value, list) else value


def see(field, sight):
    assert sight.response.status_code == 200, (sight.body, sight.response.text)
    return field.seen(sight)


def check(kind, name, row, attempt, known=None):
    """A value that is taken does what its row says; `known` is what was seen without it."""
    field = kind.fields[name]
    sight = attempt(kind, name, row)
    found = see(field, sight)
    wanted = row.seen(sight) if callable(row.seen) else row.seen
    if wanted is SAME:
        known = {} if known is None else known
        key = (repr(row.beside), row.on)
        if key not in known:
            left_out = attempt(kind, name, Taken(OMIT, None, row.beside, row.on))
            known[key] = see(field, left_out)
        wanted = known[key]
    assert found == wanted, (row, sight.response.text)
    assert type(found) is type(wanted)


def check_refused(kind, name, row, attempt):
    """A value that is not taken is refused as its row says, before anything is generated."""
    sight = attempt(kind, name, row)
    response = sight.response
    assert response.status_code == row.status, (row, response.text)
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    if kind.anthropic and row.type != "Bad Request":
        assert set(error) == {"type", "message"}
        assert error["type"] == row.type
    else:
        assert set(error) == {"message", "type", "param", "code"}
        found = (error["type"], error["param"], error["code"])
        assert found == (row.type, row.param, row.status), (row, error)
    assert (row.says or name) in error["message"], (row, error)
    assert not sight.engine.requests


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_names_every_field(kind):
    kind = KINDS[kind]
    listed = {name for struct in kind.structs for name in struct.__struct_fields__}
    assert kind.query or listed - kind.left_out == set(kind.fields)
    for name, field in kind.fields.items():
        assert field.taken or field.refused, name


NO_REQUESTS = {
    "ModelPermission": "part of a reply",
    "ModelCard": "part of a reply",
    "ModelList": "a reply",
    "TokenizeResponse": "a reply",
    "DetokenizeResponse": "a reply",
    "GenerationRequest": "the base of others, whose tables have its fields",
    "Piece": "what an output adds to a sample",
    "DerenderCommon": "the base of others, whose tables have its fields",
    "_Members": "tells the forms of /invocations apart",
}


BETWEEN_FRONTS = "ortloom.server.openai.responses.peer_messages"
"""Its types are what fronts ask each other."""


def test_every_type_of_a_body_is_walked():
    """Whatever struct the routes define is in a table, or no part of a request."""
    walked = {struct for kind in KINDS.values() for struct in kind.structs}
    walked.add(messages.COUNTED[1])
    for package in (server.openai, server.anthropic, server.routes):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for struct in vars(importlib.import_module(module.name)).values():
                if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)):
                    continue
                if module.name == BETWEEN_FRONTS:
                    continue
                if struct.__module__ == module.name and struct not in walked:
                    assert struct.__name__ in NO_REQUESTS, struct


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_field(attempt, kind, name):
    kind, known = KINDS[kind], {}
    field = kind.fields[name]
    if field.missing is not None:
        check_refused(kind, name, field.missing, attempt)
    elif field.default is not SAME:
        check(kind, name, Taken(OMIT, field.default), attempt)
    if isinstance(field.null, Refusal):
        check_refused(kind, name, field.null, attempt)
    else:
        check(kind, name, Taken(None, field.null), attempt, known)
    for row in field.taken:
        check(kind, name, row, attempt, known)
    for row in field.refused:
        check_refused(kind, name, row, attempt)


@pytest.mark.parametrize("name", messages.BOTH)
def test_tokens_are_counted_for_every_field(attempt, name):
    """Counting takes and refuses what the message would, and counts what it would be asked."""
    kind = KINDS["messages"]
    path, struct, table = messages.COUNTED
    assert set(struct.__struct_fields__) == set(table)
    count = replace(kind, path=path, body=lambda fields: without_max_tokens(kind.body(fields)))
    field = table[name]
    for row in field.taken:
        sight = attempt(kind, name, row)
        size = len(sight.request.prompt_token_ids)
        counted = attempt(count, name, row)
        assert counted.response.status_code == 200, counted.response.text
        assert counted.json["input_tokens"] == size
        assert not counted.engine.requests
    for row in field.refused:
        if "messages_only" not in row.beside:
            check_refused(count, name, row, attempt)


def without_max_tokens(body):
    return {name: value for name, value in body.items() if name != "max_tokens"}


@pytest.mark.parametrize("kind", documented.FIELDS)
def test_every_documented_field_is_there(kind):
    missing = set(documented.FIELDS[kind]) - set(KINDS[kind].fields)
    assert missing <= set(documented.IGNORED)


@pytest.mark.parametrize("kind", ["completions", "chat", "batch", "responses", "messages"])
@pytest.mark.parametrize("name", documented.IGNORED)
def test_fields_that_change_nothing(attempt, kind, name):
    kind = KINDS[kind]
    if name in kind.fields:
        return
    value, _ = documented.IGNORED[name]
    unknown = replace(kind, fields={name: Field(everything, SAME, [], [])})
    check(unknown, name, Taken(value, SAME), attempt)


RENDERED = [
    (kind, name)
    for kind in ("completions", "chat")
    for name in KINDS[kind].fields
    if name not in ("use_beam_search", "request_id")  # no beams there; a rendered id is longer
]


@pytest.mark.parametrize(("kind", "name"), RENDERED)
def test_a_rendered_request_is_the_same(attempt, servers, kind, name):
    """Rendering takes and refuses what the request would; what it gives asks the engine for the
    same."""
    kind = KINDS[kind]
    field = kind.fields[name]
    render = replace(kind, path=f"{kind.path}/render", on="scale_out")
    for row in field.taken:
        if (row.on or field.on) in ("open", "configured"):
            continue
        if row.beside.get("max_tokens") == 0:  # nothing would be generated
            continue
        direct = attempt(replace(kind, on="scale_out"), name, row)
        if direct.body.get("stream"):
            continue
        asked = [asked_of(request) for request in direct.engine.requests]
        rendered = attempt(render, name, row)
        assert rendered.response.status_code == 200, rendered.response.text
        assert not rendered.engine.requests
        found = rendered.json
        for request in found if isinstance(found, list) else [found]:
            response = servers["scale_out"].post("/inference/v1/generate", request)
            assert response.status_code == 200, (row, response.text)
        assert [asked_of(request) for request in rendered.engine.requests] == asked, row
    for row in field.refused[:2]:  # what refuses is the same code
        if row.on is None and field.on is None:
            check_refused(render, name, row, attempt)


def asked_of(request):
    """What the engine was asked for, without name and time."""
    return msgspec.structs.replace(request, request_id="", arrival_time=0.0)


INVOKED = [(kind, name) for kind in ("completions", "chat") for name in KINDS[kind].fields]


@pytest.mark.parametrize(("kind", "name"), INVOKED)
def test_invocations_answer_alike(attempt, kind, name):
    """One path for both forms: what is taken and what is out of range. Bodies that fit neither
    form are told so."""
    kind = replace(KINDS[kind], path="/invocations")
    field = kind.fields[name]
    for row in field.taken[:1]:  # what answers is the same code
        check(kind, name, row, attempt)
    for row in (field.refused[:1] + field.refused[-1:])[:2]:
        if row.type != "Bad Request":
            check_refused(kind, name, row, attempt)
            continue
        error = attempt(kind, name, row).response.json()["error"]
        assert (error["code"], bool(error["message"])) == (400, True)
