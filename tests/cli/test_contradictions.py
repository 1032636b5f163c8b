import pytest

from ortloom.commands.serve import make_plan
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table

BOTH = [
    ("--enable-auto-tool-choice", "--tool-call-parser"),
    ("--enable-auto-tool-choice --tool-call-parser none", "--tool-call-parser"),
    ("--enable-log-outputs", "--enable-log-requests"),
    ("--enable-log-requests --disable-log-requests", "--disable-log-requests"),
    ("--enable-per-request-metrics --disable-log-stats", "--disable-log-stats"),
    ("--return-sampling-mask", "--logprobs-mode processed_logprobs"),
    (
        "--return-sampling-mask --logprobs-mode processed_logprobs --spec-method ngram",
        "speculative",
    ),
    (
        "--return-sampling-mask --logprobs-mode processed_logprobs --diffusion-config {}",
        "--diffusion-config",
    ),
    (
        "--return-sampling-mask --logprobs-mode processed_logprobs --logits-processors a.B",
        "--logits-processors",
    ),
    ("--per-request-spec-decode-metrics summary", "--speculative-config"),
    ("--api-server-count 2 --headless", "--headless"),
    ("--data-parallel-hybrid-lb --data-parallel-external-lb", "one balancing mode"),
    ("--max-cpu-loras 1 --max-loras 2", "--max-loras (2)"),
    ("--lora-modules a=b", "--enable-lora"),
    ("--max-num-active-seqs 9 --max-num-seqs 8", "--max-num-seqs (8)"),
    ("--max-num-active-seqs 257", "--max-num-seqs (256)"),
    ("--max-num-batched-tokens 8 --max-num-seqs 9", "--max-num-seqs (9)"),
    (
        "--no-enable-chunked-prefill --max-num-batched-tokens 8 --max-model-len 9",
        "--no-enable-chunked-prefill",
    ),
    ("--num-blocks 3 --num-gpu-blocks-override 4", "same setting"),
    ("--kv-cache-memory 3 --kv-cache-memory-bytes 4", "same setting"),
    ("--quant int4 --quantization int8", "same setting"),
    ("--enable-prefix-caching --disable-radix-attention", "same setting"),
    ("--provider cpu --require-provider cuda", "--require-provider cuda"),
    ("--enable-sliding-window --disable-sliding-window", "--disable-sliding-window"),
    ("--ssl-keyfile k", "--ssl-certfile"),
    ("--ssl-certfile c", "--ssl-keyfile"),
    ("--fingerprint-mode custom", "--fingerprint-value"),
]


def plan(line):
    return make_plan(["m", *line.split()], read_environment({}), flag_table())


@pytest.mark.parametrize(("line", "text"), BOTH)
def test_contradictions_name_both_sides(line, text):
    with pytest.raises(ConfigError) as caught:
        plan(line)
    assert text in str(caught.value)
    assert "not in this build" not in str(caught.value)  # contradictions come first


@pytest.mark.parametrize(
    "line",
    [
        "--num-blocks 0 --num-gpu-blocks-override 4",
        "--kv-cache-memory 0 --kv-cache-memory-bytes 4k",
        "--provider cpu --require-provider cpu",
        "--max-num-batched-tokens 9 --max-num-seqs 9",
        "--max-num-batched-tokens 8 --max-model-len 9 --max-num-seqs 4",
        "--max-loras 1",
        "--per-request-spec-decode-metrics none",
    ],
)
def test_near_misses_are_no_contradiction(line):
    plan(line)


def test_small_step_budget_lowers_the_default_batch():
    _, got = plan("--max-num-batched-tokens 16")
    assert got.config.scheduler.max_num_seqs == 16
    assert got.config.scheduler.max_num_batched_tokens == 16


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--uds /s --port 9", "--port does nothing: the server listens on --uds /s"),
        ("--fingerprint-value x", "--fingerprint-value does nothing without"),
        ("--disable-fastapi-docs --enable-offline-docs", "--enable-offline-docs does nothing"),
        ("--enable-sleep-mode", "need VLLM_SERVER_DEV_MODE=1"),
        ("--reasoning-effort-budgets.low 5", "--reasoning-effort-budgets does nothing without"),
        ("--max-log-len 5", "--max-log-len does nothing without --enable-log-requests"),
        ("--no-enable-log-deltas", "--no-enable-log-deltas does nothing without"),
        (
            "--profiler-config.dir /p --profiler-config.torch_profiler_with_stack true",
            "torch_profiler_with_stack does nothing here",
        ),
        ("--uds /s", None),
        ("--fingerprint-value x --fingerprint-mode custom", None),
        ("--reasoning-effort-budgets.low 5 --reasoning-parser qwen3", None),
        ("--reasoning-effort-budgets.low 5 --reasoning-config.reasoning_end_str x", None),
        ("--max-log-len 5 --enable-log-requests", None),
        ("--enable-log-deltas", None),
        ("--profiler-config.torch_profiler_dir /p", None),
    ],
)
def test_what_does_nothing_by_what_stands_beside_it_is_told(line, told):
    notices = plan(line)[1].notices
    if told is None:
        assert notices == ()
    else:
        (found,) = notices
        assert told in found
    if "sleep" in line:
        env = read_environment({"VLLM_SERVER_DEV_MODE": "1"})
        assert make_plan(["m", line], env, flag_table())[1].notices == ()


def test_unknown_options_of_torchs_profiler_are_refused():
    with pytest.raises(ConfigError, match="unknown key 'torch_profiler_with_stacks'"):
        plan("--profiler-config.dir /p --profiler-config.torch_profiler_with_stacks true")
