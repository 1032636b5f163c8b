"""What one front measures itself: request latencies, lengths and outcomes, and its HTTP traffic.

Numbers the engine counts (tokens, cache, steps) are not kept here: see `engine_metrics`. Names,
labels and buckets are those of vLLM's exporter, so its dashboards work unchanged.

Handlers make one `RequestMetrics` per API request, feed it every `EngineOutput`, and leave its
`with` block when the request is over.
"""

import time
from itertools import product
from types import TracebackType
from typing import Literal, Self

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from ortloom.errors import CapacityError, RequestError
from ortloom.runtime.messages import EngineOutput, FinishReason, RequestTimes, StepArrival
from ortloom.server.access_record import current_record
from ortloom.server.buffered_histogram import BufferedHistogram
from ortloom.server.metrics_buckets import (
    HTTP_SECONDS,
    HTTP_SECONDS_BY_HANDLER,
    LATENCY,
    PREEMPTIONS,
    SMALL_COUNTS,
    TOKEN_GAP,
    TTFT,
    one_two_five,
)

FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error", "repetition")
ENGINE_LABELS = ("model_name", "engine")
RequestType = Literal["chat_completions", "responses", "other"]
PARSER_MODES = ("streaming", "non_streaming")
PARSER_OUTCOMES = ("tool_call", "no_tool_call")
PARSER_REQUESTS: tuple[RequestType, ...] = ("chat_completions", "responses", "other")


class FrontMetrics:
    """The collectors of one front, on a registry of its own.

    Args:
        model_name: the first served name, a label of every series.
        max_model_len: upper bound of the token-count buckets.
        log_stats: False records no request numbers; HTTP numbers are kept anyway.
    """

    def __init__(self, model_name: str, max_model_len: int, log_stats: bool = True) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.model_name = model_name
        self.log_stats = log_stats
        self.changed = False  # True when there is something new to report
        self._label_values = (model_name, "0")
        tokens = one_two_five(max_model_len)
        if log_stats:
            self._make_request_metrics(tokens)
        self._make_http_metrics()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def _histogram(
        self,
        name: str,
        text: str,
        buckets: tuple[float, ...],
        kind: type[Histogram] = Histogram,
    ) -> Histogram:
        metric = kind(f"vllm:{name}", text, ENGINE_LABELS, registry=self.registry, buckets=buckets)
        return metric.labels(*self._label_values)

    def _make_request_metrics(self, tokens: tuple[float, ...]) -> None:
        make = self._histogram
        self.ttft = make("time_to_first_token_seconds", "Arrival to first token.", TTFT)
        self.token_gap = make(
            "inter_token_latency_seconds",
            "Gap to the previous token.",
            TOKEN_GAP,
            BufferedHistogram,
        )
        self.token_mean = make(
            "request_time_per_output_token_seconds",
            "Decode time of a request by its tokens after the first.",
            TOKEN_GAP,
        )
        self.e2e = make("e2e_request_latency_seconds", "Arrival to end.", LATENCY)
        self.queue = make("request_queue_time_seconds", "Queued to first scheduled.", LATENCY)
        self.prefill = make(
            "request_prefill_time_seconds", "First scheduled to first token.", LATENCY
        )
        self.decode = make("request_decode_time_seconds", "First to last token.", LATENCY)
        self.inference = make(
            "request_inference_time_seconds", "First scheduled to last token.", LATENCY
        )
        self.prompt = make("request_prompt_tokens", "Prompt length.", tokens)
        self.output = make("request_generation_tokens", "Output length.", tokens)
        self.computed = make(
            "request_prefill_kv_computed_tokens", "Prompt tokens that were not cached.", tokens
        )
        self.longest = make(
            "request_max_num_generation_tokens", "Longest output among n samples.", tokens
        )
        self.max_tokens = make("request_params_max_tokens", "The resolved max_tokens.", tokens)
        self.n = make("request_params_n", "The n parameter.", SMALL_COUNTS)
        self.preemptions = make("request_num_preemptions", "Preemptions of a request.", PREEMPTIONS)
        success = Counter(
            "vllm:request_success",
            "Finished requests by reason.",
            (*ENGINE_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self.success = {
            reason: success.labels(*self._label_values, reason) for reason in FINISH_REASONS
        }
        calls = Counter(
            "vllm:tool_call_parser_invocations",
            "Calls of the tool call parser: one a choice, or one a piece of a stream.",
            ("model_name", "mode", "outcome", "request_type"),
            registry=self.registry,
        )
        self._tool_parser = {
            values: calls.labels(self.model_name, *values)
            for values in product(PARSER_MODES, PARSER_OUTCOMES, PARSER_REQUESTS)
        }

    def tool_parser_call(self, *, streaming: bool, found: bool, request_type: RequestType) -> None:
        """Record that a tool call parser was asked.

        Args:
            streaming: for a piece of a stream, else for a whole choice.
            found: there was a call in it.
            request_type: whose reply it is.
        """
        if self.log_stats:
            self.changed = True
            mode, outcome = PARSER_MODES[not streaming], PARSER_OUTCOMES[not found]
            self._tool_parser[mode, outcome, request_type].inc()

    def _make_http_metrics(self) -> None:
        registry = self.registry
        self._http_requests = Counter(
            "http_requests",
            "Requests by handler, method and status class.",
            ("handler", "method", "status"),
            registry=registry,
        )
        self._http_in = Summary(
            "http_request_size_bytes", "Request body sizes.", ("handler",), registry=registry
        )
        self._http_out = Summary(
            "http_response_size_bytes", "Response body sizes.", ("handler",), registry=registry
        )
        self._http_high = Histogram(
            "http_request_duration_highr_seconds",
            "Request durations, fine buckets.",
            registry=registry,
            buckets=HTTP_SECONDS,
        )
        self._http_low = Histogram(
            "http_request_duration_seconds",
            "Request durations by handler.",
            ("handler", "method"),
            registry=registry,
            buckets=HTTP_SECONDS_BY_HANDLER,
        )

    def request(
        self,
        *,
        prompt_tokens: int,
        max_tokens: int | None = None,
        n: int = 1,
        arrival: float | None = None,
    ) -> "RequestMetrics":
        """Start measuring one API request (one prompt with its n samples).

        Args:
            prompt_tokens: length of the prompt.
            max_tokens: the resolved output limit of one sample.
            n: number of samples.
            arrival: monotonic time the request came in; now when None.
        """
        return RequestMetrics(self, prompt_tokens, max_tokens, n, arrival)

    def http(
        self, handler: str, method: str, status: int, seconds: float, size_in: int, size_out: int
    ) -> None:
        """Record one HTTP exchange; `handler` is the route's path template, or `none`."""
        self.changed = True
        self._http_requests.labels(handler, method, f"{status // 100}xx").inc()
        self._http_in.labels(handler).observe(size_in)
        self._http_out.labels(handler).observe(size_out)
        self._http_high.observe(seconds)
        self._http_low.labels(handler, method).observe(seconds)


class _Sample:
    """Progress of one of the n samples."""

    __slots__ = ("cached", "finished", "first", "last", "preemptions", "times", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.first = 0.0
        self.last = 0.0
        self.cached = 0
        self.preemptions = 0
        self.times: RequestTimes | None = None
        self.finished = False


class RequestMetrics:
    """Measures one API request; made by `FrontMetrics.request`.

    Leaving the `with` block finishes the samples that are still open, as `error` after an
    exception and as `abort` otherwise (cancellation included). A request that was refused before
    the engine took it leaves no trace.
    """

    __slots__ = (
        "_arrival",
        "_ended",
        "_front",
        "_longest",
        "_max_tokens",
        "_n",
        "_prompt_tokens",
        "_record",
        "_samples",
    )

    def __init__(
        self,
        front: FrontMetrics,
        prompt_tokens: int,
        max_tokens: int | None,
        n: int,
        arrival: float | None,
    ) -> None:
        self._front = front
        self._prompt_tokens = prompt_tokens
        self._max_tokens = max_tokens
        self._n = n
        self._arrival = time.monotonic() if arrival is None else arrival
        self._samples: dict[str, _Sample] = {}
        self._ended = 0
        self._longest = 0
        self._record = current_record.get()
        if self._record is not None:
            self._record.prompt_tokens += prompt_tokens

    @property
    def arrival(self) -> float:
        """Monotonic time the request came in."""
        return self._arrival

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, RequestError | CapacityError) and not self._samples:
            return
        self.finish("error" if isinstance(error, Exception) else "abort")

    def on_output(self, output: EngineOutput, now: float | None = None) -> None:
        """Record one engine output; its finish reason, if any, ends that sample.

        Args:
            output: as it came from the client; several steps merged into one count as several.
            now: monotonic time of its arrival where the output does not say; now when None.
        """
        if not self._front.log_stats:
            return
        now = time.monotonic() if now is None else now
        sample = self._samples.get(output.request_id)
        if sample is None:
            sample = self._samples[output.request_id] = _Sample()
        if sample.finished:
            return
        if len(output.arrivals) == 1 and output.new_token_ids:
            at = output.arrivals[0].time
            if sample.tokens:
                self._front.changed = True
                self._front.token_gap.observe(at - sample.last)
                sample.tokens += len(output.new_token_ids)
                sample.last = at
            else:
                self._tokens(sample, len(output.new_token_ids), at)
        elif output.new_token_ids:
            self._steps(sample, output, now)
        if output.num_cached_tokens > sample.cached:
            sample.cached = output.num_cached_tokens
        if output.num_preemptions > sample.preemptions:
            sample.preemptions = output.num_preemptions
        sample.times = output.times or sample.times
        if output.finish_reason is not None:
            self._end(sample, output.finish_reason, now)

    def _steps(self, sample: _Sample, output: EngineOutput, now: float) -> None:
        # Merging and a stop string may leave fewer tokens than arrived: each step that gave some
        # counts once, at its own time.
        left = len(output.new_token_ids)
        for arrival in output.arrivals or [StepArrival(now, left)]:
            if left > 0:
                self._tokens(sample, min(left, arrival.num_tokens), arrival.time)
                left -= arrival.num_tokens

    def finish(self, reason: FinishReason, request_id: str | None = None) -> None:
        """End a sample that the front itself stopped (stop string, abort), or all open ones.

        Args:
            reason: why it ended.
            request_id: the engine request of the sample; None = every open sample.
        """
        if not self._front.log_stats:
            return
        now = time.monotonic()
        if request_id is not None:
            sample = self._samples.setdefault(request_id, _Sample())
            if not sample.finished:
                self._end(sample, reason, now)
            return
        for index in range(self._n - len(self._samples)):
            self._samples[f"#{index}"] = _Sample()
        for sample in self._samples.values():
            if not sample.finished:
                self._end(sample, reason, now)

    def _tokens(self, sample: _Sample, count: int, now: float) -> None:
        front = self._front
        front.changed = True
        if not sample.tokens:
            front.ttft.observe(now - self._arrival)
            sample.first = now
            if self._record is not None and not self._record.first_token:
                self._record.first_token = now
        else:
            front.token_gap.observe(now - sample.last)
        sample.tokens += count
        sample.last = now

    def _end(self, sample: _Sample, reason: FinishReason, now: float) -> None:
        front = self._front
        front.changed = True
        sample.finished = True
        front.success[reason].inc()
        front.e2e.observe(now - self._arrival)
        front.prompt.observe(self._prompt_tokens)
        front.output.observe(sample.tokens)
        front.computed.observe(self._prompt_tokens - sample.cached)
        front.preemptions.observe(sample.preemptions)
        front.n.observe(self._n)
        if self._max_tokens is not None:
            front.max_tokens.observe(self._max_tokens)
        self._phases(sample)
        if self._record is not None:
            self._record.output_tokens += sample.tokens
            self._record.cached_tokens = max(self._record.cached_tokens, sample.cached)
            self._record.finish_reason = reason
        self._ended += 1
        self._longest = max(self._longest, sample.tokens)
        if self._ended == self._n:
            front.longest.observe(self._longest)

    def _phases(self, sample: _Sample) -> None:
        front = self._front
        times = sample.times or RequestTimes()
        decode = max(0.0, (times.last_token or sample.last) - (times.first_token or sample.first))
        front.decode.observe(decode)
        front.token_mean.observe(decode / (sample.tokens - 1) if sample.tokens > 1 else 0.0)
        if times.first_scheduled:
            last = max(times.last_token, times.first_token, times.first_scheduled)
            front.queue.observe(max(0.0, times.first_scheduled - times.queued))
            front.prefill.observe(
                max(0.0, (times.first_token or times.first_scheduled) - times.first_scheduled)
            )
            front.inference.observe(last - times.first_scheduled)
