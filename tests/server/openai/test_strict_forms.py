"""The forms of strict calls, compiled by the real grammar engine over single-byte tokens."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ortloom.models.tool_parsers.registry import tool_parser
from ortloom.models.tool_parsers.tool_parser import ToolSpec
from ortloom.runtime.structured_output import GrammarCompiler
from ortloom.server.call_forms import CALL_FORMS
from ortloom.server.openai.output_parts import OutputPlan
from ortloom.server.openai.strict_calls import strict_calls
from ortloom.server.output_parsers import OutputParsers

CITY = ToolSpec(
    "get_w",
    {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]},
)
TOOLS = (CITY, ToolSpec("noop"))


@pytest.fixture(scope="module")
def accepts(tmp_path_factory):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    path = Path(tmp_path_factory.mktemp("strict")) / "tokenizer.json"
    backend.save(str(path))
    compiler = GrammarCompiler(path, 257, [256])

    def check(constraint, text):
        """Whether a constraint takes a whole text."""
        state = compiler.start(constraint, ())
        state.advance(backend.encode(text, add_special_tokens=False).ids)
        return state.error is None and bool(state.bitmask()[256 // 32] & 1)

    return check


@pytest.mark.parametrize("name", sorted(CALL_FORMS))
@pytest.mark.parametrize("level", ["function", "parameter"])
def test_text_is_free_and_calls_are_not(accepts, name, level):
    form, parser = CALL_FORMS[name], tool_parser(name)
    parsers = OutputParsers(tool=parser, auto=True, form=form, strict=level)
    plan = OutputPlan(mode="auto", tools=TOOLS, tool_parser=parser)
    constraint = strict_calls(plan, parsers)

    def call(tool, arguments):
        return form.begin(tool) + arguments + form.after

    good = call("get_w", '{"city": "Oslo"}')
    assert accepts(constraint, "plain text")
    assert accepts(constraint, "Sure. " + good + good)
    assert not accepts(constraint, call("other", "{}"))
    assert not accepts(constraint, form.begin("get_w"))
    assert accepts(constraint, call("get_w", '{"city": "Rome"}')) is (level == "function")
    (parsed,) = plan.whole(good).calls
    assert (parsed.name, json.loads(parsed.arguments)) == ("get_w", {"city": "Oslo"})


def test_one_call_at_most_without_parallel_calls(accepts):
    parser = tool_parser("hermes")
    form = CALL_FORMS["hermes"]
    parsers = OutputParsers(tool=parser, auto=True, form=form, strict="parameter")
    plan = OutputPlan(mode="auto", tools=TOOLS, tool_parser=parser, parallel=False)
    good = form.begin("noop") + "{}" + form.after
    assert accepts(strict_calls(plan, parsers), good)
    assert not accepts(strict_calls(plan, parsers), good + good)
