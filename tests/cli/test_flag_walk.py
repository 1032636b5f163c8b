"""Every flag and variable of the reference, one by one: known, typed, classed, and not ignored.

tests/data/reference_flags.json holds the facts of 370 flags (name, class, default, choices, other
spellings) and the names of the environment variables. A flag that works must change the effective
configuration; whether the configuration is obeyed is for the tests of each part.
"""

import json
from pathlib import Path

import msgspec
import pytest

from ortloom.commands.dialect import apply_dialect
from ortloom.commands.help_text import help_text
from ortloom.commands.serve import make_plan, parse
from ortloom.environment import NOT_YET, TRUE_ANYWAY, read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table

FACTS = json.loads((Path(__file__).parents[1] / "data" / "reference_flags.json").read_text())
ROWS = {row["name"]: row for row in FACTS["flags"]}
NOT_FLAGS = ("--help", "<model_tag>")
NAMES = [name for name in ROWS if name not in NOT_FLAGS]
TABLE = flag_table()

BELONGS_LATER = {
    "scale": "replicas, parallelism, offload",
    "lora": "adapters",
    "media": "image, audio, video",
    "spec": "speculation",
    "pooling": "embeddings, scores",
    "state": "recurrent models",
    "kv-shared": "layers that share KV",
    "watermark": "marked text",
}
"""Reasons whose work is that of a later issue."""

NOT_BUILT = {"embeds"}
"""Reasons that may still stand in the table, and shall go."""

NO_MEANING = {"--use-fp64-gumbel", "--guided-decoding-disable-fallback"}
"""Flags that work elsewhere and can mean nothing here: a line says so."""

OTHER_DEFAULTS: dict[str, object] = {}
"""Flag -> our default where it is not that of the reference."""

MORE_CHOICES = {
    "--kv-cache-dtype": {"float32", "int8"},
    "--mm-processor-device": {"auto", "cpu"},
    "--max-lora-rank": set(),
}
"""Flag -> values that we take beyond those of the reference."""

COMPANIONS = {
    "--collect-detailed-traces": "--otlp-traces-endpoint http://127.0.0.1:4317",
    "--enable-log-outputs": "--enable-log-requests",
    "--enable-log-deltas": "--enable-log-requests --enable-log-outputs",
    "--enable-auto-tool-choice": "--tool-call-parser hermes",
    "--exclude-tools-when-tool-choice-none": "--tool-call-parser hermes",
    "--return-sampling-mask": "--logprobs-mode processed_logprobs",
    "--per-request-spec-decode-metrics": "--speculative-config {}",
    "--lora-modules": "--enable-lora",
    "--ssl-keyfile": "--ssl-certfile {file}",
    "--ssl-certfile": "--ssl-keyfile {file}",
    "--max-long-partial-prefills": "--max-num-partial-prefills 4",
    "--long-prefill-token-threshold-adaptive": "--long-prefill-token-threshold 9",
    "--numa-bind-nodes": "--numa-bind",
    "--numa-bind-cpus": "--numa-bind",
    "--kv-cache-metrics-sample": "--kv-cache-metrics",
}
"""Flag -> what it needs beside it; given with and without the flag itself."""

VALUES = {
    "--additional-config": '--additional-config={"threads":3}',
    "--allowed-headers": '--allowed-headers=["x"]',
    "--allowed-methods": '--allowed-methods=["GET"]',
    "--allowed-origins": '--allowed-origins=["http://a"]',
    "--attention-config": '--attention-config={"x":1}',
    "--api-server-count": "--api-server-count 3",
    "--block-size": "--block-size 32",
    "--calculate-kv-scales": None,
    "--chat-template": "--chat-template {{x}}",
    "--collect-detailed-traces": "--collect-detailed-traces all",
    "--disable-hybrid-kv-cache-manager": None,
    "--fingerprint-mode": "--fingerprint-mode hash",
    "--generation-config": "--generation-config vllm",
    "--gpu-memory-utilization": "--gpu-memory-utilization 0.5",
    "--guided-decoding-backend": "--guided-decoding-backend guidance",
    "--h11-max-incomplete-event-size": "--h11-max-incomplete-event-size 65536",
    "--hf-config-path": "--hf-config-path {dir}",
    "--kv-cache-dtype": "--kv-cache-dtype float16",
    "--kv-events-config": '--kv-events-config={"enable_kv_cache_events":true}',
    "--limit-mm-per-prompt": '--limit-mm-per-prompt={"image":3}',
    "--load-format": "--load-format dummy",
    "--logging-config": None,
    "--max-log-len": "--max-log-len 5",
    "--max-long-partial-prefills": "--max-long-partial-prefills 3",
    "--max-logprobs": "--max-logprobs -1",
    "--max-model-len": "--max-model-len 4k",
    "--max-num-active-seqs": "--max-num-active-seqs 3",
    "--max-num-batched-tokens": "--max-num-batched-tokens 1k",
    "--middleware": None,
    "--model-loader-extra-config": None,
    "--numa-bind": None,
    "--numa-bind-nodes": None,
    "--numa-bind-cpus": None,
    "--otlp-traces-endpoint": "--otlp-traces-endpoint http://127.0.0.1:4317",
    "--port": "--port 9",
    "--preemption-mode": None,
    "--profiler-config": '--profiler-config={"dir":"/tmp/x"}',
    "--quantization": "--quantization int8",
    "--reasoning-config": "--reasoning-config="
    '{"reasoning_start_str":"<a>","reasoning_end_str":"</a>"}',
    "--reasoning-effort-budgets": '--reasoning-effort-budgets={"low":5}',
    "--reasoning-parser": "--reasoning-parser deepseek_r1",
    "--reasoning-parser-plugin": "--reasoning-parser-plugin {python}",
    "--root-path": "--root-path /p",
    "--ssl-ca-certs": None,
    "--ssl-cert-reqs": None,
    "--ssl-ciphers": None,
    "--ssl-certfile": None,
    "--ssl-keyfile": None,
    "--enable-ssl-refresh": None,
    "--structured-outputs-config": '--structured-outputs-config={"backend":"guidance"}',
    "--tokenizer-config": "--tokenizer-config {json}",
    "--tokenizer-mode": None,
    "--config-format": None,
    "--tool-call-parser": "--tool-call-parser hermes",
    "--tool-parser-plugin": "--tool-parser-plugin {python}",
    "--uvicorn-log-level": "--uvicorn-log-level warning",
    "--watermark": "--watermark 0.5",
    "--device": "--device cuda",
    "--enable-radix-attention": "--disable-radix-attention",
    "--num-blocks": "--num-blocks 9",
    "--log-level": "--log-level ERROR",
    "--show-hidden-metrics-for-version": "--show-hidden-metrics-for-version 0.12",
    "--logits-processors": None,
    "--logits-processor-pattern": None,
    "--kv-cache-metrics-sample": "--kv-cache-metrics-sample 0.5",
}
"""Flag -> a value that is none of its defaults; None = its work shows elsewhere (`ELSEWHERE`)."""

ELSEWHERE = {
    "--ssl-cert-reqs": "the tests of TLS",
    "--log-config-file": "the logs' own tests",
    "--calculate-kv-scales": "a line, or a refusal: test_kv_events",
    "--config": "test_config_file",
    "--config-format": "other values are refused: test_model_source",
    "--disable-hybrid-kv-cache-manager": "both values ask for what there is",
    "--disable-log-requests": "contradicts its opposite: test_contradictions",
    "--enable-ssl-refresh": "the tests of TLS",
    "--enable-sliding-window": "asks for what there is; contradicts its opposite",
    "--fail-on-environ-validation": "test_environment",
    "--logging-config": "the logs' own tests",
    "--model": "the model itself: test_configuration",
    "--model-loader-extra-config": "a line, or a refusal: test_model_source",
    "--numa-bind": "test_engine_options",
    "--numa-bind-cpus": "test_engine_options",
    "--numa-bind-nodes": "test_engine_options",
    "--preemption-mode": "other values are refused: test_scheduler_options",
    "--ssl-ca-certs": "the tests of TLS",
    "--ssl-certfile": "the tests of TLS",
    "--ssl-ciphers": "the tests of TLS",
    "--ssl-keyfile": "the tests of TLS",
    "--tokenizer-mode": "other values are refused: test_model_source",
}
"""Flags that work and leave no trace in the configuration by themselves, or need real files."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "a.json").write_text('{"version": 1}')
    (folder / "a.pem").write_text("x")
    (folder / "a.py").write_text("")
    return {
        "{file}": str(folder / "a.pem"),
        "{json}": str(folder / "a.json"),
        "{python}": str(folder / "a.py"),
        "{dir}": str(folder),
    }


def plan(tokens, env=None):
    return make_plan(["m", *tokens], read_environment(env or {}), TABLE)[1]


def effective(tokens, env=None):
    """All that a start depends on, as plain values; the lines printed are no part of it."""
    tree = msgspec.to_builtins(plan(tokens, env))
    del tree["notices"]
    return tree


def failure(tokens):
    """The error of a command line, or None."""
    try:
        plan(tokens)
    except ConfigError as error:
        return error
    return None


def flag_of(name):
    """Our row of a name, and whether it is the positive form."""
    for flag in TABLE.flags:
        if name in (flag.name, *flag.aliases):
            return flag, True
        if name == flag.negative:
            return flag, False
    raise AssertionError(f"{name} is not known")


def words(text, files):
    return [files.get(word, word) for word in text.split()]


def another(flag):
    """A value that is neither the default nor asks for the same."""
    match flag.kind:
        case "choice":
            offered = [c for c in flag.offered if not flag.is_default(c)]
            return (offered or [c for c in flag.choices if not flag.is_default(c)])[0]
        case "int" if flag.choices:
            return next(int(c) for c in flag.choices if not flag.is_default(int(c)))
        case "int" | "size" | "context":
            return 7 if flag.default != 7 else 8
        case "float":
            return 0.125
        case "ints":
            return 3
        case "json":
            return '{"x": 1}'
        case "jsonlist":
            return '["x"]'
        case _:
            return "something"


def asking(name, files):
    """Tokens that ask for something else than the default."""
    flag, positive = flag_of(name)
    given = VALUES.get(name)
    if given is not None:
        return words(given, files)
    if flag.kind == "flag" or not positive:
        return [name]
    if flag.kind == "switch":
        return [flag.name] if flag.is_default(False) or not flag.default else [flag.negative]
    return [f"{name}={another(flag)}"]


def refused_as(flag):
    return "not in this build yet" if flag.class_ == "later" else "cannot be had here"


# ---- the table beside the reference


def test_no_flag_of_the_reference_is_missing():
    assert len(ROWS) == 370
    for name in NAMES:
        flag_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_flag_has_the_class_default_choices_and_spellings_of_the_reference(name):
    row = ROWS[name]
    flag, positive = flag_of(name)
    wanted = row["class"].removeprefix("gpu-")
    if wanted == "works":
        if flag.class_ == "later":
            assert flag.why in BELONGS_LATER or flag.why in NOT_BUILT
        else:
            assert flag.class_ == "works" or (name in NO_MEANING and flag.class_ == "notice")
    else:
        assert flag.class_ == wanted
    if positive:
        assert flag.default == OTHER_DEFAULTS.get(name, row["default"])
    choices = set(row.get("choices", flag.choices)) | MORE_CHOICES.get(name, set())
    assert set(flag.choices) == choices
    for spelling in row.get("aliases", ()):
        assert flag_of(spelling.partition("=")[0])[0] is flag
    for value in row.get("older", ()):
        assert value in flag.choices


@pytest.mark.parametrize("name", [n for n in NAMES if ROWS[n].get("choices")])
def test_each_choice_is_taken_or_refused_by_name_and_others_are_not_choices(name, files):
    flag, _ = flag_of(name)
    beside = words(COMPANIONS.get(name, ""), files)
    for value in flag.choices:
        error = failure([f"{name}={value}", *beside])
        assert error is None or error.exit_code == 2
        assert "invalid choice" not in str(error), value
    with pytest.raises(ConfigError, match="invalid choice: '99nonsense'") as caught:
        parse(["m", f"{name}=99nonsense"], TABLE)
    for value in flag.offered:
        assert value in str(caught.value)


# ---- what each flag does


@pytest.mark.parametrize("name", NAMES)
def test_a_flag_asked_for_something_else_is_not_ignored(name, files):
    flag, positive = flag_of(name)
    beside = words(COMPANIONS.get(name, ""), files)
    tokens = [*asking(name, files), *beside]
    if not positive and flag.is_default(False):
        assert effective(tokens) == effective(beside)  # the negative of what is off
        return
    if flag.class_ in ("later", "refuse"):
        with pytest.raises(ConfigError) as caught:
            plan(tokens)
        assert caught.value.exit_code == 2
        assert refused_as(flag) in str(caught.value)
        return
    if flag.class_ in ("inert", "notice"):
        before = [*plan(beside).notices, f"{name} is deprecated: use {flag.instead}"]
        more = [line for line in plan(tokens).notices if line not in before]
        assert len(more) == 1
        assert more[0].startswith(tokens[0].partition("=")[0] + ": taken only")
        assert TABLE.reason(flag) in more[0]
        assert effective(tokens) == effective(beside)
        return
    if name in ELSEWHERE:
        return
    if failure(beside) is not None:  # what stands beside it needs it
        assert failure(tokens) is None
        return
    assert effective(tokens) != effective(beside), "it works and changes nothing"


def test_what_is_shown_elsewhere_is_not_shown_here():
    """No flag is excused that could be shown: a name in both tables would hide a failure."""
    for name in ELSEWHERE:
        assert VALUES.get(name) is None or name == "--log-config-file", name
        flag_of(name)


@pytest.mark.parametrize("name", [flag.name for flag in TABLE.flags if flag.instead])
def test_a_deprecated_name_says_what_to_write(name, files):
    flag, _ = flag_of(name)
    if flag.class_ != "works":
        return  # it is refused or does nothing, which the walk above sees
    tokens = ["--model=x"] if name == "--model" else asking(name, files)
    lines = apply_dialect(parse(["m", *tokens], TABLE), TABLE)
    assert lines == [f"{name} is deprecated: use {flag.instead}"]


# ---- the two rows that are no options


def test_the_model_is_the_first_word():
    assert plan([]).config.model.bundle == "m"
    with pytest.raises(ConfigError, match="no model is named"):
        make_plan([], read_environment({}), TABLE)


def test_help_has_all_its_forms():
    overview = help_text(None, TABLE)
    assert "Config Groups:" in overview
    for form in ("--help=all", "--help=ModelConfig", "--help=max-num-seqs"):
        assert form in overview
    assert help_text("listgroup", TABLE) == overview
    everything = help_text("all", TABLE)
    for name in NAMES:
        assert name in everything, name
    assert help_text("page", TABLE) == everything
    group = help_text("model_CONFIG".replace("_", ""), TABLE)
    assert "--max-model-len" in group
    assert "--port" not in group
    assert "JSON" in group
    one = help_text("max-num-seqs", TABLE)
    assert [line for line in one.splitlines() if line.startswith("  --")] == [
        "  --max-num-seqs SEQS"
    ]
    assert help_text("max_num_seqs", TABLE).partition("\n")[2] == one.partition("\n")[2]
    assert help_text("max", TABLE).count("\n  --max-") > 10
    assert "no group or option matches 'zzz'" in help_text("zzz", TABLE)


# ---- the environment

SETTINGS = {
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": ("1", "--max-model-len 9"),
    "VLLM_CPU_OMP_THREADS_BIND": (None, ""),
    "VLLM_LOGGING_LEVEL": ("ERROR", ""),
    "VLLM_CACHE_ROOT": (None, ""),
    "VLLM_DISABLE_LOG_LOGO": (None, ""),
    "VLLM_USE_MODELSCOPE": (None, ""),
    "VLLM_API_KEY": ("k", ""),
    "VLLM_LOGGING_PREFIX": ("x ", ""),
    "VLLM_CONFIGURE_LOGGING": ("0", ""),
    "VLLM_LOGGING_COLOR": ("1", ""),
    "VLLM_LOGGING_CONFIG_PATH": (None, ""),
}
"""Variable -> a value, and flags beside it; None = shown by a test of its own."""

OUTSIDE = {
    "HF_HOME", "HF_HUB_OFFLINE", "HF_TOKEN",
    "VT_CPU_MATMUL_TIER", "VT_CPU_Q8_DOT", "VT_CPU_QUANT_MMLA", "VT_CPU_QUANT_REPACK",
}  # fmt: skip
"""Read by the hub's library, by the op library, or where they take effect."""


def _unknown(name):
    try:
        return read_environment({name: "1"}).unknown
    except ConfigError:
        return ()  # known, and not this value


@pytest.mark.parametrize("name", FACTS["environment"])
def test_a_variable_takes_effect_or_a_line_says_that_it_does_not(name):
    if name in OUTSIDE or name in TRUE_ANYWAY:
        return
    value, flags = SETTINGS.get(name, ("7", ""))
    if name in NOT_YET:
        assert read_environment({name: "1"}).without_effect == (name,)
        return
    assert name not in _unknown(name)
    if value is None:
        return
    try:
        changed = effective(flags.split(), {name: value})
    except ConfigError:  # a switch
        changed = effective(flags.split(), {name: "1"})
    assert changed != effective(flags.split())
