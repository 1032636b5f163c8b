"""The OpenAPI document says what is served; the pages show it; fingerprints."""

import re

import pytest

from ortloom.config import RouteConfig
from ortloom.server.openai.wire_chat import ChatCompletionRequest, TemplateFields
from ortloom.server.openai.wire_completion import CompletionRequest
from ortloom.server.openai.wire_generate import GenerateRequest
from ortloom.server.openapi.bodies import BODIES, EMPTY, QUERIES, STREAMS
from ortloom.server.openapi.details import EITHER, FURTHER

EVERYTHING = RouteConfig(scale_out=True, dev_mode=True, profiler=True, tokenizer_info=True)


@pytest.fixture(scope="module")
def whole(start):
    with start(front={"routes": EVERYTHING, "api_keys": ("k",)}) as running:
        running.client.headers["authorization"] = "Bearer k"
        yield running


@pytest.fixture
def document(whole, engine):
    return whole.client.get("/openapi.json").json()


def test_every_route_is_in_it_and_no_other(whole, document):
    from ortloom.server.app import create_app

    registered = {
        (re.sub(r"<([^:>]+)(:[^>]+)?>", r"{\1}", f"/{route.path}"), method)
        for route in create_app(whole.context).router.routes
        for method in route.methods - {"HEAD", "OPTIONS"}
    }
    listed = {(p, m.upper()) for p, methods in document["paths"].items() for m in methods}
    assert listed == registered
    assert ("/v1/chat/completions", "POST") in listed


def test_what_it_lists_exists(whole, document):
    for path, methods in document["paths"].items():
        for method in methods:
            response = whole.client.request(method.upper(), re.sub(r"{\w+}", "tiny", path))
            in_table = response.status_code not in (404, 405) or "detail" not in response.text
            assert in_table, (method, path)
    whole.post("/wake_up", {})


def test_the_tables_name_routes_that_exist(document):
    for path in (*BODIES, *EITHER, *FURTHER, *QUERIES, *EMPTY, *STREAMS):
        assert path in document["paths"]


def references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_reference_leads_to_a_schema(document):
    found = set(references(document))
    assert found
    for reference in found:
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


def test_operations_are_named_once_and_say_what_they_do(document):
    operations = [o for methods in document["paths"].values() for o in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert all(operation["summary"] for operation in operations)
    assert document["security"] == [{"key": []}]


@pytest.mark.parametrize(
    ("path", "types"),
    [
        ("/v1/completions", [CompletionRequest]),
        ("/v1/chat/completions", [ChatCompletionRequest, TemplateFields]),
        ("/inference/v1/generate", [GenerateRequest]),
    ],
)
def test_bodies_have_the_fields_of_their_types(document, path, types):
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    names = [r.rpartition("/")[2] for r in references(body)]
    fields = set()
    for name in names:
        fields |= set(document["components"]["schemas"][name]["properties"])
    assert fields == {field for kind in types for field in kind.__struct_fields__}


def test_every_route_that_reads_a_body_describes_it(whole, document):
    for path, methods in document["paths"].items():
        if "post" not in methods or "{" in path or path in ("/pause", "/sleep"):
            continue
        post = methods["post"]
        refused = whole.client.post(path)
        reads = refused.status_code == 400 and "only 'application/json'" in refused.text
        assert reads <= ("requestBody" in post), path
    whole.post("/wake_up", {})


def test_errors_have_the_form_that_is_described(whole, document):
    schemas = document["components"]["schemas"]
    for path in ("/v1/messages", "/v1/chat/completions"):
        told = document["paths"][path]["post"]["responses"]["4XX"]["content"]["application/json"]
        schema = schemas[told["schema"]["$ref"].rpartition("/")[2]]
        for body in ({}, {"model": "another", "max_tokens": 1, "messages": []}):
            error = whole.client.post(path, json=body).json()
            assert set(schema["required"]) <= set(error)
            inner = schema["properties"]["error"]
            if "$ref" in inner:
                inner = schemas[inner["$ref"].rpartition("/")[2]]
            assert set(inner["required"]) <= set(error["error"])


def test_switches_of_the_prefix_cache_are_true_or_false(whole):
    for name in ("reset_running_requests", "reset_external"):
        assert whole.client.post("/reset_prefix_cache", params={name: "true"}).is_success
        refused = whole.client.post("/reset_prefix_cache", params={name: "3"})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == name


def test_the_pages(app, serve):
    for path, script in (("/docs", "swagger-ui"), ("/redoc", "redoc")):
        page = app.client.get(path)
        assert page.headers["content-type"].startswith("text/html")
        assert script in page.text
        assert "https://" in page.text
    with serve(front={"routes": RouteConfig(offline_docs=True)}) as other:
        for path in ("/docs", "/redoc"):
            text = other.client.get(path).text
            assert "openapi.json" in text
            assert "http" not in text
    with serve(front={"routes": RouteConfig(docs=False)}) as other:
        for path in ("/docs", "/redoc", "/openapi.json"):
            assert other.client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("full", None, r"ortloom-[^-]+-[0-9a-f]{8}"),
        ("hash", None, r"[0-9a-f]{8}"),
        ("custom", "mine", "mine"),
        ("none", None, None),
    ],
)
def test_fingerprints(serve, say, mode, value, expected):
    say("x")
    with serve(front={"fingerprint_mode": mode, "fingerprint_value": value}) as app:
        replies = [
            app.post("/v1/completions", {"prompt": "a"}).json(),
            app.events("/v1/completions", {"prompt": "a"})[-1],
        ]
    for reply in replies:
        found = reply["system_fingerprint"]
        assert found is None if expected is None else re.fullmatch(expected, found)
