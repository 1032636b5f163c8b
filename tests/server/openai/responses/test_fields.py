"""Every field of the request: what it does, and what is refused with which type and param."""

import msgspec
import pytest

from ortloom.server.openai.responses.wire import ResponsesRequest

PATH = "/v1/responses"
BAD = "Bad Request"
REFUSED = "BadRequestError"
RULE = "invalid_request_error"
FUNCTION = {"type": "function", "name": "get_w", "parameters": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def body(**fields):
    return {"model": "tiny", "input": "Say hi", "temperature": 0, **fields}


def error_of(response, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], bool(error["message"])) == (status, True)
    return error


INVALID = [
    ("input", {"input": None}, BAD, "body.input"),
    ("input", {"input": 5}, BAD, "body.input"),
    ("input", {"input": [5]}, BAD, "body.input.0"),
    ("input", {"input": [{"role": "wizard", "content": "x"}]}, BAD, "body.input.0.role"),
    ("input", {"input": [{"role": "user"}]}, BAD, "body.input.0.content"),
    ("input", {"input": [{"role": "user", "content": [{}]}]}, BAD, "body.input.0.content.0"),
    (
        "input",
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        BAD,
        "body.input.0.content.0.text",
    ),
    (
        "input",
        {"input": [{"role": "user", "content": [{"type": "hologram"}]}]},
        REFUSED,
        "type",
    ),
    (
        "input",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        REFUSED,
        None,
    ),
    ("input", {"input": [{"type": "computer_call"}]}, REFUSED, "input"),
    ("input", {"input": [{"type": "function_call", "name": "f"}]}, BAD, "body.input.0.call_id"),
    (
        "input",
        {"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": "{"}]},
        REFUSED,
        "input",
    ),
    ("input", {"input": "sea " * 200}, RULE, "input"),
    ("input", {"input": []}, REFUSED, "input"),
    ("input", {"input": "sea " * 9000}, RULE, "input"),
    ("model", {"model": 5}, BAD, "body.model"),
    ("instructions", {"instructions": ["x"]}, BAD, "body.instructions"),
    ("background", {"background": "x"}, BAD, "body.background"),
    ("background", {"background": True, "store": False}, BAD, "background"),
    ("background", {"background": True}, RULE, "background"),
    ("include", {"include": ["everything"]}, BAD, "body.include.0"),
    ("include", {"include": "message.output_text.logprobs"}, BAD, "body.include"),
    ("max_output_tokens", {"max_output_tokens": "x"}, BAD, "body.max_output_tokens"),
    ("max_output_tokens", {"max_output_tokens": 65}, REFUSED, "max_output_tokens"),
    ("max_tool_calls", {"max_tool_calls": -1}, BAD, "body.max_tool_calls"),
    ("metadata", {"metadata": {"a": 5}}, BAD, "body.metadata"),
    ("parallel_tool_calls", {"parallel_tool_calls": "x"}, BAD, "body.parallel_tool_calls"),
    ("previous_response_id", {"previous_response_id": "nope"}, RULE, "response_id"),
    ("previous_response_id", {"previous_response_id": 5}, BAD, "body.previous_response_id"),
    ("prompt", {"prompt": {"id": "p"}}, BAD, "prompt"),
    ("prompt_cache_key", {"prompt_cache_key": 5}, BAD, "body.prompt_cache_key"),
    ("reasoning", {"reasoning": {"effort": "huge"}}, BAD, "body.reasoning.effort"),
    ("reasoning", {"reasoning": {"summary": "x"}}, BAD, "body.reasoning.summary"),
    ("service_tier", {"service_tier": "gold"}, BAD, "body.service_tier"),
    ("store", {"store": "x"}, BAD, "body.store"),
    ("stream", {"stream": "perhaps"}, BAD, "body.stream"),
    ("temperature", {"temperature": 2.5}, REFUSED, "temperature"),
    ("temperature", {"temperature": "x"}, BAD, "body.temperature"),
    ("text", {"text": {"format": {"type": "x"}}}, BAD, "body.text.format.type"),
    ("text", {"text": {"format": {"type": "json_schema", "name": "n"}}}, REFUSED, "text"),
    ("text", {"text": {"format": {"type": "json_schema", "schema": 5}}}, REFUSED, "text"),
    ("text", {"text": {"verbosity": "x"}}, BAD, "body.text.verbosity"),
    (
        "text",
        {"text": {"format": {"type": "text"}}, "structured_outputs": {"regex": "a"}},
        REFUSED,
        "text",
    ),
    ("tool_choice", {"tool_choice": "required"}, REFUSED, "tool_choice"),
    ("tool_choice", {"tool_choice": "sometimes"}, REFUSED, "tool_choice"),
    ("tool_choice", {"tool_choice": 5}, BAD, "body.tool_choice"),
    ("tool_choice", {"tool_choice": {"type": "function"}}, REFUSED, "tool_choice"),
    ("tool_choice", {"tool_choice": {"type": "web_search"}}, REFUSED, "tool_choice"),
    (
        "tool_choice",
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "other"}},
        REFUSED,
        "tool_choice",
    ),
    (
        "tool_choice",
        {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": []}},
        BAD,
        "body.tool_choice.mode",
    ),
    ("tools", {"tools": {}}, BAD, "body.tools"),
    ("tools", {"tools": [5]}, BAD, "body.tools.0"),
    ("tools", {"tools": [{"type": "telepathy"}]}, BAD, "body.tools.0.type"),
    ("tools", {"tools": [{"type": "function"}]}, BAD, "body.tools.0.name"),
    ("tools", {"tools": [FUNCTION]}, REFUSED, None),  # no parser of calls
    ("top_logprobs", {"top_logprobs": 21}, REFUSED, "top_logprobs"),
    ("top_logprobs", {"top_logprobs": -1}, REFUSED, "top_logprobs"),
    ("top_logprobs", {"top_logprobs": "x"}, BAD, "body.top_logprobs"),
    ("top_p", {"top_p": 0}, REFUSED, "top_p"),
    ("truncation", {"truncation": "some"}, BAD, "body.truncation"),
    ("user", {"user": 5}, BAD, "body.user"),
    ("top_k", {"top_k": -2}, REFUSED, None),
    ("presence_penalty", {"presence_penalty": 3}, REFUSED, None),
    ("frequency_penalty", {"frequency_penalty": -3}, REFUSED, None),
    ("repetition_penalty", {"repetition_penalty": 0}, REFUSED, None),
    ("logit_bias", {"logit_bias": {"abc": 1}}, REFUSED, "logit_bias"),
    ("seed", {"seed": 2**70}, BAD, "body.seed"),
    ("stop", {"stop": ["a", "b", "c", "d", "e"]}, BAD, "body.stop"),
    ("ignore_eos", {"ignore_eos": "x"}, BAD, "body.ignore_eos"),
    ("skip_special_tokens", {"skip_special_tokens": 5}, BAD, "body.skip_special_tokens"),
    (
        "include_stop_str_in_output",
        {"include_stop_str_in_output": "x"},
        BAD,
        "body.include_stop_str_in_output",
    ),
    ("logprobs_detail", {"logprobs_detail": "x"}, BAD, "body.logprobs_detail"),
    ("structured_outputs", {"structured_outputs": {}}, REFUSED, "structured_outputs"),
    ("chat_template_kwargs", {"chat_template_kwargs": 5}, BAD, "body.chat_template_kwargs"),
    ("mm_processor_kwargs", {"mm_processor_kwargs": {}}, REFUSED, None),
    ("media_io_kwargs", {"media_io_kwargs": {}}, REFUSED, None),
    ("include_reasoning", {"include_reasoning": "x"}, BAD, "body.include_reasoning"),
    (
        "enable_response_messages",
        {"enable_response_messages": "x"},
        BAD,
        "body.enable_response_messages",
    ),
    (
        "previous_input_messages",
        {"previous_input_messages": [{"content": "x"}]},
        BAD,
        "body.previous_input_messages.0.role",
    ),
    (
        "previous_input_messages",
        {
            "previous_input_messages": [{"role": "user", "content": "x"}],
            "previous_response_id": "resp_x",
        },
        RULE,
        "previous_response_id",
    ),
    ("request_id", {"request_id": "x" * 257}, REFUSED, "request_id"),
    ("session_id", {"session_id": 5}, BAD, "body.session_id"),
    ("priority", {"priority": "x"}, BAD, "body.priority"),
    ("cache_salt", {"cache_salt": ""}, REFUSED, "cache_salt"),
    ("vllm_xargs", {"vllm_xargs": 5}, BAD, "body.vllm_xargs"),
    ("kv_transfer_params", {"kv_transfer_params": 5}, BAD, "body.kv_transfer_params"),
    ("ec_transfer_params", {"ec_transfer_params": 5}, BAD, "body.ec_transfer_params"),
]


@pytest.mark.parametrize(("field", "fields", "kind", "param"), INVALID)
def test_what_is_refused(app, engine, say, field, fields, kind, param):
    say("sea")
    error = error_of(app.post(PATH, body(**fields)))
    assert (error["type"], error["param"]) == (kind, param)
    assert not engine.requests
    assert app.post(PATH, body()).status_code == 200  # nothing else is lost


def test_what_is_not_there_is_404(app, engine):
    error = error_of(app.post(PATH, body(model="nope")), 404)
    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    error = error_of(app.post(PATH, body(previous_response_id="resp_nope")), 404)
    assert (error["type"], error["param"]) == (RULE, "response_id")
    reference = [{"type": "item_reference", "id": "msg_nope"}]
    error = error_of(app.post(PATH, body(input=reference)), 404)
    assert (error["type"], error["param"]) == (RULE, "input")
    assert not engine.requests


@pytest.mark.parametrize("text", ["", "[]", "{", '{"input": "x"', '{"model": "tiny"}'])
def test_bodies_that_are_none(app, text):
    headers = {"content-type": "application/json"}
    response = app.client.post(PATH, content=text.encode(), headers=headers)
    assert error_of(response)["type"] == BAD


ECHOED = [
    ("instructions", "Be brief.", "Be brief."),
    ("metadata", {"k": "v"}, {"k": "v"}),
    ("max_tool_calls", 3, 3),
    ("max_output_tokens", 5, 5),
    ("max_output_tokens", -1, None),  # no limit of the client's
    ("parallel_tool_calls", False, False),
    ("parallel_tool_calls", None, True),
    ("reasoning", {"effort": "low"}, {"effort": "low", "generate_summary": None, "summary": None}),
    ("service_tier", "flex", "flex"),
    ("service_tier", None, "auto"),
    ("temperature", 0.5, 0.5),
    ("temperature", None, 1.0),
    ("text", {"format": {"type": "text"}}, {"format": {"type": "text"}, "verbosity": None}),
    ("text", {"verbosity": "low"}, {"format": None, "verbosity": "low"}),
    ("tool_choice", "auto", "none"),  # there are no tools
    ("tools", [{"type": "web_search"}], [{"type": "web_search"}]),
    ("top_p", 0.5, 0.5),
    ("truncation", "auto", "auto"),
    ("truncation", None, "disabled"),
    ("user", "u", "u"),
    ("presence_penalty", 0.5, 0.5),
    ("frequency_penalty", -0.5, -0.5),
    ("background", None, False),
]


@pytest.mark.parametrize(("field", "value", "want"), ECHOED)
def test_what_is_echoed(app, say, field, value, want):
    say("sea")
    reply = app.post(PATH, {"input": "Say hi", "temperature": 0.7, field: value})
    assert reply.status_code == 200, reply.text
    if want is not None:
        assert reply.json()[field] == want


SAMPLED = [
    ({"top_k": 5}, {"top_k": 5}),
    ({"top_p": 0.5}, {"top_p": 0.5}),
    ({"presence_penalty": 0.5}, {"presence_penalty": 0.5}),
    ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
    ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    ({"logit_bias": {"5": 2}}, {"logit_bias": {5: 2.0}}),
    ({"seed": 7}, {"seed": 7}),
    ({"stop": "x"}, {"stop": ["x"]}),
    ({"ignore_eos": True, "max_output_tokens": 3}, {"ignore_eos": True, "max_tokens": 3}),
    ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
    ({"include_stop_str_in_output": True}, {"include_stop_str_in_output": True}),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, {"logprobs": 3}),
    ({"top_logprobs": 3}, {"logprobs": None}),
    (
        {"logprobs_detail": True, "top_logprobs": 3},
        {"logprobs": 3, "logprobs_detail": True, "sampling_mask": True},
    ),
    ({"logprobs_detail": False}, {"logprobs": None, "logprobs_detail": False}),
]


@pytest.mark.parametrize(("fields", "want"), SAMPLED)
def test_what_the_engine_is_told(app, engine, say, fields, want):
    say("sea")
    assert app.post(PATH, body(temperature=0.7, **fields)).status_code == 200
    sampling = engine.requests[0].sampling
    assert {name: getattr(sampling, name) for name in want} == want


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"text": {"format": {"type": "json_object"}}}, "json_object"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}, "json"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice"),
        ({"structured_outputs": {"regex": "a+"}}, "regex"),
    ],
)
def test_constraints_reach_the_engine(app, engine, say, fields, kind):
    say("sea")
    assert app.post(PATH, body(**fields)).status_code == 200
    constraint = engine.requests[0].sampling.structured_output
    assert constraint.kind == kind
    if kind == "json":
        assert msgspec.json.decode(constraint.value) == SCHEMA


def test_a_schema_is_echoed_whole(app, say):
    say("sea")
    given = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    reply = app.post(PATH, body(text={"format": given})).json()
    assert reply["text"]["format"] == {**given, "description": None}


def test_priority_and_salt(app, engine, say):
    say("sea")
    app.post(PATH, body(priority=3, cache_salt="s"))
    app.post(PATH, body(priority=3), headers={"X-Vllm-Priority": "-2"})
    first, second = engine.requests
    assert (first.priority, first.cache_salt, second.priority) == (3, "s", -2)


def test_template_variables(app, engine, say, tokenizer):
    say("sea")
    app.post(PATH, body(chat_template_kwargs={"mood": "glad"}))
    app.post(PATH, body(reasoning={"effort": "none"}))
    app.post(PATH, body(reasoning={"effort": "high"}))
    prompts = [tokenizer.decode(r.prompt_token_ids, False) for r in engine.requests]
    assert ["glad" in prompts[0], "quick" in prompts[1], "think" in prompts[2]] == [True] * 3


def test_truncation_cuts_at_the_left(app, engine, say):
    say("sea")
    long = "sea " * 200 + "end"
    response = app.post(PATH, body(input=long, truncation="auto", max_output_tokens=10))
    assert response.status_code == 200, response.text
    assert len(engine.requests[0].prompt_token_ids) == 64 - 10


def test_ignored_fields_are_accepted(app, say):
    say("sea")
    fields = {
        "session_id": "s",
        "prompt_cache_key": "k",
        "include": ["reasoning.encrypted_content"],
        "include_reasoning": False,
        "store": True,
        "vllm_xargs": {"a": 1},
        "kv_transfer_params": {},
        "ec_transfer_params": {},
        "stream_options": {"include_obfuscation": False},
        "guided_json": {},
    }
    assert app.post(PATH, body(**fields)).status_code == 200


def test_every_field_is_in_a_table():
    shown = {field for field, *_ in INVALID} | {field for field, *_ in ECHOED}
    assert {f.name for f in msgspec.structs.fields(ResponsesRequest)} == shown
