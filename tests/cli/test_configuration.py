import os

import pytest

from ortloom.commands.serve import make_plan
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table
from ortloom.runtime.kv_cache_dtype import ACCEPTED, EIGHT_BIT, REFUSED

FIRST_CPU = min(os.sched_getaffinity(0))


def plan(*tokens, env=None):
    return make_plan(["m", *tokens], read_environment(env or {}), flag_table())[1]


def config(*tokens, env=None):
    return plan(*tokens, env=env).config


def test_defaults():
    got = config()
    assert got.model.bundle == "m"
    assert got.model.served_model_names == ("m",)
    assert got.model.max_model_len is None
    assert got.model.max_logprobs == 20
    assert got.cache.block_size == 16
    assert got.cache.num_blocks is None
    assert got.cache.memory_fraction is None
    assert got.cache.enable_prefix_caching
    assert got.scheduler.max_num_seqs == 256
    assert got.scheduler.enable_chunked_prefill
    assert (got.front.host, got.front.port, got.front.num_fronts) == ("0.0.0.0", 8000, 1)
    assert got.front.api_keys == ()
    assert got.log.log_stats
    assert not got.log.log_requests
    assert plan().notices == ()


WORKING = [
    ("--served-model-name a b", lambda c: c.model.served_model_names, ("a", "b")),
    ("--max-model-len 4k", lambda c: c.model.max_model_len, 4000),
    ("--max-model-len auto", lambda c: c.model.max_model_len, -1),
    ("--generation-config vllm", lambda c: c.model.generation_config, "vllm"),
    (
        "--override-generation-config.top_k 3",
        lambda c: c.model.override_generation_config,
        {"top_k": 3},
    ),
    ("--max-logprobs -1", lambda c: c.model.max_logprobs, -1),
    ("--max-logprobs 0", lambda c: c.model.max_logprobs, 0),
    ("--logprobs-mode processed_logits", lambda c: c.model.logprobs_mode, "processed_logits"),
    ("--seed 7", lambda c: c.model.seed, 7),
    ("--verify", lambda c: c.model.verify, True),
    ("--block-size 32", lambda c: c.cache.block_size, 32),
    ("--num-blocks 9", lambda c: c.cache.num_blocks, 9),
    ("--num-blocks 0", lambda c: c.cache.num_blocks, None),
    ("--num-gpu-blocks-override 9", lambda c: c.cache.num_blocks, 9),
    ("--kv-cache-memory-bytes 1G", lambda c: c.cache.kv_cache_memory_bytes, 1024**3),
    ("--kv-cache-dtype auto", lambda c: c.cache.kv_cache_dtype, "auto"),
    ("--kv-cache-dtype float32", lambda c: c.cache.kv_cache_dtype, "float32"),
    ("--kv-cache-dtype float16", lambda c: c.cache.kv_cache_dtype, "float16"),
    ("--kv-cache-dtype bfloat16", lambda c: c.cache.kv_cache_dtype, "bfloat16"),
    ("--kv-cache-dtype int8", lambda c: c.cache.kv_cache_dtype, "int8_per_token_head"),
    (
        "--kv-cache-dtype int8_per_token_head",
        lambda c: c.cache.kv_cache_dtype,
        "int8_per_token_head",
    ),
    ("--kv-cache-memory 1024", lambda c: c.cache.kv_cache_memory_bytes, 1024),
    ("--gpu-memory-utilization 0.5", lambda c: c.cache.memory_fraction, 0.5),
    ("--no-enable-prefix-caching", lambda c: c.cache.enable_prefix_caching, False),
    ("--disable-radix-attention", lambda c: c.cache.enable_prefix_caching, False),
    ("--max-num-seqs 3", lambda c: c.scheduler.max_num_seqs, 3),
    ("--max-num-batched-tokens 1K", lambda c: c.scheduler.max_num_batched_tokens, 1024),
    ("--no-enable-chunked-prefill", lambda c: c.scheduler.enable_chunked_prefill, False),
    (
        "--long-prefill-token-threshold 5",
        lambda c: c.scheduler.long_prefill_token_threshold,
        5,
    ),
    ("--scheduling-policy priority", lambda c: c.scheduler.policy, "priority"),
    ("--max-num-queued-reqs 5", lambda c: c.scheduler.max_num_queued_reqs, 5),
    ("--max-num-queued-tokens 6", lambda c: c.scheduler.max_num_queued_tokens, 6),
    ("--provider plain", lambda c: c.provider.provider, "plain"),
    ("--require-provider cpu", lambda c: c.provider.require, "cpu"),
    ("--threads 2", lambda c: c.provider.threads, 2),
    (f"--cpu-affinity {FIRST_CPU}", lambda c: c.provider.cpu_affinity, (FIRST_CPU,)),
    ("--host 127.0.0.1", lambda c: c.front.host, "127.0.0.1"),
    ("--port 0", lambda c: c.front.port, 0),
    ("--uds /tmp/s", lambda c: c.front.uds, "/tmp/s"),
    ("--api-server-count 3", lambda c: c.front.num_fronts, 3),
    ("-asc 3", lambda c: c.front.num_fronts, 3),
    ("--api-key a b", lambda c: c.front.api_keys, ("a", "b")),
    ("--root-path /p", lambda c: c.front.root_path, "/p"),
    ('--allowed-origins ["http://a"]', lambda c: c.front.allowed_origins, ("http://a",)),
    ("--allowed-origins []", lambda c: c.front.allowed_origins, ()),
    ('--allowed-methods ["GET"]', lambda c: c.front.allowed_methods, ("GET",)),
    ('--allowed-headers ["x"]', lambda c: c.front.allowed_headers, ("x",)),
    ("--allow-credentials", lambda c: c.front.allow_credentials, True),
    ("--chat-template {{x}}", lambda c: c.front.chat_template, "{{x}}"),
    (
        "--chat-template-content-format openai",
        lambda c: c.front.chat_template_content_format,
        "openai",
    ),
    ("--trust-request-chat-template", lambda c: c.front.trust_request_chat_template, True),
    (
        '--default-chat-template-kwargs {"a":1}',
        lambda c: c.front.default_chat_template_kwargs,
        {"a": 1},
    ),
    (
        "--no-enable-thinking",
        lambda c: c.front.default_chat_template_kwargs,
        {"enable_thinking": False},
    ),
    ("--response-role bot", lambda c: c.front.response_role, "bot"),
    ("--return-tokens-as-token-ids", lambda c: c.front.return_tokens_as_token_ids, True),
    ("--enable-prompt-tokens-details", lambda c: c.front.enable_prompt_tokens_details, True),
    ("--enable-force-include-usage", lambda c: c.front.enable_force_include_usage, True),
    ("--enable-request-id-headers", lambda c: c.front.enable_request_id_headers, True),
    ("--enable-server-load-tracking", lambda c: c.front.enable_server_load_tracking, True),
    ("--sse-keep-alive-interval 5", lambda c: c.front.sse_keep_alive_interval, 5.0),
    ("--shutdown-timeout 5", lambda c: c.front.shutdown_timeout, 5.0),
    ("--h11-max-header-count 5", lambda c: c.front.max_header_count, 5),
    ("", lambda c: c.front.max_head_size, 32 * 1024),
    ("--h11-max-incomplete-event-size 5000", lambda c: c.front.max_head_size, 5000),
    ("--h11-max-incomplete-event-size 4194304", lambda c: c.front.max_head_size, 4194304),
    ("--disable-uvicorn-access-log", lambda c: c.front.access_log, False),
    (
        "--disable-access-log-for-endpoints /health,/ping",
        lambda c: c.front.access_log_skip,
        ("/health", "/ping"),
    ),
    ("--disable-log-stats", lambda c: c.log.log_stats, False),
    ("--enable-log-requests", lambda c: c.log.log_requests, True),
    ("--max-log-len 5", lambda c: c.log.max_log_len, 5),
    ("--log-level DEBUG", lambda c: c.log.level, "DEBUG"),
    ("-v", lambda c: c.log.level, "DEBUG"),
    ("-v", lambda c: c.log.debug_invariants, True),
    ("--log-level INFO", lambda c: c.log.debug_invariants, False),
    ("--uvicorn-log-level warning", lambda c: c.log.level, "WARNING"),
    ("--uvicorn-log-level trace --log-level ERROR", lambda c: c.log.level, "ERROR"),
]


@pytest.mark.parametrize("kind", ["fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_per_token_head"])
def test_an_eight_bit_float_cache_is_stored_as_int8_with_one_line(kind):
    got = plan("--kv-cache-dtype", kind)
    assert got.config.cache.kv_cache_dtype == "int8_per_token_head"
    (line,) = got.notices
    assert f"--kv-cache-dtype {kind}: the KV cache is stored as int8_per_token_head" in line


CACHE_CHOICES = flag_table().by_name("--kv-cache-dtype").choices


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_a_cache_that_cannot_be_had_is_refused_at_the_edge(kind):
    assert kind in CACHE_CHOICES
    with pytest.raises(ConfigError, match=f"--kv-cache-dtype: '{kind}' cannot be had here") as got:
        plan("--kv-cache-dtype", kind)
    assert got.value.exit_code == 2


def test_every_kind_of_cache_in_the_table_is_taken_or_refused():
    assert {*CACHE_CHOICES} == {*ACCEPTED, "int8", *EIGHT_BIT, *REFUSED}


def test_an_unknown_kind_of_cache_is_offered_only_what_can_be_had():
    assert {*flag_table().by_name("--kv-cache-dtype").refused} == {*REFUSED}
    with pytest.raises(ConfigError, match="invalid choice: 'int7'") as got:
        plan("--kv-cache-dtype", "int7")
    _, _, offered = str(got.value).partition("choose from ")
    assert offered.rstrip(")").split(", ") == [k for k in CACHE_CHOICES if k not in REFUSED]


@pytest.mark.parametrize(("line", "read", "value"), WORKING, ids=lambda x: str(x)[:40])
def test_working_flags_reach_the_configuration(line, read, value):
    assert read(config(*line.split())) == value


def test_plan_for_checkpoints(tmp_path):
    got = plan("--quantization", "int8", "--dtype", "float", "--bundle-cache", str(tmp_path))
    assert (got.quant, got.dtype, got.bundle_cache) == ("int8", "fp32", tmp_path)
    assert plan("--dtype", "auto").dtype is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--block-size 24", "multiple of 16"),
        ("--block-size 512", "from 1 to 256"),
        ("--max-model-len 0", "positive"),
        ("--max-model-len -2", "positive"),
        ("--max-num-seqs 0", "at least 1"),
        ("--max-num-batched-tokens 0", "at least 1"),
        ("--gpu-memory-utilization 0", "above 0"),
        ("--gpu-memory-utilization 1.1", "at most 1"),
        ("--port 65536", "from 0 to 65535"),
        ("--api-server-count 0", "at least 1"),
        ("--threads -1", "at least 0"),
        ("--threads 257", "more than 256"),
        ("--cpu-affinity 4095", "not one this process may use"),
        ("--cpu-affinity 1-0", "not a range"),
        ("--cpu-affinity a", "not a list of processors"),
        ("--max-logprobs -2", "at least -1"),
        ("--num-gpu-blocks-override 0", "at least 1"),
        ("--generation-config /does/not/exist", "neither auto, vllm nor a folder"),
        ("--chat-template ./missing.jinja", "looks like a path but cannot be opened"),
        ("--quantization awq", "int4, int8"),
        ("--override-generation-config [1]", "must be a JSON object"),
        ("--provider quantum", "invalid choice"),
        ("n", "unrecognized arguments: n"),
    ],
)
def test_values_out_of_range(line, text):
    with pytest.raises(ConfigError) as caught:
        plan(*line.split())
    assert text in str(caught.value)
    assert caught.value.exit_code == 2


def test_no_model_is_an_error():
    with pytest.raises(ConfigError, match="no model is named"):
        make_plan([], read_environment({}), flag_table())
    with pytest.raises(ConfigError, match="write the model first"):
        make_plan(["--served-model-name", "a", "m"], read_environment({}), flag_table())


def test_positional_model_wins_over_the_option():
    assert config("--model", "other").model.bundle == "m"
    got = make_plan(["--model", "other"], read_environment({}), flag_table())[1]
    assert got.config.model.bundle == "other"


def test_chat_template_from_a_file(tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}é", encoding="utf-8")
    assert config("--chat-template", str(file)).front.chat_template == "{{ messages }}é"
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        config("--chat-template", str(file))
    with pytest.raises(ConfigError, match="cannot be opened"):
        config("--chat-template", str(tmp_path))


def test_the_fraction_says_what_it_does():
    (line,) = plan("--gpu-memory-utilization", "0.92").notices
    assert "takes this share of the memory" in line
    for other in ("--num-blocks 8", "--kv-cache-memory 8k"):
        got = plan("--gpu-memory-utilization", "0.5", *other.split())
        assert any("sizes nothing here" in line for line in got.notices)
        assert got.config.cache.memory_fraction is None


def test_a_block_count_wins_over_bytes():
    got = plan("--num-blocks", "8", "--kv-cache-memory-bytes", "1g")
    assert got.config.cache.num_blocks == 8
    assert got.config.cache.kv_cache_memory_bytes is None
    assert any("block count wins" in line for line in got.notices)


@pytest.mark.parametrize(
    ("line", "dtype"),
    [("", None), ("--dtype auto", None), ("--dtype half", "fp16"), ("--dtype bfloat16", "bf16")],
)
def test_dtype_takes_the_names_of_vllm(line, dtype):
    assert plan(*line.split()).dtype == dtype
