"""Structural tags of both forms, followed byte by byte with a real tokenizer."""

import json

import pytest

from ortloom.errors import InvalidRequest
from ortloom.runtime.grammars.structural_tag import parse_structural_tag
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.runtime.structured_output import GrammarCompiler, GrammarState

VOCAB, EOS = 264, 0
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
DIGITS = {"type": "regex", "pattern": "[0-9]+"}


@pytest.fixture(scope="module")
def compiler(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("tok") / "tokenizer.json"
    tokenizer.save(str(path))
    return GrammarCompiler(path, VOCAB, [EOS])


def fits(compiler, tokenizer, value, text):
    """`end` if the text may end there, `part` if it may go on only, `no` if it does not fit.
    `<end>` in the text is the special token."""
    constraint = StructuredOutput("structural_tag", json.dumps(value))
    matcher = compiler.compile(constraint)
    for token in tokenizer.encode(text).ids:
        if not matcher.consume_token(token):
            return "no"
    return "end" if matcher.is_accepting() else "part"


def tag(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def newer(**fields):
    return {"type": "structural_tag", "format": fields}


OLDER = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "boolean"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
TRIGGERED = newer(type="triggered_tags", triggers=["<f="], tags=[tag("<f=a>", NUMBER, "</f>")])
AT_LEAST = newer(**{**TRIGGERED["format"], "at_least_one": True})
FIRST = newer(**{**TRIGGERED["format"], "stop_after_first": True})
ONE = newer(**{**TRIGGERED["format"], "stop_after_first": True, "at_least_one": True})
SEPARATED = newer(
    type="tags_with_separator",
    separator=",",
    tags=[tag("(", DIGITS, ")"), tag("[", DIGITS, "]")],
)
THINK = newer(
    type="sequence",
    elements=[tag("<t>", {"type": "any_text"}, ["</t>", "</u>"]), DIGITS],
)


@pytest.mark.parametrize(
    ("value", "text", "result"),
    [
        (OLDER, "free text", "end"),
        (OLDER, "x <f=a>12</f> y <f=b>true</f>", "end"),
        (OLDER, "x <f=a>true", "no"),
        (OLDER, "x <f=c", "no"),
        (OLDER, "x <f=b>", "part"),
        (TRIGGERED, "free", "end"),
        (TRIGGERED, "a<f=a>1</f>b", "end"),
        (AT_LEAST, "a", "no"),
        (AT_LEAST, "<f=a>1</f>b<f=a>2</f>", "end"),
        (FIRST, "b<f=a>1</f>", "end"),
        (FIRST, "b<f=a>1</f>c", "no"),
        (FIRST, "b", "end"),
        (ONE, "<f=a>1</f>", "end"),
        (ONE, "<f=a>1</f><", "no"),
        (SEPARATED, "", "end"),
        (SEPARATED, "(1),[22]", "end"),
        (SEPARATED, "(1),", "part"),
        (SEPARATED, "(1)[", "no"),
        (THINK, "<t>some < text</t>12", "end"),
        (THINK, "<t>some</u>", "part"),
        (THINK, "<t>some</t>x", "no"),
        (newer(type="const_string", value='a"b\\'), 'a"b\\', "end"),
        (newer(type="const_string", value="a<end>b"), "a<end>b", "end"),
        (newer(type="token", token="<end>"), "<end>", "end"),
        (newer(type="token", token=EOS), "<end>", "end"),
        (newer(type="or", elements=[DIGITS, {"type": "const_string", "value": "x"}]), "x", "end"),
        (newer(type="optional", content=DIGITS), "", "end"),
        (newer(type="plus", content={"type": "const_string", "value": "ab"}), "abab", "end"),
        (newer(type="plus", content={"type": "const_string", "value": "ab"}), "", "part"),
        (newer(type="star", content={"type": "const_string", "value": "ab"}), "", "end"),
        (newer(type="repeat", min=2, max=3, content={"type": "const_string", "value": "a"}),
         "aaaa", "no"),
        (newer(type="repeat", min=2, max=-1, content={"type": "const_string", "value": "a"}),
         "aaaa", "end"),
        (newer(type="any_text", excludes=["bad", "/"]), "good text", "end"),
        (newer(type="any_text", excludes=["bad", "/"]), "a bad", "no"),
        (newer(type="grammar", grammar='root ::= "a" root "b" | "12"'), "aa12bb", "end"),
        (newer(type="regex", pattern="a/b[/]"), "a/b/", "end"),
        (newer(**tag("<end>", {"type": "any_text"}, "<end>")), "<end>hello<end>", "end"),
    ],
)  # fmt: skip
def test_what_fits(compiler, tokenizer, value, text, result):
    assert fits(compiler, tokenizer, value, text) == result


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"type": "structural_tag"},
        {"structures": [], "triggers": ["<"]},
        {"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["["]},
        {"structures": [{"begin": "<a>", "schema": {"type": "frob"}, "end": ""}],
         "triggers": ["<"]},
        newer(type="frob"),
        newer(type="json_schema", json_schema={"type": "integer"}, style="qwen_xml"),
        newer(type="sequence", elements=[]),
        newer(type="repeat", min=3, max=2, content=DIGITS),
        newer(type="token", token="ab"),
        newer(type="regex", pattern="("),
        newer(type="tags_with_separator", separator=",", tags=[]),
        newer(type="or", elements=[newer(type="any_text")]),
    ],
    ids=range(14),
)  # fmt: skip
def test_refused_with_a_reason(compiler, value):
    with pytest.raises(InvalidRequest) as raised:
        compiler.compile(StructuredOutput("structural_tag", json.dumps(value)))
    assert raised.value.param == "structured_outputs"


def test_text_that_is_no_json_is_refused():
    with pytest.raises(InvalidRequest, match="structural tag"):
        parse_structural_tag("<a>")


def test_whitespace_option_reaches_the_schemas_inside(compiler, tokenizer):
    value = newer(**tag("<", {"type": "json_schema", "json_schema": {"type": "array"}}, ">"))
    for compact, result in ((False, "part"), (True, "no")):
        constraint = StructuredOutput(
            "structural_tag", json.dumps(value), disable_any_whitespace=compact
        )
        state = compiler.start(constraint, [])
        assert isinstance(state, GrammarState)
        state.advance(tokenizer.encode("<[ ").ids)
        assert ("no" if state.error else "part") == result
