"""Tokenize in both forms, and detokenize."""

from field_tables.chat import TEMPLATE_FIELDS
from field_tables.rows import BAD, OMIT, REFUSED, SAME, Field, Kind, ignored, no, ok, reply, wrong
from ortloom.server.openai.wire_chat import TemplateFields
from ortloom.server.openai.wire_tokenize import DetokenizeRequest, TokenizeRequest

PATH = "/tokenize"
HI = [{"role": "user", "content": "hi"}]
MODEL = Field(
    lambda s: s.response.status_code,
    200,
    [ok("tiny", 200), ok("other", 200), ok("", 200)],
    [*wrong("model", 5), no("nope", "NotFoundError", "model", "`nope`", status=404)],
)


def ids(text):
    return lambda s: s.tokenizer.encode(text)


def text(sight):
    """What was tokenised: a chat form asks nothing of the engine."""
    return sight.encoded[0][0]


TOKENS = reply("tokens")
SHARED = {
    "model": MODEL,
    "return_token_strs": Field(
        lambda s: None if s.json["token_strs"] is None else "".join(s.json["token_strs"]),
        None,
        [ok(False, None)],
        wrong("return_token_strs", "x", 5),
    ),
}

PROMPT_FORM = {
    **SHARED,
    "return_token_strs": SHARED["return_token_strs"].but(
        taken=[ok(True, "The\u0120sea"), ok(False, None)]
    ),
    "prompt": Field(
        TOKENS,
        None,
        [ok("The sea", ids("The sea")), ok("", [])],
        wrong("prompt", 5, ["x"]),
        missing=no(OMIT, BAD, "body.prompt", "required"),
        null=no(None, BAD, "body.prompt", "required"),
    ),
    "messages": Field(text, "The sea", [ok(HI, "<|im_start|>user\nhi<|im_end|>\n"
                                               "<|im_start|>assistant\n")],
                      wrong("messages", "x", 5)),
    "add_special_tokens": Field(
        lambda s: s.encoded[0][1],
        True,
        [ok(True, True), ok(False, False)],
        wrong("add_special_tokens", "x", 5),
    ),
}  # fmt: skip


def chat_field(field):
    """A template field as it is seen here: by the text that is tokenised."""

    class Prompt:
        """A sight whose prompt is that text."""

        def __init__(self, sight):
            self._sight = sight

        def __getattr__(self, name):
            return getattr(self._sight, name)

        @property
        def prompt(self):
            return text(self._sight)

        @property
        def everything(self):
            return self._sight.json

    return field.but(
        seen=lambda sight: field.seen(Prompt(sight)),
        taken=[row for row in field.taken if "tool_choice" not in row.beside],
        refused=[row for row in field.refused if row.value not in ([], ) and row.says
                 != "--tool-call-parser"],
    )  # fmt: skip


CHAT_FORM = {
    **SHARED,
    **{name: chat_field(field) for name, field in TEMPLATE_FIELDS.items()},
    "add_special_tokens": Field(
        lambda s: s.encoded[0][1],
        False,
        [ok(True, True), ok(False, False)],
        wrong("add_special_tokens", "x", 5),
    ),
    "prompt": ignored("The sea", refused=wrong("prompt", 5)).but(seen=TOKENS),
}
CHAT_FORM["messages"] = CHAT_FORM["messages"].but(
    missing=no(OMIT, BAD, "body.prompt", "required"), null=no(None, BAD, "body.prompt", "required")
)
CHAT_FORM["tools"] = CHAT_FORM["tools"].but(
    taken=[ok([{"function": {"name": "get_w"}}], False), *CHAT_FORM["tools"].taken, ok([], False)]
)

DETOKENIZE = {
    "model": MODEL,
    "tokens": Field(
        reply("prompt"),
        None,
        [ok([], ""), ok([5, 6], lambda s: s.tokenizer.decode([5, 6], False)),
         ok([2], "<|im_end|>")],
        [
            *wrong("tokens", "abc", 5),
            no([-1], BAD, "body.tokens.0", "tokens.0"),
            no(["x"], BAD, "body.tokens.0"),
            no([1.5], BAD, "body.tokens.0"),
            no([True], BAD, "body.tokens.0"),
            no([[1]], BAD, "body.tokens.0"),
            no([1 << 40], REFUSED, "prompt", str(1 << 40)),
        ],
        missing=no(OMIT, BAD, "body.tokens", "required"),
        null=no(None, BAD, "body.tokens"),
    ),
}  # fmt: skip

KINDS = [
    Kind("tokenize prompt", PATH, (TokenizeRequest,), PROMPT_FORM,
         lambda fields: {"prompt": "The sea", **fields}),
    Kind("tokenize chat", PATH, (TokenizeRequest, TemplateFields), CHAT_FORM,
         lambda fields: {"messages": HI, **fields}),
    Kind("detokenize", "/detokenize", (DetokenizeRequest,), DETOKENIZE,
         lambda fields: {"tokens": [5], **fields}),
]  # fmt: skip

__all__ = ["KINDS", "SAME"]
