"""Spans of requests, sent by the real exporters to a collector on loopback."""

import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from serving import Server, body, until

from ortloom.commands.serve import make_plan
from ortloom.config import TraceConfig
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table
from ortloom.server.tracing import TracingUnavailable, check_tracing

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "100", "FAKE_STEP": "0.01"}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traces(*tokens):
    return make_plan(["m", *tokens], read_environment({}), flag_table())[1].config.traces


def test_flags_reach_the_configuration():
    end = ("--otlp-traces-endpoint", "http://c:4317")
    assert traces() is None
    assert traces(*end) == TraceConfig(endpoint="http://c:4317")
    detailed = "--collect-detailed-traces"
    assert traces(*end, detailed, "model") == TraceConfig(endpoint=end[1], model=True)
    for given in (["all"], ["model,worker"], ["worker", "model"]):
        assert traces(*end, detailed, *given) == TraceConfig(
            endpoint=end[1], model=True, worker=True
        )
    with pytest.raises(ConfigError, match="needs --otlp-traces-endpoint"):
        traces(detailed, "all")
    with pytest.raises(ConfigError, match="invalid choice: 'layers'"):
        traces(*end, detailed, "layers")


def test_missing_packages_name_the_extra(monkeypatch):
    config = TraceConfig(endpoint="http://c:4317")
    check_tracing(config)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    with pytest.raises(ConfigError, match="one of grpc, http/protobuf"):
        check_tracing(config)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TracingUnavailable, match=r"pip install 'ortloom\[otlp\]'"):
        check_tracing(config)


class Collector(TraceServiceServicer):
    """Keeps the spans it gets over gRPC."""

    def __init__(self):
        self.spans = []
        self.services = set()

    def keep(self, request):
        for resource in request.resource_spans:
            self.services |= {
                a.value.string_value
                for a in resource.resource.attributes
                if a.key == "service.name"
            }
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def Export(self, request, context):
        self.keep(request)
        return ExportTraceServiceResponse()

    def by_id(self):
        return {attributes(span)["gen_ai.request.id"]: span for span in self.spans}


def attributes(span):
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


@pytest.fixture(scope="module")
def collector():
    kept = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(kept, server)
    kept.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield kept
    server.stop(None).wait()


@pytest.fixture(scope="module")
def traced(bundle, collector):
    config = TraceConfig(endpoint=f"http://127.0.0.1:{collector.port}", model=True, worker=True)
    with Server(bundle, traces=config, env=SOON) as running:
        yield running


def test_a_span_tells_of_its_request(traced, collector):
    headers = {"traceparent": PARENT, "x-request-id": "one"}
    fields = body(max_tokens=5, temperature=0.5, top_p=0.9)
    assert traced.client.post("/v1/completions", json=fields, headers=headers).status_code == 200
    span = until(lambda: collector.by_id().get("cmpl-one-0"))
    assert span.name == "llm_request"
    assert span.kind == span.SPAN_KIND_SERVER
    assert span.trace_id.hex() == PARENT.split("-")[1]
    assert span.parent_span_id.hex() == PARENT.split("-")[2]
    found = attributes(span)
    assert found["gen_ai.usage.prompt_tokens"] == 2
    assert found["gen_ai.usage.completion_tokens"] == 5
    assert found["gen_ai.request.max_tokens"] == 5
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.request.top_p"] == pytest.approx(0.9)
    assert found["gen_ai.request.n"] == 1
    assert found["gen_ai.response.model"] == "tiny"
    latency = {k.rpartition(".")[2]: v for k, v in found.items() if ".latency." in k}
    assert latency["e2e"] >= latency["time_to_first_token"] > 0
    assert latency["time_in_model_inference"] == pytest.approx(
        latency["time_in_model_prefill"] + latency["time_in_model_decode"]
    )
    assert latency["time_in_model_decode"] >= 4 * 0.01
    assert latency["time_in_queue"] >= 0
    assert 5 * 0.01 <= latency["time_in_model_execute"] <= latency["e2e"]
    assert "time_in_model_forward" in latency
    seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert seconds == pytest.approx(latency["e2e"], abs=0.05)
    assert collector.services == {"ortloom"}


def test_each_sample_and_stream_has_its_span(traced, collector):
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    reply = traced.client.post(
        "/v1/chat/completions",
        json={**chat, "n": 2, "temperature": 1, "stream": True},
        headers={"x-request-id": "two"},
    )
    assert reply.status_code == 200

    def spans():
        return [s for s in collector.spans if attributes(s)["gen_ai.request.id"] == "chatcmpl-two"]

    until(lambda: len(spans()) == 2)
    assert [attributes(span)["gen_ai.request.n"] for span in spans()] == [2, 2]
    assert not any(span.parent_span_id for span in spans())
    assert "prompt" not in str(spans()[0]).replace("prompt_tokens", "")


def test_spans_over_http_are_sent_before_the_end(bundle):
    kept = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                data = gzip.decompress(data)
            kept.keep(ExportTraceServiceRequest.FromString(data))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        config = TraceConfig(endpoint=f"http://127.0.0.1:{receiver.server_address[1]}/v1/traces")
        env = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_SERVICE_NAME": "mine"}
        with Server(bundle, traces=config, env=env) as server:
            assert server.complete().status_code == 200
            assert server.stop(limit=60) == 0
        receiver.shutdown()
    assert len(kept.spans) == 1
    assert kept.services == {"mine"}
    assert not any("time_in_model_execute" in key for key in attributes(kept.spans[0]))


def test_without_the_flag_a_trace_context_is_warned_of_once(server):
    for _ in range(2):
        headers = {"traceparent": PARENT}
        assert server.client.post("/v1/completions", json=body(), headers=headers).is_success
    assert until(lambda: server.text().count("has a trace context, but tracing is off")) == 1
