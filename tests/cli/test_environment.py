import ast
from pathlib import Path

import pytest

from ortloom.commands.serve import make_plan
from ortloom.environment import cache_root, read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table


def config(env, *tokens):
    return make_plan(["m", *tokens], read_environment(env), flag_table())[1].config


@pytest.mark.parametrize(
    ("name", "text", "read", "value"),
    [
        ("VLLM_API_KEY", "k", lambda c: c.front.api_keys, ("k",)),
        ("VLLM_CPU_KVCACHE_SPACE", "0.5", lambda c: c.cache.kv_cache_memory_bytes, 2**29),
        ("VLLM_CPU_KVCACHE_SPACE", "0", lambda c: c.cache.kv_cache_memory_bytes, None),
        ("VLLM_LOGGING_LEVEL", "warning", lambda c: c.log.level, "WARNING"),
        ("VLLM_LOG_STATS_INTERVAL", "2.5", lambda c: c.log.stats_interval, 2.5),
        ("VLLM_MAX_N_SEQUENCES", "3", lambda c: c.front.max_n, 3),
        ("VLLM_MAX_COMPLETION_PROMPTS", "3", lambda c: c.front.max_prompts, 3),
        ("VLLM_MAX_STOP_STRINGS", "9", lambda c: c.front.max_stop_strings, 9),
        ("VLLM_MAX_NUM_BAD_WORDS", "9", lambda c: c.front.max_bad_words, 9),
        ("VT_SERVER_MAX_NEW_TOKENS", "77", lambda c: c.front.max_new_tokens, 77),
        ("VT_ENABLE_JUMP_FORWARD", "1", lambda c: c.structured_outputs.jump_forward, True),
        ("VT_ENABLE_JUMP_FORWARD", "", lambda c: c.structured_outputs.jump_forward, False),
        ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "6", lambda c: c.front.keep_alive_timeout, 6.0),
        ("VLLM_ENABLE_RESPONSES_API_STORE", "1", lambda c: c.front.enable_responses_store, True),
        ("VLLM_ENABLE_RESPONSES_API_STORE", "0", lambda c: c.front.enable_responses_store, False),
        ("ORTLOOM_ENABLE_RESPONSES_API_STORE", "1", lambda c: c.front.enable_responses_store, True),
    ],
)
def test_variables_reach_the_configuration(name, text, read, value):
    assert read(config({name: text})) == value


@pytest.mark.parametrize(
    ("env", "tokens", "read", "value"),
    [
        ({"VLLM_API_KEY": "e"}, ["--api-key", "f"], lambda c: c.front.api_keys, ("f",)),
        (
            {"VLLM_CPU_KVCACHE_SPACE": "1"},
            ["--kv-cache-memory-bytes", "5k"],
            lambda c: c.cache.kv_cache_memory_bytes,
            5000,
        ),
        (
            {"VLLM_CPU_KVCACHE_SPACE": "1"},
            ["--num-blocks", "5"],
            lambda c: (c.cache.num_blocks, c.cache.kv_cache_memory_bytes),
            (5, None),
        ),
        ({"VLLM_LOGGING_LEVEL": "ERROR"}, ["-v"], lambda c: c.log.level, "DEBUG"),
        (
            {"VLLM_LOGGING_LEVEL": "ERROR"},
            ["--uvicorn-log-level", "info"],
            lambda c: c.log.level,
            "ERROR",
        ),
    ],
)
def test_flags_win_over_variables(env, tokens, read, value):
    assert read(config(env, *tokens)) == value


@pytest.mark.parametrize(
    ("text", "flag", "jumps"),
    [
        ("0", "--enable-jump-forward", False),
        ("true", "--disable-jump-forward", True),
        ("", "--enable-jump-forward", True),
        ("", "--disable-jump-forward", False),
    ],
)
def test_one_variable_wins_over_its_flag(text, flag, jumps):
    assert config({"VT_ENABLE_JUMP_FORWARD": text}, flag).structured_outputs.jump_forward is jumps


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("VT_ENABLE_JUMP_FORWARD", "maybe"),
        ("VLLM_LOGGING_LEVEL", "loud"),
        ("VLLM_CPU_KVCACHE_SPACE", "much"),
        ("VLLM_CPU_KVCACHE_SPACE", "-1"),
        ("VLLM_MAX_N_SEQUENCES", "0"),
        ("VLLM_MAX_STOP_STRINGS", "1.5"),
        ("VLLM_LOG_STATS_INTERVAL", "nan"),
        ("VLLM_ENABLE_RESPONSES_API_STORE", "yes"),
        ("ORTLOOM_ENABLE_RESPONSES_API_STORE", "-1"),
    ],
)
def test_bad_values_name_the_variable(name, text):
    with pytest.raises(ConfigError, match=name):
        read_environment({name: text})


def test_our_own_name_wins():
    both = {"ORTLOOM_ENABLE_RESPONSES_API_STORE": "0", "VLLM_ENABLE_RESPONSES_API_STORE": "1"}
    assert config(both).front.enable_responses_store is False


def test_stored_responses_belong_to_one_front():
    env = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
    assert config(env, "--api-server-count", "1").front.enable_responses_store
    several = config(env, "--api-server-count", "2").front
    assert (several.enable_responses_store, several.num_fronts) == (True, 2)
    assert config({}, "--api-server-count", "2").front.num_fronts == 2


def test_unknown_names_are_told_apart():
    env = read_environment(
        {"VLLM_API_KEY": "k", "VLLM_FOO": "1", "VLLM_IMAGE_FETCH_TIMEOUT": "1", "VLLM_URL": "u"}
    )
    assert env.unknown == ("VLLM_FOO",)
    assert env.without_effect == ("VLLM_IMAGE_FETCH_TIMEOUT",)


def test_the_logo_is_left_out():
    assert read_environment({}).logging.logo
    assert not read_environment({"VLLM_DISABLE_LOG_LOGO": "1"}).logging.logo


def test_unknown_variables_warn_or_fail(ortloom):
    done = ortloom("serve", "/missing", env={"VLLM_FOO": "1"})
    assert done.returncode == 1
    assert "warning: unknown environment variable VLLM_FOO" in done.stderr
    done = ortloom("serve", "/missing", "--fail-on-environ-validation", env={"VLLM_FOO": "1"})
    assert done.returncode == 2
    assert "unknown environment variables: VLLM_FOO" in done.stderr


def test_cache_root():
    assert cache_root({"XDG_CACHE_HOME": "/x"}) == Path("/x/ortloom")
    assert cache_root({"XDG_CACHE_HOME": "rel", "HOME": "/h"}) == Path("/h/.cache/ortloom")
    assert cache_root({"VLLM_CACHE_ROOT": "/v", "XDG_CACHE_HOME": "/x"}) == Path("/v/ortloom")
    assert cache_root({"HOME": "/h"}) == Path("/h/.cache/ortloom")


def test_another_hub_is_refused():
    assert read_environment({"VLLM_USE_MODELSCOPE": "0"}) == read_environment({})
    with pytest.raises(ConfigError, match="VLLM_USE_MODELSCOPE: models are fetched from a Hugging"):
        read_environment({"VLLM_USE_MODELSCOPE": "1"})


def test_nobody_is_told_how_the_server_is_used():
    """VLLM_DO_NOT_TRACK and VLLM_NO_USAGE_STATS ask for what is always so: a server has nothing
    that could send a request to anyone."""
    clients = {
        "aiohttp",
        "http.client",
        "httpx",
        "requests",
        "smtplib",
        "urllib.request",
        "urllib3",
    }
    root = Path(__file__).parents[2]
    found = set()
    for path in [*(root / "server").rglob("*.py"), *(root / "runtime").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module)
    assert "sanic" in found
    assert found & clients == set()
