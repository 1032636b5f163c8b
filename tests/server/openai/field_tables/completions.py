"""Completions."""

from field_tables.generation import LOGPROBS, shared
from field_tables.rows import BAD, REFUSED, SAME, Field, Kind, everything, ignored, no, ok, wrong
from ortloom.server.openai.wire_completion import CompletionRequest

PATH = "/v1/completions"


def texts(sight):
    return sight.prompts


PROMPT = Field(
    texts,
    None,
    [
        ok("The sea", ["The sea"]),
        ok(["The", "sea"], ["The", "sea"]),
        ok([5], lambda s: [s.tokenizer.decode([5], False)]),
        ok([[5], [6, 7]], lambda s: [s.tokenizer.decode(i, False) for i in ([5], [6, 7])]),
    ],
    [
        no("", REFUSED, "prompt"),
        no([""], REFUSED, "prompt"),
        no([], REFUSED, None),
        no([[]], REFUSED, None),
        *wrong("prompt", {}, 5, True),
        no([-1], BAD, "body.prompt.0"),
        no([1, "x"], BAD, "body.prompt.1"),
        no(["x", 1], BAD, "body.prompt.1"),
        no([1.5], BAD, "body.prompt.0"),
        no([True], BAD, "body.prompt.0"),
        no([[1], [2, 1.5]], BAD, "body.prompt.1.1"),
        no([[1], "x"], BAD, "body.prompt.1"),
        no([1, 2, 999999999], REFUSED, "prompt", "999999999"),
        no([1 << 40], REFUSED, "prompt", str(1 << 40)),
        no([[1], [2, 999999999]], REFUSED, "prompt", "999999999"),
        no(["a"] * 1025, REFUSED, None),
        no(["a"] * 6000, REFUSED, None, n=3),
        no([5] * 64, REFUSED, "input_tokens", "64"),
        no("sea " * 200_000, REFUSED, "input_tokens", "64"),
    ],
    null=no(None, REFUSED, "prompt"),
    missing=no(None, REFUSED, "prompt"),
)

TABLE = {
    **shared(False),
    "prompt": PROMPT,
    "prompt_embeds": ignored(refused=[no("AAAA", REFUSED, "prompt_embeds")]),
    "suffix": ignored("", refused=[*wrong("suffix", 5), no("y", REFUSED, "suffix")]),
    "logprobs": LOGPROBS,
    "echo": Field(
        lambda s: s.json["choices"][0]["text"].startswith("The sea"),
        False,
        [ok(True, True), ok(False, False), ok(True, True, max_tokens=0)],
        wrong("echo", "x", 5),
    ),
}

KINDS = [
    Kind("completions", PATH, (CompletionRequest,), TABLE,
         lambda fields: {"prompt": "The sea", "max_tokens": 4, **fields}),
]  # fmt: skip

__all__ = ["KINDS", "SAME", "everything"]
