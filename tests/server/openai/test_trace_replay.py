"""vllm_xargs.trace_decode_token_ids reaches the engine."""

import pytest


def test_a_trace_reaches_the_engine(app, engine):
    fields = {"model": "tiny", "prompt": "The sea is", "max_tokens": 3}
    app.post("/v1/completions", {**fields, "vllm_xargs": {"trace_decode_token_ids": [5, 6]}})
    app.post("/v1/completions", {**fields, "vllm_xargs": {"other": "x"}})
    traces = [request.sampling.trace_decode_token_ids for request in engine.requests]
    assert traces == [[5, 6], None]


@pytest.mark.parametrize("value", ["5", [5, "6"], [True], {"a": 1}])
def test_a_trace_that_is_no_list_of_ids_is_refused(app, value):
    fields = {"model": "tiny", "prompt": "x", "vllm_xargs": {"trace_decode_token_ids": value}}
    reply = app.post("/v1/completions", fields)
    assert reply.status_code == 400
    where = "body.vllm_xargs" if isinstance(value, dict) else "vllm_xargs"
    assert reply.json()["error"]["param"] == where
