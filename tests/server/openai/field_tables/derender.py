"""From generated tokens back to replies: the bodies and their parts."""

from field_tables.rows import (
    BAD,
    MISSING,
    OMIT,
    REFUSED,
    Field,
    Kind,
    ignored,
    no,
    ok,
    reply,
    wrong,
)
from ortloom.server.openai.wire_derender import (
    DerenderChat,
    DerenderCompletion,
    Generated,
    GeneratedChoice,
    GeneratedEntry,
    GeneratedLogprobs,
    GeneratedPosition,
    StreamState,
)

CHAT = "/v1/chat/completions/derender"
COMPLETION = "/v1/completions/derender"
CHOICE = {"index": 0, "token_ids": [5, 6], "finish_reason": "length"}
REPLY = {"choices": [CHOICE], "request_id": "generate-tokens-abc", "created": 7}
CHUNK = {"choices": [{"index": 0, "token_ids": [5], "finish_reason": None}]}
HI = [{"role": "user", "content": "hi"}]
STREAM = {"stream": True, "generate_chunk": CHUNK}
STATE = {"output_token_ids": [6], "output_chunk_lens": [1], "events": 2}
NOT_SERVED = no("nope", "NotFoundError", "model", "`nope`", status=404)


def text_of(sight):
    choice = sight.json["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def decoded(*ids):
    return lambda s: s.tokenizer.decode(list(ids), True)


def usage(name):
    return reply("usage", name)


def missing(place):
    return {"missing": no(OMIT, BAD, place, "required"), "null": no(None, BAD, place)}


def common(given):
    """Fields of both routes; `given` is the member of the whole reply."""
    return {
        "model": Field(
            reply("model"), "tiny", [ok("tiny", "tiny"), ok("other", "tiny")],
            [*wrong("model", 5), NOT_SERVED],
        ),
        "stream": Field(
            lambda s: "chunk" in s.json,
            False,
            [ok(True, True, generate_chunk=CHUNK), ok(False, False)],
            [*wrong("stream", "x", 5), no(True, BAD, "body.generate_chunk", "generate_chunk")],
        ),
        "generate_chunk": Field(
            lambda s: s.json["stream_state"]["output_token_ids"],
            None,
            [ok(CHUNK, [5])],
            [
                *wrong("generate_chunk", 5),
                no({"choices": [CHOICE, CHOICE]}, REFUSED, "generate_chunk", "one choice"),
            ],
            missing=no(OMIT, BAD, "body.generate_chunk"),
            null=no(None, BAD, "body.generate_chunk"),
            beside={"stream": True},
        ),
        "stream_state": Field(
            lambda s: s.json["stream_state"]["output_token_ids"],
            [5],
            [ok({}, [5]), ok(STATE, [6, 5])],
            [
                *wrong("stream_state", 5),
                no({"output_token_ids": [1], "output_chunk_lens": [2]}, REFUSED, "stream_state",
                   "output_chunk_lens"),
                no({"output_token_ids": [1] * 64, "output_chunk_lens": [64]}, REFUSED,
                   "stream_state"),
            ],
            beside=STREAM,
        ),
    }  # fmt: skip


CHAT_TABLE = {
    **common("generate_response"),
    "generate_response": Field(
        text_of,
        None,
        [ok(REPLY, decoded(5, 6))],
        [
            *wrong("generate_response", 5),
            no({"choices": []}, REFUSED, "choices", "choices"),
            no({}, BAD, "body.generate_response.choices", "required"),
        ],
        **missing("body.generate_response"),
    ),
    "prompt_tokens": Field(
        usage("prompt_tokens"), 0, [ok(9, 9)], wrong("prompt_tokens", "x", [1])
    ),
    "prompt_token_ids": Field(
        lambda s: s.json["prompt_token_ids"] == [7, 8],
        False,
        [ok([7, 8], True)],
        [*wrong("prompt_token_ids", "x", 5), no([-1], BAD, "body.prompt_token_ids.0")],
        beside={"chat_request": {"messages": HI, "return_token_ids": True},
                "generate_response": {**REPLY, "prompt_token_ids": None}},
    ),
    "chat_request": Field(
        lambda s: s.json["choices"][0]["token_ids"],
        None,
        [ok({"messages": HI}, None), ok({"messages": HI, "return_token_ids": True}, [5, 6])],
        [
            no({"messages": 5}, BAD, "body.messages", "messages"),
            no("x", BAD, "body", "body"),
            no({"messages": HI, "temperature": 9}, REFUSED, "temperature", "temperature"),
        ],
    ),
}  # fmt: skip

COMPLETION_TABLE = {
    **common("generate_responses"),
    "generate_responses": Field(
        text_of,
        None,
        [ok([REPLY], decoded(5, 6))],
        [
            *wrong("generate_responses", 5, {}),
            no([5], BAD, "body.generate_responses.0"),
            no([], REFUSED, "generate_responses"),
            no([REPLY], REFUSED, "generate_responses",
               completion_request={"prompt": ["a", "b"]}),
        ],
        **missing("body.generate_responses"),
    ),
    "prompt_tokens": Field(
        usage("prompt_tokens"),
        0,
        [ok([9], 9)],
        [*wrong("prompt_tokens", "x"), no([1, 2], REFUSED, "prompt_tokens")],
    ),
    "prompt_token_ids": Field(
        reply("choices", 0, "prompt_token_ids"),
        [5],
        [ok([[7, 8]], [7, 8])],
        [
            *wrong("prompt_token_ids", "x", 5),
            no([[1], [2]], REFUSED, "prompt_token_ids"),
            no([1], REFUSED, "prompt_token_ids"),
        ],
        beside={"completion_request": {"prompt": [5], "return_token_ids": True}},
    ),
    "completion_request": Field(
        lambda s: s.json["choices"][0]["token_ids"],
        None,
        [ok({"prompt": "x"}, None), ok({"prompt": "x", "return_token_ids": True}, [5, 6])],
        [
            no({"prompt": 5}, BAD, "body.prompt", "prompt"),
            no({"prompt": "x", "temperature": 9}, REFUSED, "temperature", "temperature"),
        ],
    ),
}  # fmt: skip

GENERATED = {
    "choices": Field(
        text_of,
        None,
        [ok([CHOICE], decoded(5, 6))],
        [*wrong("generate_response.choices", 5), no([], REFUSED, "choices")],
        **missing("body.generate_response.choices"),
    ),
    "request_id": Field(
        reply("id"),
        "chatcmpl-",
        [ok("generate-tokens-abc", "chatcmpl-abc"), ok("chatcmpl-abc", "chatcmpl-abc")],
        wrong("generate_response.request_id", 5),
    ),
    "model": ignored("any", refused=wrong("generate_response.model", 5)),
    "created": Field(
        lambda s: s.json["created"] == 9, False, [ok(9, True)],
        wrong("generate_response.created", "x"),
    ),
    "usage": Field(
        usage("prompt_tokens"), 0, [ok({"prompt_tokens": 9}, 9), ok({}, 0)],
        wrong("generate_response.usage", "x", 5),
    ),
    "output_mode": Field(
        text_of,
        decoded(5, 6),
        [ok("tokens", decoded(5, 6))],
        [*wrong("generate_response.output_mode", 5), no("text", REFUSED, "output_mode")],
        null=no(None, BAD, "body.generate_response.output_mode"),
    ),
    "prompt_token_ids": Field(
        lambda s: s.json["prompt_token_ids"] == [7, 8],
        False,
        [ok([7, 8], True)],
        [*wrong("generate_response.prompt_token_ids", "x"),
         no([-1], BAD, "body.generate_response.prompt_token_ids.0")],
        beside={"_request": {"messages": HI, "return_token_ids": True}},
    ),
}  # fmt: skip


def of_reply(fields):
    fields = dict(fields)
    asked = fields.pop("_request", OMIT)
    return {"generate_response": {"choices": [CHOICE], **fields}, "chat_request": asked}


def of_choice(fields):
    return {"generate_response": {"choices": [{"index": 0, "token_ids": [5, 6], **fields}]}}


HERE = "generate_response.choices.0"
CHOICE_TABLE = {
    "index": Field(
        reply("choices", 0, "index"),
        None,
        [ok(0, 0)],
        wrong(f"{HERE}.index", -1, "x"),
        **missing(f"body.{HERE}.index"),
    ),
    "token_ids": Field(
        text_of,
        "",
        [ok([5], decoded(5)), ok([], "")],
        [*wrong(f"{HERE}.token_ids", "x"), no([-1], BAD, f"body.{HERE}.token_ids.0"),
         no([10**6], REFUSED, "prompt", str(10**6))],
    ),
    "finish_reason": Field(
        reply("choices", 0, "finish_reason"),
        None,
        [ok("stop", "stop"), ok("length", "length")],
        wrong(f"{HERE}.finish_reason", 5),
    ),
    "stop_reason": Field(
        reply("choices", 0, "stop_reason"),
        None,
        [ok(5, 5), ok("x", None)],  # a stop string is found anew, by the `stop` of the request
        wrong(f"{HERE}.stop_reason", [], {}),
        beside={"finish_reason": "stop"},
    ),
    "logprobs": Field(
        lambda s: s.json["choices"][0]["logprobs"] is None,
        True,
        [ok({"content": [{"token_id": 5, "logprob": -1}, {"token_id": 6, "logprob": -2}]}, False)],
        [*wrong(f"{HERE}.logprobs", 5),
         no({"content": [{"token_id": 5, "logprob": -1}]}, REFUSED, "logprobs")],
    ),
    "sampling_mask": ignored(
        [[5], None], refused=[*wrong(f"{HERE}.sampling_mask", 5),
                              no([[-1], None], BAD, f"body.{HERE}.sampling_mask.0.0")]
    ),
}  # fmt: skip

LOGPROBS = {
    "content": Field(
        lambda s: (s.json["choices"][0]["logprobs"] or {}).get("content") is None,
        True,
        [ok([{"token_id": 5, "logprob": -1}], False)],
        wrong(f"{HERE}.logprobs.content", 5),
    ),
}


def first(*path):
    return reply("choices", 0, "logprobs", "content", 0, *path)


def entry_table(place, look, own):
    """A position, or an entry of its top list."""
    return {
        "token_id": Field(
            look("token"), None, [ok(own, lambda s: s.tokenizer.decode([own], False))],
            wrong(f"{place}.token_id", -1, "x"), **missing(f"body.{place}.token_id"),
        ),
        "logprob": Field(
            look("logprob"), None, [ok(-1, -1.0), ok(-9999.0, -9999.0)],
            wrong(f"{place}.logprob", "x", []), **missing(f"body.{place}.logprob"),
        ),
        "rank": ignored(1, 7, refused=wrong(f"{place}.rank", "x", 1.5)),
    }  # fmt: skip


PLACE = f"{HERE}.logprobs.content.0"
DETAIL = {"_request": {"messages": HI, "logprobs_detail": True}}
POSITION = {
    **entry_table(PLACE, first, 5),
    "top_logprobs": Field(
        lambda s: len(first("top_logprobs")(s)),
        0,
        [ok([], 0), ok([{"token_id": 5, "logprob": -1}, {"token_id": 7, "logprob": -2}], 2)],
        wrong(f"{PLACE}.top_logprobs", "x"),
        null=no(None, BAD, f"body.{PLACE}.top_logprobs"),
    ),
    "raw_logprob": Field(
        first("raw_logprob"),
        MISSING,
        [ok(-3, -3.0)],
        wrong(f"{PLACE}.raw_logprob", "x"),
        beside={**DETAIL, "processed_logprob": -2, "rank": 3},
    ),
    "processed_logprob": Field(
        first("processed_logprob"),
        MISSING,
        [ok(-2, -2.0)],
        wrong(f"{PLACE}.processed_logprob", "x"),
        beside={**DETAIL, "raw_logprob": -3, "rank": 3},
    ),
}


def of_position(fields):
    fields = dict(fields)
    asked = fields.pop("_request", OMIT)
    position = {"token_id": 5, "logprob": -1, **fields}
    choice = {"index": 0, "token_ids": [5], "logprobs": {"content": [position]}}
    return {"generate_response": {"choices": [choice]}, "chat_request": asked}


TOP = f"{PLACE}.top_logprobs.1"
ENTRY = {
    **entry_table(TOP, lambda *path: first("top_logprobs", 1, *path), 8),
    "raw_logprob": ignored(-1, refused=wrong(f"{TOP}.raw_logprob", "x")),
    "processed_logprob": ignored(-1, refused=wrong(f"{TOP}.processed_logprob", "x")),
}


def of_state(fields):
    state = {"output_token_ids": [6], "output_chunk_lens": [1], "events": 2, **fields}
    return {"stream": True, "generate_chunk": CHUNK, "stream_state": state}


def state(name):
    return reply("stream_state", name)


STATE_TABLE = {
    "output_token_ids": Field(
        state("output_token_ids"),
        None,
        [ok([7], [7, 5])],
        [*wrong("stream_state.output_token_ids", "x"),
         no([-1], BAD, "body.stream_state.output_token_ids.0"),
         no([10**6], REFUSED, "prompt", str(10**6))],
        missing=no(OMIT, REFUSED, "stream_state"),
        null=no(None, BAD, "body.stream_state.output_token_ids"),
    ),
    "output_chunk_lens": Field(
        state("output_chunk_lens"),
        None,
        [ok([1], [1, 1]), ok([0, 1], [0, 1, 1])],
        [*wrong("stream_state.output_chunk_lens", "x"), no([2], REFUSED, "stream_state"),
         no([-1], BAD, "body.stream_state.output_chunk_lens.0")],
        missing=no(OMIT, REFUSED, "stream_state"),
        null=no(None, BAD, "body.stream_state.output_chunk_lens"),
    ),
    "events": Field(
        lambda s: s.json["chunk"]["choices"][0]["delta"].get("role"),
        "assistant",
        [ok(0, "assistant"), ok(2, None)],
        wrong("stream_state.events", -1, "x"),
        null=no(None, BAD, "body.stream_state.events"),
    ),
}  # fmt: skip

KINDS = [
    Kind("derender chat", CHAT, (DerenderChat,), CHAT_TABLE,
         lambda fields: {"generate_response": REPLY, **fields}, on="scale_out"),
    Kind("derender completion", COMPLETION, (DerenderCompletion,), COMPLETION_TABLE,
         lambda fields: {"generate_responses": [REPLY], **fields}, on="scale_out"),
    Kind("generated reply", CHAT, (Generated,), GENERATED, of_reply, on="scale_out"),
    Kind("generated choice", CHAT, (GeneratedChoice,), CHOICE_TABLE, of_choice, on="scale_out"),
    Kind("generated logprobs", CHAT, (GeneratedLogprobs,), LOGPROBS,
         lambda fields: {"generate_response": {"choices": [
             {"index": 0, "token_ids": [5], "logprobs": fields}]}}, on="scale_out"),
    Kind("generated position", CHAT, (GeneratedPosition,), POSITION, of_position, on="scale_out"),
    Kind("generated entry", CHAT, (GeneratedEntry,), ENTRY,
         lambda fields: of_position({"top_logprobs": [
             {"token_id": 5, "logprob": -1}, {"token_id": 7, "logprob": -2, **fields}]}),
         on="scale_out"),
    Kind("stream state", CHAT, (StreamState,), STATE_TABLE, of_state, on="scale_out"),
]  # fmt: skip
