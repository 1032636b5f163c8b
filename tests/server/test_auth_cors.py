"""Keys, cross-origin headers, request ids and the root path, on two fronts."""

from pathlib import Path

import httpx
import pytest
from serving import COMPLETIONS, KEY, body, until

ORIGIN = "http://app.example"


@pytest.fixture
def anyone(guarded):
    with httpx.Client(base_url=guarded.url, timeout=20) as client:
        yield client


@pytest.mark.parametrize(
    "header",
    [None, "Bearer wrong", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", "Bearer", KEY],
)
def test_every_guarded_route_refuses(anyone, header):
    headers = {"authorization": header} if header else {}
    for reply in (
        anyone.get("/v1/models", headers=headers),
        anyone.post(COMPLETIONS, json=body(), headers=headers),
        anyone.post("/tokenize", json={"prompt": "a"}, headers=headers),
        anyone.get("/server_info", headers=headers),
        anyone.post("/reset_prefix_cache", headers=headers),
        anyone.get("/nope", headers=headers),
        anyone.get("//v1/models", headers=headers),
        anyone.get("/proxy/v1/models", headers=headers),
    ):
        assert reply.status_code == 401, reply.request.url
        assert reply.json()["error"] == {
            "message": "Unauthorized",
            "type": "Unauthorized",
            "param": None,
            "code": 401,
        }
        assert reply.headers["www-authenticate"] == "Bearer"
        assert KEY not in reply.text


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/metrics", "/metrics/x"])
def test_public_routes_need_no_key(anyone, path):
    assert anyone.get(path).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_has_no_case(anyone, scheme):
    headers = {"authorization": f"{scheme} {KEY}"}
    assert anyone.get("/v1/models", headers=headers).status_code == 200


def test_two_authorization_headers_are_refused(anyone):
    headers = [("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")]
    assert anyone.get("/v1/models", headers=headers).status_code == 401


def test_the_root_path_is_removed_before_everything(guarded, anyone):
    assert guarded.client.get("/proxy/v1/models").status_code == 200
    assert guarded.client.get("/v1/models").status_code == 200
    assert anyone.get("/proxy/health").status_code == 200


def test_preflight_needs_no_key(anyone):
    reply = anyone.options(
        COMPLETIONS,
        headers={
            "origin": ORIGIN,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        },
    )
    assert reply.status_code == 204
    assert reply.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
    assert reply.headers["access-control-allow-credentials"] == "true"
    assert reply.headers["vary"] == "Origin"


def test_all_kinds_of_responses_carry_cors_headers(guarded, anyone):
    headers = {"origin": ORIGIN}
    client = guarded.client
    for reply, status in (
        (client.post(COMPLETIONS, json=body(), headers=headers), 200),
        (client.post(COMPLETIONS, json=body(stream=True), headers=headers), 200),
        (client.post(COMPLETIONS, json=body(temperature=-1), headers=headers), 400),
        (client.get("/nope", headers=headers), 404),
        (client.get(COMPLETIONS, headers=headers), 405),
        (anyone.post(COMPLETIONS, json=body(), headers=headers), 401),
    ):
        assert reply.status_code == status
        assert reply.headers["access-control-allow-origin"] == ORIGIN


def test_another_origin_gets_none(guarded):
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    assert guarded.client.options(COMPLETIONS, headers=headers).status_code == 400
    reply = guarded.client.get("/v1/models", headers=headers)
    assert "access-control-allow-origin" not in reply.headers


def test_any_origin_by_default(server):
    reply = server.client.get("/version", headers={"origin": ORIGIN})
    assert reply.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-origin" not in server.client.get("/version").headers


def test_request_ids(guarded, server):
    client = guarded.client
    assert client.get("/version", headers={"x-request-id": "abc"}).headers["x-request-id"] == "abc"
    fresh = client.get("/version").headers["x-request-id"]
    assert len(fresh) == 32
    int(fresh, 16)
    assert client.get("/nope").headers["x-request-id"]
    odd = client.get("/version", headers={"x-request-id": "caf\u00e9".encode()})
    assert len(odd.headers["x-request-id"]) == 32
    stream = client.post(COMPLETIONS, json=body(stream=True), headers={"x-request-id": "s-1"})
    assert stream.headers["x-request-id"] == "s-1"
    assert "x-request-id" not in server.client.get("/version").headers


def test_the_access_log_has_one_line_a_request_and_no_secret(guarded):
    headers = {"x-request-id": "line-me"}
    guarded.client.post(COMPLETIONS, json=body(prompt="hush hush"), headers=headers)
    guarded.client.get("/quiet", headers={"x-request-id": "not-me"})
    guarded.client.get("/nope", headers={"x-request-id": "after"})
    until(lambda: "id=after" in guarded.text())
    text = guarded.text()
    (line,) = [x for x in text.splitlines() if "id=line-me" in x]
    assert f'"POST {COMPLETIONS}" 200 ' in line
    assert "prompt=9 cached=0 output=4 finish=length" in line
    assert "hush" not in text
    assert "not-me" not in text


def test_the_key_is_nowhere(guarded, anyone):
    """Not in argument lists, environments, logs or any reply."""
    anyone.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
    anyone.get("/v1/models", headers={"authorization": f"Bearer {KEY}-bad"})
    pids = [guarded.process.pid, guarded.engine_pid, *guarded.front_pids]
    assert len(pids) == 4
    for pid in pids:
        assert KEY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert KEY.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    for path in (
        "/health",
        "/version",
        "/metrics",
        "/v1/models",
        "/server_info",
        "/server_info?config_format=json",
        "/load",
    ):
        assert KEY not in guarded.client.get(path).text
    assert KEY not in guarded.text()


def test_server_info_has_three_parts(guarded):
    as_text = guarded.client.get("/server_info").json()
    assert isinstance(as_text["vllm_config"], str)
    as_json = guarded.client.get("/server_info?config_format=json").json()
    assert as_json["vllm_config"]["front"]["api_keys"] == ["***"]
    assert as_json["engine"]["provider"]["losing"] == {"cuda": "no device"}
    assert {"vllm_env", "system_env"} <= set(as_json)
    assert guarded.client.get("/server_info?config_format=xml").status_code == 400


def test_model_cards(guarded):
    cards = guarded.client.get("/v1/models").json()
    assert [card["id"] for card in cards["data"]] == ["tiny", "alias"]
    card = cards["data"][0]
    assert card["root"] == "org/tiny@abc123"
    assert (card["owned_by"], card["parent"], card["max_model_len"]) == ("vllm", None, 4096)
    assert card["permission"][0]["id"].startswith("modelperm-")
    assert guarded.client.get("/v1/models/alias").json()["id"] == "alias"
    assert guarded.client.get("/v1/models/other").status_code == 404
