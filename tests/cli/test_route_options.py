"""Flags and variables of the routes, from the command line to the configuration tree."""

import pytest

from ortloom.commands.serve import make_plan
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table


def config_of(*flags, **environ):
    env = read_environment(environ)
    return make_plan(["model", *flags], env, flag_table())[1].config


def changed(config):
    """Names of the route settings that differ from a server without flags."""
    before, after = config_of().front.routes, config.front.routes
    return {n for n in after.__struct_fields__ if getattr(before, n) != getattr(after, n)}


@pytest.mark.parametrize(
    ("flags", "environ", "names"),
    [
        (["--enable-scale-out"], {}, {"scale_out"}),
        (["--no-enable-scale-out"], {}, set()),
        ([], {"VLLM_ENABLE_SCALE_OUT_ENDPOINTS": "1"}, {"scale_out"}),
        ([], {"VLLM_ENABLE_SCALE_OUT_ENDPOINTS": "0"}, set()),
        (["--tokens-only"], {}, {"tokens_only", "scale_out"}),
        (["--enable-tokenizer-info-endpoint"], {}, {"tokenizer_info"}),
        (["--disable-fastapi-docs"], {}, {"docs"}),
        (["--enable-offline-docs"], {}, {"offline_docs"}),
        (["--profiler-config.dir", "/p"], {}, {"profiler"}),
        (["--profiler-config", "{}"], {}, set()),
        ([], {"VLLM_SERVER_DEV_MODE": "1"}, {"dev_mode"}),
        ([], {"VLLM_SERVER_DEV_MODE": "false"}, set()),
    ],
)
def test_what_opens_which_routes(flags, environ, names):
    assert changed(config_of(*flags, **environ)) == names


def test_what_else_they_set():
    assert config_of("--tokens-only").model.skip_tokenizer_init
    assert config_of("--enable-sleep-mode").model.enable_sleep_mode
    asked = ("--return-sampling-mask", "--logprobs-mode", "processed_logprobs")
    assert config_of(*asked).model.return_sampling_mask
    front = config_of("--fingerprint-mode", "custom", "--fingerprint-value", "v").front
    assert (front.fingerprint_mode, front.fingerprint_value) == ("custom", "v")
    asked = '{"profiler": "torch", "torch_profiler_dir": "/p", "torch_profiler_with_stack": true}'
    assert config_of("--profiler-config", asked).profiler.folder == "/p"


@pytest.mark.parametrize(
    ("flags", "environ", "word"),
    [
        (["--profiler-config", '{"profiler": "cuda", "dir": "/p"}'], {}, "GPU"),
        (["--profiler-config", '{"profiler": "other", "dir": "/p"}'], {}, "torch, python"),
        (["--profiler-config", '{"profiler": "torch"}'], {}, "dir"),
        (["--profiler-config", '{"dir": ""}'], {}, "dir"),
        (["--profiler-config", '{"dir": "/p", "wrong": 1}'], {}, "wrong"),
        (["--fingerprint-mode", "custom"], {}, "--fingerprint-value"),
        (["--return-sampling-mask"], {}, "processed_logprobs"),
        ([], {"VLLM_SERVER_DEV_MODE": "perhaps"}, "VLLM_SERVER_DEV_MODE"),
    ],
)
def test_what_is_refused(flags, environ, word):
    with pytest.raises(ConfigError, match=word):
        config_of(*flags, **environ)
