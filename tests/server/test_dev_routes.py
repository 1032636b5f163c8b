"""The routes of dev mode over a real supervisor, two fronts and one engine."""

import json
import threading

import pytest
from serving import Server, until

from ortloom.config import ModelConfig, ProfilerConfig, RouteConfig

ROUTES = {
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
    ("GET", "/is_sleeping"),
    ("POST", "/abort_requests"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("POST", "/release_kv_cache_memory"),
    ("POST", "/reset_mm_cache"),
    ("POST", "/reset_encoder_cache"),
    ("POST", "/collective_rpc"),
    ("GET", "/get_world_size"),
    ("POST", "/init_weight_transfer_engine"),
    ("POST", "/start_weight_update"),
    ("POST", "/start_draft_weight_update"),
    ("POST", "/update_weights"),
    ("POST", "/finish_weight_update"),
    ("POST", "/update_weight_version"),
    ("GET", "/weight_info"),
}
PROMPT = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True}


class DevServer(Server):
    def __init__(self, bundle, folder, **options):
        routes = RouteConfig(dev_mode=True, profiler=True)
        super().__init__(bundle, routes=routes, num_fronts=2, **options)
        model = ModelConfig(
            bundle=str(bundle), served_model_names=("tiny",), enable_sleep_mode=True
        )
        profiler = ProfilerConfig(folder=str(folder))
        import msgspec

        self.config = msgspec.structs.replace(self.config, model=model, profiler=profiler)
        (self.folder / "config.json").write_bytes(msgspec.json.encode(self.config))


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def dev(bundle, profiles):
    with DevServer(bundle, profiles, env={"FAKE_STEP": "0.01"}) as running:
        yield running


def test_without_dev_mode_there_are_none(server):
    for method, path in sorted(ROUTES):
        response = server.client.request(method, path)
        assert (response.status_code, response.json()) == (404, {"detail": "Not Found"}), path
    for path in ("/start_profile", "/stop_profile"):
        assert server.client.post(path).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/is_paused", 200, {"is_paused": False}),
        ("GET", "/is_sleeping", 200, {"is_sleeping": False}),
        ("GET", "/get_world_size", 200, {"world_size": 1}),
        ("POST", "/pause?mode=never", 400, "mode"),
        ("POST", "/pause?clear_cache=perhaps", 400, "clear_cache"),
        ("POST", "/sleep?level=3", 400, "level"),
        ("POST", "/sleep?level=x", 400, "level"),
        ("POST", "/sleep?mode=never", 400, "mode"),
        ("POST", "/wake_up?tags=everything", 400, "tags"),
        ("POST", "/resume", 200, {"status": "resumed"}),
        ("POST", "/wake_up", 200, None),
        ("POST", "/reset_mm_cache", 200, None),
        ("POST", "/reset_encoder_cache", 200, None),
        ("POST", "/init_weight_transfer_engine", 501, None),
        ("POST", "/start_weight_update", 501, None),
        ("POST", "/start_draft_weight_update", 501, None),
        ("POST", "/update_weights", 501, None),
        ("POST", "/finish_weight_update", 501, None),
        ("POST", "/update_weight_version", 501, None),
        ("GET", "/weight_info", 501, None),
    ],
)
def test_answers(dev, method, path, status, body):
    response = dev.client.request(method, path)
    assert response.status_code == status
    if status == 200 and body is not None:
        assert response.json() == body
    elif status == 200:
        assert response.content == b""
    else:
        error = response.json()["error"]
        assert error["param"] == body
        assert error["type"] == {400: "BadRequestError", 501: "NotImplementedError"}[status]


def test_calls_of_workers(dev):
    body = {"method": "f", "args": [1], "kwargs": {"a": 1}, "timeout": 3}
    assert dev.client.post("/collective_rpc", json=body).status_code == 501
    response = dev.client.post("/collective_rpc", json={"args": []})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "body.method")


def test_bodies_of_abort(dev):
    json_type = {"content-type": "application/json"}
    response = dev.client.post("/abort_requests", content=b"{", headers=json_type)
    assert response.status_code == 400
    for body in (None, {}, {"request_ids": []}, {"request_ids": None}):
        response = dev.client.post("/abort_requests", json=body)
        assert (response.status_code, response.json()) == (200, {"status": "aborted", "aborted": 0})
    response = dev.client.post("/abort_requests", json={"request_ids": ["x"]})
    assert response.json() == {"status": "aborted", "aborted": 1}


def in_background(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


@pytest.mark.parametrize(
    ("hold", "free", "state"),
    [
        ("/pause?mode=keep", "/resume", "/is_paused"),
        ("/sleep?level=0", "/wake_up", "/is_sleeping"),
        ("/sleep?level=1", "/wake_up?tags=kv_cache&tags=weights", "/is_sleeping"),
        ("/release_kv_cache_memory", "/wake_up?tags=kv_cache", "/is_sleeping"),
    ],
)
def test_requests_wait_until_the_engine_goes_on(dev, hold, free, state):
    """Whichever front they come to."""
    assert dev.client.post(hold).status_code == 200
    waiting = [
        in_background(lambda: dev.client.post("/v1/completions", json=PROMPT)) for _ in range(4)
    ]
    gauge = "vllm:num_requests_waiting{"
    until(
        lambda: any(
            line.startswith(gauge) and float(line.rpartition(" ")[2]) == 4
            for line in dev.client.get("/metrics").text.splitlines()
        )
    )
    assert set(dev.client.get(state).json().values()) == {True}
    assert not any(found for _, found in waiting)
    assert dev.client.post(free).status_code == 200
    for thread, found in waiting:
        thread.join(20)
        assert found[0].status_code == 200
        assert found[0].json()["usage"]["completion_tokens"] == 5
    assert set(dev.client.get(state).json().values()) == {False}


def test_sleep_shows_in_the_metrics(dev):
    def states():
        lines = dev.client.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith("vllm:engine_sleep_state{")]
        return {
            name: float(next(x for x in found if f'"{name}"' in x).rpartition(" ")[2])
            for name in ("awake", "weights_offloaded", "discard_all")
        }

    for level, name in ((1, "weights_offloaded"), (2, "discard_all")):
        dev.client.post(f"/sleep?level={level}")
        until(lambda name=name: states()[name] == 1)
        assert sum(states().values()) == 1
        dev.client.post("/wake_up")
        until(lambda: states()["awake"] == 1)


@pytest.mark.parametrize("given", ["mine", "cmpl-mine"])
def test_a_stream_is_aborted_by_the_id_its_client_knows(dev, given):
    body = {**PROMPT, "max_tokens": 2000, "stream": True}
    events = []
    with dev.client.stream(
        "POST", "/v1/completions", json=body, headers={"x-request-id": "mine"}
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(line[6:])
            if len(events) == 2:
                dev.client.post("/abort_requests", json={"request_ids": [given]})
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["code"] == 500
    assert len(events) < 500


def test_a_pause_that_waits_lets_requests_finish(dev):
    body = {**PROMPT, "max_tokens": 60}
    thread, found = in_background(lambda: dev.client.post("/v1/completions", json=body))
    until(lambda: 'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0' in _text(dev))
    assert dev.client.post("/pause?mode=wait").json() == {"status": "paused"}
    thread.join(20)
    assert found[0].json()["usage"]["completion_tokens"] == 60
    dev.client.post("/resume")


def _text(dev):
    return dev.client.get("/metrics").text


def test_the_engine_is_profiled(dev, profiles):
    assert dev.client.post("/start_profile").status_code == 200
    dev.client.post("/v1/completions", json=PROMPT)
    assert dev.client.post("/stop_profile").status_code == 200
    (path,) = profiles.glob("*.prof")
    import pstats

    assert any(name == "execute" for _, _, name in pstats.Stats(str(path)).stats)


def test_sleep_needs_its_flag(start_dev_without_sleep):
    app = start_dev_without_sleep
    for path in ("/sleep", "/wake_up", "/release_kv_cache_memory"):
        response = app.client.post(path)
        assert response.status_code == 400
        assert "--enable-sleep-mode" in response.json()["error"]["message"]


@pytest.fixture
def start_dev_without_sleep(bundle):
    with Server(bundle, routes=RouteConfig(dev_mode=True)) as running:
        yield running
