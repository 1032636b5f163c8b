"""Every series that dashboards of vLLM know: name, type, labels, buckets, and when it is there."""

from dataclasses import dataclass

GAP = ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80"
TTFT = ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
LATENCY = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
TOKENS = "1 2 5 10 20 50 100 200 500 1000 2000"  # up to a context of 4096
STEP = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384"
BLOCKS = ".001 .002 .005 .01 .02 .05 .1 .2 .5 1 2 5 10 20 30 60 120 300 600 1200 1800"
HTTP_FINE = ".01 .025 .05 .075 .1 .25 .5 .75 1 1.5 2 2.5 3 3.5 4 4.5 5 7.5 10 30 60"
ENGINE = frozenset({"model_name", "engine"})


@dataclass(frozen=True)
class Row:
    """A metric; `values` of its extra label are all there from the start, `asked` = only with a
    flag of its own."""

    name: str
    kind: str
    extra: str = ""
    values: str = ""
    buckets: str = ""
    labels: frozenset[str] = ENGINE
    asked: bool = False

    @property
    def all_labels(self) -> frozenset[str]:
        return self.labels | frozenset(self.extra.split())


def gauge(name, extra="", values="", **more):
    return Row(f"vllm:{name}", "gauge", extra, values, **more)


def counter(name, extra="", values="", **more):
    return Row(f"vllm:{name}", "counter", extra, values, **more)


def histogram(name, buckets, **more):
    return Row(f"vllm:{name}", "histogram", buckets=buckets, **more)


ROWS = [
    gauge("num_requests_running"),
    gauge("num_requests_waiting"),
    gauge("num_requests_waiting_by_reason", "reason", "capacity deferred"),
    gauge("kv_cache_usage_perc"),
    gauge("engine_sleep_state", "sleep_state", "awake weights_offloaded discard_all"),
    counter("prompt_tokens"),
    counter(
        "prompt_tokens_by_source", "source", "local_compute local_cache_hit external_kv_transfer"
    ),
    counter("prompt_tokens_cached"),
    counter("prompt_tokens_cached_by_source", "source", "local_cache_hit external_kv_transfer"),
    counter("generation_tokens"),
    counter("request_success", "finished_reason", "stop length abort error repetition"),
    counter("num_preemptions"),
    counter("admission_rejections"),
    counter("prefix_cache_queries"),
    counter("prefix_cache_hits"),
    counter("external_prefix_cache_queries"),
    counter("external_prefix_cache_hits"),
    counter("mm_cache_queries"),
    counter("mm_cache_hits"),
    counter("corrupted_requests", asked=True),
    Row(
        "vllm:tool_call_parser_invocations",
        "counter",
        "mode outcome request_type",
        "streaming non_streaming tool_call no_tool_call chat_completions responses other",
        labels=frozenset({"model_name"}),
    ),
    counter("estimated_flops_per_gpu"),
    counter("estimated_read_bytes_per_gpu"),
    counter("estimated_write_bytes_per_gpu"),
    histogram("iteration_tokens_total", STEP),
    histogram("time_to_first_token_seconds", TTFT),
    histogram("inter_token_latency_seconds", GAP),
    histogram("request_time_per_output_token_seconds", GAP),
    histogram("e2e_request_latency_seconds", LATENCY),
    histogram("request_queue_time_seconds", LATENCY),
    histogram("request_prefill_time_seconds", LATENCY),
    histogram("request_decode_time_seconds", LATENCY),
    histogram("request_inference_time_seconds", LATENCY),
    histogram("request_prompt_tokens", TOKENS),
    histogram("request_generation_tokens", TOKENS),
    histogram("request_prefill_kv_computed_tokens", TOKENS),
    histogram("request_max_num_generation_tokens", TOKENS),
    histogram("request_params_max_tokens", TOKENS),
    histogram("request_params_n", "1 2 5 10 20"),
    histogram("request_num_preemptions", "0 1 2 5 10 20 50 100"),
    histogram("kv_block_lifetime_seconds", BLOCKS, asked=True),
    histogram("kv_block_idle_before_evict_seconds", BLOCKS, asked=True),
    histogram("kv_block_reuse_gap_seconds", BLOCKS, asked=True),
    Row("http_requests", "counter", "handler method status", labels=frozenset()),
    Row("http_request_size_bytes", "summary", "handler", labels=frozenset()),
    Row("http_response_size_bytes", "summary", "handler", labels=frozenset()),
    Row(
        "http_request_duration_highr_seconds",
        "histogram",
        buckets=HTTP_FINE,
        labels=frozenset(),
    ),
    Row(
        "http_request_duration_seconds",
        "histogram",
        "handler method",
        buckets=".1 .5 1",
        labels=frozenset(),
    ),
    Row("python_gc_objects_collected", "counter", "generation", "0 1 2", labels=frozenset()),
    Row("python_gc_objects_uncollectable", "counter", "generation", "0 1 2", labels=frozenset()),
    Row("python_gc_collections", "counter", "generation", "0 1 2", labels=frozenset()),
    Row(
        "python_info",
        "gauge",
        "implementation major minor patchlevel version",
        labels=frozenset(),
    ),
    *(
        Row(f"process_{name}", kind, labels=frozenset())
        for name, kind in (
            ("cpu_seconds", "counter"),
            ("max_fds", "gauge"),
            ("open_fds", "gauge"),
            ("resident_memory_bytes", "gauge"),
            ("start_time_seconds", "gauge"),
            ("virtual_memory_bytes", "gauge"),
        )
    ),
]

CACHE_LABELS = frozenset(
    {"engine", "block_size", "num_gpu_blocks", "enable_prefix_caching", "prefix_caching_hash_algo"}
)
"""Some of the labels of vllm:cache_config_info; the model's runner adds its own."""

OWN = frozenset({"vllm:cache_config_info", "ortloom:jump_forward_tokens"})
"""Exposed beside the rows: with labels that are settings, and our own."""

MISSING = {
    "vllm:lora_requests_info": "adapters are not built",
    "vllm:spec_decode_num_drafts": "speculation is not built",
    "vllm:spec_decode_num_draft_tokens": "speculation is not built",
    "vllm:spec_decode_num_accepted_tokens": "speculation is not built",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "speculation is not built",
    "vllm:diffusion_num_denoising_steps": "no diffusion models",
    "vllm:diffusion_num_canvas_positions": "no diffusion models",
    "vllm:diffusion_num_committed_tokens": "no diffusion models",
    "vllm:websocket_connections": "the realtime route is for speech",
    "vllm:websocket_connections_active": "the realtime route is for speech",
    "vllm:websocket_connection_duration_seconds": "the realtime route is for speech",
}
"""Series of vLLM that are not here, and why; beside them those of KV connectors and offload."""

MISSING_FAMILIES = ("vllm:nixl_", "vllm:mooncake_", "vllm:hf3fs_", "vllm:kv_offload_")
