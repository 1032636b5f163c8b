"""Every field of the Messages API: what it does, and what is refused how."""

import json

import pytest

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
TOOL = {"name": "get_w", "input_schema": {"type": "object", "properties": {}}}
BAD = "Bad Request"
INVALID = "invalid_request_error"


def turn(content, role="user"):
    return {"role": role, "content": content}


def body(**fields):
    fields = {"model": "tiny", "max_tokens": 4, "messages": [turn("hi")], **fields}
    return {name: value for name, value in fields.items() if value is not ...}


def counted(**fields):
    fields = body(**fields)
    return {name: value for name, value in fields.items() if name != "max_tokens"}


def prompt_of(engine, tokenizer, number=-1):
    return tokenizer.decode(engine.requests[number].prompt_token_ids, False)


@pytest.mark.parametrize("path", [PATH, COUNT])
class TestOtherErrors:
    def test_unknown_model(self, app, path):
        response = app.post(path, body(model="nope"))
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"
        assert "nope" in response.json()["error"]["message"]

    def test_not_json(self, app, path):
        response = app.client.post(
            path, content=b'{"model": ', headers={"content-type": "application/json"}
        )
        assert response.status_code == 400
        assert response.json()["type"] == "error"
        assert response.json()["error"]["type"] == BAD

    def test_another_content_type(self, app, path):
        response = app.client.post(
            path, content=json.dumps(body()), headers={"content-type": "text/plain"}
        )
        assert response.status_code == 400
        assert response.json()["type"] == "error"

    def test_another_method(self, app, path):
        response = app.client.get(path)
        assert response.status_code == 405
        assert response.json() == {"detail": "Method Not Allowed"}

    def test_a_template_that_refuses(self, serve, path):
        refusing = "{{ raise_exception('not today') }}"
        with serve(template=refusing) as app:
            response = app.post(path, body())
        assert response.status_code == 400
        assert response.json()["error"]["type"] == INVALID
        assert "not today" in response.json()["error"]["message"]


def test_key_missing_or_under_another_name(serve):
    with serve(front={"api_keys": ("sk-1",)}) as app:
        for headers in ({}, {"x-api-key": "sk-1"}, {"authorization": "Bearer other"}):
            response = app.post(PATH, body(), headers=headers)
            assert response.status_code == 401
            assert response.json() == {
                "type": "error",
                "error": {"type": "authentication_error", "message": "Unauthorized"},
            }
        headers = {"authorization": "Bearer sk-1", "x-api-key": "other"}
        assert app.post(PATH, body(), headers=headers).status_code == 200


class TestTaken:
    """Fields that change what is asked of the engine."""

    def sampling(self, app, engine, **fields):
        response = app.post(PATH, body(**fields))
        assert response.status_code == 200, response.text
        return engine.requests[-1]

    def test_limits_and_sampling(self, app, engine):
        request = self.sampling(
            app,
            engine,
            max_tokens=3,
            temperature=0.5,
            top_p=0.25,
            top_k=7,
            stop_sequences=["x", "y"],
            cache_salt="salt",
        )
        sampling = request.sampling
        assert (sampling.max_tokens, sampling.temperature) == (3, 0.5)
        assert (sampling.top_p, sampling.top_k) == (0.25, 7)
        assert sampling.stop == ["x", "y"]
        assert request.cache_salt == "salt"

    def test_null_is_not_given(self, app, engine):
        names = ["metadata", "stop_sequences", "stream", "temperature", "top_k", "top_p", "system"]
        names += ["tools", "tool_choice", "thinking", "output_config", "cache_salt"]
        names += ["logprobs_detail"]
        names += ["kv_transfer_params", "ec_transfer_params", "vllm_xargs", "chat_template_kwargs"]
        self.sampling(app, engine, **dict.fromkeys(names))
        self.sampling(app, engine)
        first, second = (request.sampling for request in engine.requests)
        assert (first.temperature, first.top_p, first.stop) == (
            second.temperature,
            second.top_p,
            second.stop,
        )

    def test_what_is_for_others_is_ignored(self, app, engine):
        self.sampling(
            app,
            engine,
            metadata={"user_id": "u"},
            service_tier="auto",
            container=None,
            cache_control={"type": "ephemeral"},
            kv_transfer_params={"a": 1},
            ec_transfer_params={"a": 1},
            vllm_xargs={"a": 1},
            system=[{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
            thinking={"type": "between_tools"},
            tools=[],
        )

    def test_a_format_is_a_constraint(self, app, engine):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        config = {"format": {"type": "json_schema", "schema": schema}}
        constraint = self.sampling(app, engine, output_config=config).sampling.structured_output
        assert constraint.kind == "json"
        assert json.loads(constraint.value) == schema
        self.sampling(app, engine, output_config={"format": {"type": "json_schema"}})
        assert engine.requests[-1].sampling.structured_output is None

    @pytest.mark.parametrize(
        ("fields", "written"),
        [
            ({}, ""),
            ({"output_config": {"effort": "max"}}, "think"),
            ({"thinking": {"type": "disabled"}}, "quick"),
            ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "quick"),
            ({"thinking": {"type": "adaptive"}}, ""),
            ({"chat_template_kwargs": {"mood": "calm"}}, "calm"),
        ],
    )
    def test_what_the_template_is_told(self, app, engine, tokenizer, fields, written):
        self.sampling(app, engine, **fields)
        head = "<|im_start|>user\nhi<|im_end|>\n"
        assert prompt_of(engine, tokenizer) == f"{head}{written}<|im_start|>assistant\n"
        count = app.post(COUNT, counted(**fields)).json()
        size = len(engine.requests[-1].prompt_token_ids)
        assert count == {
            "input_tokens": size,
            "context_management": {"original_input_tokens": size},
        }


class TestMessages:
    """What the conversation becomes; counting sees the same."""

    def prompt(self, app, engine, tokenizer, messages, **fields):
        asked = body(messages=messages, **fields)
        assert app.post(PATH, asked).status_code == 200
        del asked["max_tokens"]
        count = app.post(COUNT, asked).json()["input_tokens"]
        assert count == len(engine.requests[-1].prompt_token_ids)
        text = prompt_of(engine, tokenizer)
        assert text.endswith("<|im_start|>assistant\n")
        turns = text.removesuffix("<|im_start|>assistant\n").split("<|im_end|>\n")
        return [tuple(t.removeprefix("<|im_start|>").split("\n", 1)) for t in turns if t]

    @pytest.mark.parametrize(
        "system",
        [
            "Be brief.",
            [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
            [
                {"type": "text", "text": "x-anthropic-billing-header: 1234"},
                {"type": "text", "text": "Be brief."},
            ],
        ],
    )
    def test_system(self, app, engine, tokenizer, system):
        found = self.prompt(app, engine, tokenizer, [turn("a")], system=system)
        assert found == [("system", "Be brief."), ("user", "a")]

    @pytest.mark.parametrize("system", ["", [], [{"type": "text", "text": ""}]])
    def test_no_system(self, app, engine, tokenizer, system):
        assert self.prompt(app, engine, tokenizer, [turn("a")], system=system) == [("user", "a")]

    def test_text_blocks_of_a_turn(self, app, engine, tokenizer):
        blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        messages = [turn(blocks), turn("c", "assistant"), turn("d")]
        found = self.prompt(app, engine, tokenizer, messages)
        assert found == [("user", "a\nb"), ("assistant", "c"), ("user", "d")]

    def test_results_come_before_the_words_of_their_turn(self, app, engine, tokenizer):
        blocks = [
            {"type": "text", "text": "and?"},
            {"type": "tool_result", "tool_use_id": "1", "content": "ok", "is_error": False},
            {
                "type": "tool_result",
                "tool_use_id": "2",
                "content": [
                    {"type": "text", "text": "x"},
                    {"type": "tool_reference", "tool_name": "t"},
                ],
            },
            {"type": "tool_result", "tool_use_id": "3"},
        ]
        found = self.prompt(app, engine, tokenizer, [turn(blocks)])
        assert found == [("tool", "ok"), ("tool", "x\nt"), ("tool", ""), ("user", "and?")]

    def test_thoughts_that_cannot_be_read_are_left_out(self, app, engine, tokenizer):
        blocks = [
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "b"},
        ]
        found = self.prompt(app, engine, tokenizer, [turn("a"), turn(blocks, "assistant")])
        assert found == [("user", "a"), ("assistant", "b")]

    def test_a_system_turn_keeps_its_place(self, app, engine, tokenizer):
        messages = [turn("a"), turn("b", "assistant"), turn("S2", "system"), turn("c")]
        found = self.prompt(app, engine, tokenizer, messages, system="S1")
        assert [role for role, _ in found] == ["system", "user", "assistant", "system", "user"]

    def test_system_turns_at_the_head_are_one(self, app, engine, tokenizer):
        messages = [turn("S2", "system"), turn("a")]
        found = self.prompt(app, engine, tokenizer, messages, system="S1")
        assert found == [("system", "S1\n\nS2"), ("user", "a")]
