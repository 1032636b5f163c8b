"""Forced calls with every parser name: whatever a model writes under the grammar is a valid call.

The model is a walk over single-byte tokens that takes any allowed one, so that values hold pieces
of markers, quotes and brackets.
"""

import json
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from parser_doubles import OwnIdCalls
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ortloom.config import Config, FrontConfig, ModelConfig, StructuredOutputsConfig
from ortloom.models.tool_parsers.registry import tool_parser, tool_parser_names
from ortloom.models.tool_parsers.tool_parser import ArgumentsDelta, CallStart, ToolSpec
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.structured_output import GrammarCompiler
from ortloom.server.openai.output_plan import output_plan, planned_params
from ortloom.server.openai.tool_choice import ToolUse
from ortloom.server.output_parsers import OutputParsers, load_parsers
from ortloom.server.own_syntax import OWN_SYNTAX

EVERYTHING = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "free"},
        "kind": {"type": "string", "enum": ["a", "b c"]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{2}$"},
        "short": {"type": "string", "minLength": 2, "maxLength": 4},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "flag": {"type": "boolean"},
        "level": {"enum": [1, 2, None]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "place": {"$ref": "#/$defs/place"},
    },
    "required": ["text", "kind", "count", "tags", "place"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "n": {"type": "number"}},
            "required": ["city"],
        }
    },
}
ALL_OPTIONAL = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "x": {"const": "y"}},
}
TOOLS = (ToolSpec("do_it", EVERYTHING), ToolSpec("get-w", ALL_OPTIONAL), ToolSpec("noop"))
UNSAYABLE = ToolSpec(
    "hard",
    {
        "type": "object",
        "properties": {"when": {"type": "string", "format": "date"}, "of.a": {"type": "integer"}},
        "required": ["when"],
    },
)
SPECIALS = {
    "gemma4": ["<|tool_call>", "<tool_call|>", '<|"|>'],
    "inkling": ["<|message_model|>", "<|content_invoke_tool_json|>", "<|end_message|>"],
    "kimi_k3": ["<|open|>", "<|close|>", "<|sep|>"],
    "mistral": ["[TOOL_CALLS]", "[ARGS]"],
    "openai": ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|end|>"],
}


KINDS = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def fits(value, schema, root):
    """Whether a value is one of a schema, for the keywords that stand above."""
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return any(fits(value, branch, root) for branch in schema["anyOf"])
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    if "const" in schema:
        return value == schema["const"]
    kind = schema["type"]
    if not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    if kind == "string":
        size = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1e9)
        return size and re.search(schema.get("pattern", ""), value) is not None
    if kind == "integer":
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if kind == "array":
        size = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1e9)
        return size and all(fits(item, schema["items"], root) for item in value)
    if kind == "object":
        known = schema.get("properties", {})
        named = set(schema.get("required", ())) <= value.keys() <= known.keys()
        return named and all(fits(inner, known[key], root) for key, inner in value.items())
    return True


class Vocabulary:
    """Bytes, maybe markers, and an end token, with a compiler over them."""

    def __init__(self, folder, specials=()):
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([*specials, "<end>"])
        path = Path(folder) / "tokenizer.json"
        backend.save(str(path))
        self.size = backend.get_vocab_size()
        self.backend = backend
        self.end = self.size - 1
        self.compiler = GrammarCompiler(path, self.size, [self.end])
        self.ascii = [
            backend.encode(chr(c), add_special_tokens=False).ids[0] for c in range(32, 127)
        ]

    def walk(self, constraint, seed, closers):
        """A text that a constraint allows: free text of a few characters, then what may end it."""
        rng = random.Random(seed)
        state = self.compiler.start(constraint, ())
        ids, wanted, free = [], [], 0
        for _ in range(4000):
            state.advance(ids)
            bits = state.bitmask()
            assert state.error is None
            if bits[self.end // 32] >> (self.end % 32) & 1 and rng.random() < 0.7:
                return self.backend.decode(ids, skip_special_tokens=False)
            allowed = [i for i in range(self.size) if bits[i // 32] >> (i % 32) & 1]
            if self.end in allowed and len(allowed) > 1:
                allowed.remove(self.end)
            if len(allowed) > 90:
                free += 1
                allowed = [i for i in self.ascii if i in allowed]
                if free > 3 and not wanted:
                    closer = rng.choice(closers)
                    wanted = self.backend.encode(closer, add_special_tokens=False).ids
            else:
                free = 0
            if (
                wanted
                and wanted[0] in range(self.size)
                and bits[wanted[0] // 32] >> (wanted[0] % 32) & 1
            ):
                ids.append(wanted.pop(0))
                continue
            wanted = []
            ids.append(rng.choice(allowed))
        raise AssertionError(self.backend.decode(ids, skip_special_tokens=False)[:3000])


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    made = {}

    def get(specials=()):
        key = tuple(specials)
        if key not in made:
            made[key] = Vocabulary(tmp_path_factory.mktemp("bytes"), key)
        return made[key]

    return get


def front_of(name, backend="auto", parsers=None):
    config = Config(
        model=ModelConfig(bundle="x"),
        front=FrontConfig(tool_call_parser=name),
        structured_outputs=StructuredOutputsConfig(backend=backend),
    )
    parsers = parsers or load_parsers(config.front, None, None)
    metrics = SimpleNamespace(tool_parser_call=lambda **_: None)
    return SimpleNamespace(config=config, parsers=parsers, metrics=metrics)


def planned(front, use, **fields):
    plan = output_plan(use, front, "chat", **fields)
    return plan, planned_params(SamplingParams(), plan, front).structured_output


def closers_of(name):
    syntax = OWN_SYNTAX.get(name)
    markers = [] if syntax is None else [syntax.quotes + syntax.value_end, *(syntax.thought or ())]
    return ['"', '"', *(m for m in markers if m)]


def check(plan, text, tools, least=1):
    """A whole text and the same in pieces are calls that fit their schemas."""
    calls = plan.whole(text).calls
    assert len(calls) >= least, text
    known = {tool.name: tool.parameters for tool in tools}
    for call in calls:
        arguments, schema = json.loads(call.arguments), known[call.name]
        assert fits(arguments, schema, schema) if schema else arguments == {}, text
    parts = plan.follow()
    events = [event for at in range(0, len(text), 3) for event in parts.push(text[at : at + 3])]
    events += parts.finish()
    names = [event.name for event in events if isinstance(event, CallStart)]
    assert names == [call.name for call in calls], text
    for index, call in enumerate(calls):
        pieces = [e.fragment for e in events if isinstance(e, ArgumentsDelta) and e.index == index]
        assert json.loads("".join(pieces)) == json.loads(call.arguments)
    return calls


@pytest.mark.parametrize("name", tool_parser_names())
@pytest.mark.parametrize("mode", ["required", "named"])
def test_every_parser_name_gets_valid_calls(vocabulary, name, mode):
    front = front_of(name)
    bytes_only = vocabulary()
    own = name in OWN_SYNTAX
    for seed, tool in enumerate(TOOLS if own else TOOLS[1:2]):
        use = ToolUse(mode, TOOLS, named=tool.name if mode == "named" else None)
        plan, constraint = planned(front, use)
        assert (plan.tool_parser is not None) is own is not tool_parser(name).grammar_calls
        text = bytes_only.walk(constraint, seed, closers_of(name))
        calls = check(plan, text, TOOLS)
        if mode == "named":
            assert [call.name for call in calls] == [tool.name]
        _, one = planned(front, use, parallel=False)
        text = bytes_only.walk(one, 10 + seed, closers_of(name))
        assert len(check(plan, text, TOOLS)) == 1


@pytest.mark.parametrize("name", sorted(SPECIALS))
def test_markers_that_are_special_tokens(vocabulary, name):
    tokens = vocabulary(SPECIALS[name])
    plan, constraint = planned(front_of(name), ToolUse("required", TOOLS))
    for seed in range(4):
        text = tokens.walk(constraint, seed, closers_of(name))
        assert any(special in text for special in SPECIALS[name])
        check(plan, text, TOOLS)


@pytest.mark.parametrize("name", sorted(OWN_SYNTAX))
def test_what_a_syntax_has_no_words_for_is_forced_as_json(vocabulary, name):
    plan, constraint = planned(front_of(name), ToolUse("required", (UNSAYABLE,)))
    own = OWN_SYNTAX[name].member is None
    assert (constraint.kind, plan.tool_parser is None) == (
        ("structural_tag", False) if own else ("json", True)
    )
    check(plan, vocabulary().walk(constraint, 1, closers_of(name)), (UNSAYABLE,))


@pytest.mark.parametrize("backend", ["outlines", "lm-format-enforcer"])
def test_engines_without_structural_tags_force_json(backend):
    plan, constraint = planned(front_of("glm45", backend), ToolUse("required", TOOLS))
    assert (constraint.kind, plan.tool_parser) == ("json", None)


def test_a_plugin_that_keeps_its_syntax_is_not_forced():
    front = front_of("none", parsers=OutputParsers(tool=OwnIdCalls, auto=True))
    plan, constraint = planned(front, ToolUse("required", TOOLS))
    assert (plan.tool_parser, constraint) == (OwnIdCalls, None)


@pytest.mark.parametrize("name", [n for n in sorted(OWN_SYNTAX) if OWN_SYNTAX[n].thought])
def test_a_thought_may_come_before_the_call_where_reasoning_is_parsed(vocabulary, name):
    syntax = OWN_SYNTAX[name]
    start, end = syntax.thought
    reasoning = {"openai": "openai_gptoss"}.get(name, name)
    config = FrontConfig(tool_call_parser=name, reasoning_parser=reasoning)
    use = ToolUse("named", TOOLS, named="noop")
    tokens = vocabulary()
    call = syntax.head.replace("NAME", "noop") + "{}" * (syntax.member is None) + syntax.tail
    for parsers, allowed in [(load_parsers(config, None, None), True), (None, False)]:
        plan, constraint = planned(front_of(name, parsers=parsers), use)
        state = tokens.compiler.start(constraint, ())
        text = f"{start}Let me see.{end}{syntax.resume}{call}"
        state.advance(tokens.backend.encode(text, add_special_tokens=False).ids)
        assert (state.error is None) is allowed
        if allowed:
            whole = plan.whole(text)
            assert (whole.reasoning, [c.name for c in whole.calls]) == ("Let me see.", ["noop"])
