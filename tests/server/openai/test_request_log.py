"""Prompts reach the log only with the flag, and cut to the limit."""

import logging

import pytest

from ortloom.config import LogConfig
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.server.openai.generation import GenerationJob, PromptJob
from ortloom.server.openai.request_log import log_request


def job(text):
    prompt = PromptJob(token_ids=list(range(100, 140)), text=text, max_tokens=7)
    return GenerationJob("cmpl-x", [prompt], SamplingParams(temperature=0.5), 2, 0, None, 0.0)


@pytest.mark.parametrize("text", ["a secret of thirty characters.", None])
def test_nothing_without_the_flag(caplog, text):
    with caplog.at_level(logging.DEBUG):
        log_request(job(text), LogConfig())
    assert not caplog.records


def test_prompt_and_parameters_are_logged(caplog):
    with caplog.at_level(logging.INFO):
        log_request(job("a secret of thirty characters."), LogConfig(log_requests=True))
    (line,) = caplog.messages
    for part in ("cmpl-x", "a secret of thirty characters.", "40 tokens", "max_tokens 7", "0.5"):
        assert part in line


def test_prompt_is_cut(caplog):
    config = LogConfig(log_requests=True, max_log_len=8)
    with caplog.at_level(logging.INFO):
        log_request(job("a secret of thirty characters."), config)
        log_request(job(None), config)
    text, ids = caplog.messages
    assert "'a secret'" in text
    assert "107]" in ids
    assert "108" not in ids
