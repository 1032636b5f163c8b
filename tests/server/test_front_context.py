"""Settings of the command line that decide what a front is made of."""

import json
import threading
import time

import pytest
from tokenizers import Tokenizer

from ortloom.config import Config, FrontConfig, ModelConfig
from ortloom.server.front_context import build_context


def built(bundle, front=None, **model):
    config = Config(
        model=ModelConfig(bundle=str(bundle), **model), front=FrontConfig(**(front or {}))
    )
    return build_context(config, None, time.time())


@pytest.mark.parametrize("workers", [1, 2])
def test_long_texts_are_tokenised_side_by_side(bundle, workers):
    """--renderer-num-workers (renderer_workers): two texts meet only where there are two places."""
    context = built(bundle, {"renderer_workers": workers})
    meeting = threading.Barrier(2)

    def met():
        try:
            meeting.wait(0.3)
        except threading.BrokenBarrierError:
            return False
        return True

    first, second = (context.long_texts.submit(met) for _ in range(2))
    assert [first.result(), second.result()] == [workers == 2] * 2
    context.long_texts.shutdown()


def test_a_tokenizer_config_gives_tokens_and_template(bundle, tmp_path):
    """--tokenizer-config (tokenizer_config)"""
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({"eos_token": "a", "chat_template": "{{ messages[0].content }}!"}))
    asked = [{"role": "user", "content": "hi"}]
    before, after = built(bundle), built(bundle, tokenizer_config=str(file))
    assert before.tokenizer.eos_token_id is None
    assert after.tokenizer.eos_token_id == Tokenizer.from_file(
        str(bundle / "tokenizer.json")
    ).token_to_id("a")
    texts = [c.chat_template.render(asked, tools=None, kwargs={}) for c in (before, after)]
    assert texts == ["<user>hi<assistant>", "hi!"]


def test_without_a_tokenizer_there_is_no_template_either(bundle):
    """--skip-tokenizer-init (skip_tokenizer_init)"""
    bare = built(bundle, skip_tokenizer_init=True)
    assert (bare.tokenizer, bare.chat_template) == (None, None)
    assert built(bundle).chat_template is not None
