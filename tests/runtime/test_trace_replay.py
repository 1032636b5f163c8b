"""Forced output: the tokens of a trace take the place of the sampled ones."""

import pytest
from fakes import EOS, FakeModelRunner, Harness, solo_tokens

PROMPT = solo_tokens([9], 40)


def test_a_trace_is_the_output_while_it_lasts_and_what_follows_depends_on_it():
    engine = Harness(FakeModelRunner(num_blocks=16), enable_trace_replay=True)
    engine.add("r", PROMPT[:20], 6, trace_decode_token_ids=[11, 12, 13], logprobs=0)
    engine.add("other", PROMPT[:30], 6)
    engine.run()
    assert engine.tokens("r") == [11, 12, 13, *solo_tokens([*PROMPT[:20], 11, 12, 13], 3)]
    assert engine.tokens("other") == solo_tokens(PROMPT[:30], 6)
    sampled = engine.outputs("r")[0].logprobs[0].token_ids[0]
    assert sampled == solo_tokens(PROMPT[:20], 1)[0]  # logprobs stay those of the model


def test_an_end_token_in_a_trace_ends_the_request():
    engine = Harness(enable_trace_replay=True)
    engine.add("r", PROMPT[:20], 6, trace_decode_token_ids=[11, EOS, 12])
    engine.run()
    assert engine.tokens("r") == [11, EOS]
    assert engine.last("r").finish_reason == "stop"


@pytest.mark.parametrize(
    ("allowed", "trace", "text"),
    [(False, [1], "needs the server flag --enable-trace-replay"), (True, [64], "Token id 64")],
)
def test_a_trace_may_be_refused(allowed, trace, text):
    engine = Harness(enable_trace_replay=allowed)
    engine.add("r", PROMPT[:20], 6, trace_decode_token_ids=trace)
    engine.step()
    last = engine.last("r")
    assert (last.error_kind, last.error_param) == ("invalid", "trace_decode_token_ids")
    assert text in last.error
