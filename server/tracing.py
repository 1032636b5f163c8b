"""OpenTelemetry spans of requests (`--otlp-traces-endpoint`), with vLLM's attribute names.

One span `llm_request` for each sample, made when it is finished; a request's `traceparent` and
`tracestate` headers make it part of the caller's trace. Neither prompts nor answers are in it.
The packages are those of the extra `otlp`; they are loaded only when an endpoint is given.
"""

import asyncio
import importlib.util
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from sanic import Request

from ortloom.config import TraceConfig
from ortloom.errors import ConfigError, OrtloomError
from ortloom.runtime.messages import RequestTimes
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.server.openai.sample import Piece

logger = logging.getLogger("ortloom.server")

HEADERS = ("traceparent", "tracestate")
PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
PROTOCOLS = ("grpc", "http/protobuf")

_LAST_SPANS_SECONDS = 3.0
_warned = False


class TracingUnavailable(OrtloomError):
    """The OpenTelemetry packages are not installed."""


def check_tracing(config: TraceConfig) -> None:
    """Find out, without loading them, whether the packages are there.

    Raises:
        ConfigError: the protocol of the environment is unknown.
        TracingUnavailable: a package is missing; the extra is named.
    """
    protocol = _protocol()
    exporter = "grpc" if protocol == "grpc" else "http"
    for module in ("opentelemetry.sdk.trace", f"opentelemetry.exporter.otlp.proto.{exporter}"):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise TracingUnavailable(
                f"--otlp-traces-endpoint {config.endpoint} needs {module}, which is not "
                "installed: pip install 'ortloom[otlp]'"
            )


def _protocol() -> str:
    protocol = os.environ.get(PROTOCOL) or "grpc"
    if protocol not in PROTOCOLS:
        raise ConfigError(f"{PROTOCOL}: must be one of {', '.join(PROTOCOLS)}, got '{protocol}'")
    return protocol


class Tracer:
    """Makes and sends spans.

    Args:
        config: where to, and which details.
        model: the first served name.

    Raises:
        ConfigError: see `check_tracing`.
        TracingUnavailable: see `check_tracing`.
    """

    def __init__(self, config: TraceConfig, model: str) -> None:
        check_tracing(config)
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._config = config
        self._model = model
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "ortloom"}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(config.endpoint)))
        self._tracer = self._provider.get_tracer("ortloom.server")

    def trace(
        self, request: Request, response_id: str, params: SamplingParams, prompts: list[int], n: int
    ) -> "RequestTrace":
        """Begin to follow an API request.

        Args:
            request: for its headers.
            response_id: the id the client sees.
            params: of all samples.
            prompts: lengths of the prompts, in tokens.
            n: samples of each.
        """
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers = {name: request.headers.getone(name, "") for name in HEADERS}
        carrier = {name: value for name, value in headers.items() if value}
        parent = TraceContextTextMapPropagator().extract(carrier)
        return RequestTrace(self, parent, response_id, params, prompts, n)

    def emit(
        self, parent: Any, begin: float, end: float, attributes: Mapping[str, str | int | float]
    ) -> None:
        """Send one span.

        Args:
            parent: the context of the caller's trace.
            begin: monotonic seconds.
            end: monotonic seconds.
            attributes: its attributes.
        """
        from opentelemetry.trace import SpanKind

        offset = time.time() - time.monotonic()
        span = self._tracer.start_span(
            "llm_request",
            context=parent,
            kind=SpanKind.SERVER,
            start_time=int((begin + offset) * 1e9),
        )
        span.set_attributes({**attributes, "gen_ai.response.model": self._model})
        span.end(end_time=int((end + offset) * 1e9))

    def details(self, times: RequestTimes) -> dict[str, float]:
        """The attributes of --collect-detailed-traces."""
        found = {}
        if self._config.model:
            found["gen_ai.latency.time_in_model_forward"] = times.model_forward
        if self._config.worker:
            found["gen_ai.latency.time_in_model_execute"] = times.model_execute
        return found

    async def close(self) -> None:
        """Send what is left, for a moment; a collector that is away must not hold up the end."""
        loop = asyncio.get_running_loop()
        flush = loop.run_in_executor(
            None, self._provider.force_flush, int(_LAST_SPANS_SECONDS * 1000)
        )
        try:
            async with asyncio.timeout(_LAST_SPANS_SECONDS):
                await flush
        except TimeoutError:
            logger.warning("the last spans could not be sent in time")


def _exporter(endpoint: str) -> Any:
    if _protocol() == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter(endpoint=endpoint, insecure=True)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint)


class RequestTrace:
    """Follows the samples of one API request; see `Tracer.trace`."""

    def __init__(
        self,
        tracer: Tracer,
        parent: Any,
        response_id: str,
        params: SamplingParams,
        prompts: list[int],
        n: int,
    ) -> None:
        self._tracer = tracer
        self._parent = parent
        self._id = response_id
        self._params = params
        self._prompts = prompts
        self._n = n
        self._arrival = time.monotonic()
        self._tokens: dict[int, int] = {}

    def note(self, piece: Piece) -> None:
        """One piece of one sample; the last one makes its span."""
        tokens = self._tokens.get(piece.index, 0) + len(piece.token_ids)
        self._tokens[piece.index] = tokens
        if piece.finish_reason is not None:
            times = piece.output.times or RequestTimes()
            attributes = self._attributes(piece.index, tokens, times)
            self._tracer.emit(self._parent, self._arrival, time.monotonic(), attributes)

    def _attributes(
        self, index: int, tokens: int, times: RequestTimes
    ) -> dict[str, str | int | float]:
        params, prompt = self._params, index // self._n
        last = max(times.last_token, times.first_token)
        several = self._id.startswith("cmpl-")
        found: dict[str, str | int | float] = {
            "gen_ai.request.id": f"{self._id}-{prompt}" if several else self._id,
            "gen_ai.request.n": self._n,
            "gen_ai.request.max_tokens": params.max_tokens or 0,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.usage.num_sequences": self._n,
            "gen_ai.usage.prompt_tokens": self._prompts[prompt],
            "gen_ai.usage.completion_tokens": tokens,
            "gen_ai.latency.e2e": time.monotonic() - self._arrival,
            **self._tracer.details(times),
        }
        if times.first_scheduled:
            found["gen_ai.latency.time_in_queue"] = times.first_scheduled - times.queued
        if times.first_token:
            found |= {
                "gen_ai.latency.time_to_first_token": times.first_token - self._arrival,
                "gen_ai.latency.time_in_model_prefill": times.first_token - times.first_scheduled,
                "gen_ai.latency.time_in_model_decode": last - times.first_token,
                "gen_ai.latency.time_in_model_inference": last - times.first_scheduled,
            }
        return found


def warn_of_untraced(request: Request) -> None:
    """Say once that a caller's trace goes nowhere."""
    global _warned
    if not _warned and any(name in request.headers for name in HEADERS):
        _warned = True
        logger.warning("a request has a trace context, but tracing is off (--otlp-traces-endpoint)")
