"""Grammars with a real tokenizer: masks, the end, refusals and their speed."""

import json
import re
import threading
import time

import numpy as np
import pytest

from ortloom.errors import InvalidRequest
from ortloom.runtime import structured_output
from ortloom.runtime.request import Request
from ortloom.runtime.sampler import Sampler
from ortloom.runtime.sampling_params import SamplingParams, StructuredOutput
from ortloom.runtime.structured_output import FREE_SECONDS, GrammarCompiler, GrammarState

VOCAB, EOS = 264, 0


@pytest.fixture(scope="module")
def compiler(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("tok") / "tokenizer.json"
    tokenizer.save(str(path))
    return GrammarCompiler(path, VOCAB, [EOS])


def run(compiler, tokenizer, kind, value, limit=60, seed=0, rows=None, **params):
    """Sample to the end token from random logits; returns the text and the tokens."""
    sampler = Sampler(VOCAB, "raw_logprobs", compiler)
    constraint = StructuredOutput(kind, value, disable_any_whitespace=True)
    made = SamplingParams(structured_output=constraint, eos_token_ids=[EOS], seed=seed, **params)
    request = Request(f"{kind}{seed}", [1], made, 1000, seed=seed)
    rng = np.random.default_rng(seed)
    while request.num_output_tokens < limit:
        row = rng.normal(size=(1, VOCAB)).astype(np.float32) if rows is None else rows.copy()
        result = sampler.sample(row, [request])[0]
        assert result.error is None
        request.token_ids.append(result.token_id)
        if result.token_id == EOS:
            break
    output = request.output_token_ids
    return tokenizer.decode(output, skip_special_tokens=True), output


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("kind", "value", "good"),
    [
        ("regex", "[ab]{3}-(true|12)", lambda t: re.fullmatch("[ab]{3}-(true|12)", t)),
        ("choice", '["yes","no","a👍🏽b é\\"\\\\"]', lambda t: t in ("yes", "no", 'a👍🏽b é"\\')),
        (
            "json",
            '{"type":"object","properties":{"x":{"type":"boolean"},"n":{"enum":[1,12]}},'
            '"required":["x","n"],"additionalProperties":false}',
            lambda t: set(json.loads(t)) == {"x", "n"},
        ),
        ("grammar", 'root ::= "a" root "b" | "12"', lambda t: re.fullmatch("a*12b*", t)),
        ("grammar", 'start: "true" | "ab"+', lambda t: re.fullmatch("true|(ab)+", t)),
    ],
)
def test_output_fits_the_constraint(compiler, tokenizer, kind, value, good, seed):
    text, tokens = run(compiler, tokenizer, kind, value, seed=seed)
    if tokens[-1] == EOS:
        assert good(text), text
    else:
        assert kind == "grammar"  # a recursive one need not end within the limit


def test_json_object_is_an_object(compiler, tokenizer):
    rows = np.zeros((1, VOCAB), np.float32)
    for char in '{}":ab':  # make short objects likely
        rows[0, tokenizer.token_to_id(char)] = 6
    texts = [
        run(compiler, tokenizer, "json_object", "", limit=200, seed=seed, rows=rows)
        for seed in range(3)
    ]
    ended = [text for text, tokens in texts if tokens[-1] == EOS]
    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)


def test_only_the_end_token_follows_a_complete_grammar(compiler, tokenizer):
    text, tokens = run(compiler, tokenizer, "choice", '["ab"]', limit=9, min_tokens=8)
    assert text == "ab"
    assert tokens[-1] == EOS  # min_tokens yields: nothing else is allowed


def test_the_requests_own_end_tokens_are_allowed_at_the_end_only(compiler, tokenizer):
    sampler = Sampler(VOCAB, "raw_logprobs", compiler)
    own_end = tokenizer.token_to_id("z")
    params = SamplingParams(
        structured_output=StructuredOutput("regex", "a+"),
        eos_token_ids=[EOS],
        secondary_eos_token_ids=[own_end],
        temperature=0.0,
    )
    request = Request("own", [1], params, 100)
    row = np.zeros((1, VOCAB), np.float32)
    row[0, own_end] = 5
    first = sampler.sample(row.copy(), [request])[0].token_id
    assert first == tokenizer.token_to_id("a")
    request.token_ids.append(first)
    assert sampler.sample(row.copy(), [request])[0].token_id == own_end
    request.token_ids.append(own_end)  # as with ignore_eos: the request goes on, at its end
    assert sampler.sample(row.copy(), [request])[0].token_id == own_end


def test_state_follows_the_output_after_being_forgotten(compiler, tokenizer):
    """A preempted request may lose its state; its output tokens rebuild it."""
    constraint = StructuredOutput("regex", "abtrue")
    params = SamplingParams(structured_output=constraint, eos_token_ids=[EOS], temperature=0.0)
    request = Request("p", [1], params, 100)
    sampler = Sampler(VOCAB, "raw_logprobs", compiler)
    row = np.zeros((1, VOCAB), np.float32)
    while request.token_ids[-1] != EOS:
        request.token_ids.append(sampler.sample(row.copy(), [request])[0].token_id)
        sampler.remove("p")
    assert tokenizer.decode(request.output_token_ids) == "abtrue"


def test_a_token_that_does_not_fit_fails_the_row_alone(compiler, tokenizer):
    constraint = StructuredOutput("regex", "a+")
    params = SamplingParams(structured_output=constraint, eos_token_ids=[EOS])
    broken = Request("broken", [1], params, 100)
    broken.token_ids.append(tokenizer.token_to_id("z"))
    fine = Request("fine", [1], SamplingParams(temperature=0.0), 100)
    rows = np.zeros((2, VOCAB), np.float32)
    results = Sampler(VOCAB, "raw_logprobs", compiler).sample(rows, [broken, fine])
    assert "grammar" in results[0].error
    assert results[0].token_id is None
    assert results[1].token_id == 0


def test_raw_logprobs_see_the_grammar_mask(compiler, tokenizer):
    constraint = StructuredOutput("choice", '["a","b"]')
    params = SamplingParams(
        structured_output=constraint, eos_token_ids=[EOS], temperature=0.0, logprobs=3
    )
    row = np.zeros((1, VOCAB), np.float32)
    entry = (
        Sampler(VOCAB, "raw_logprobs", compiler)
        .sample(row, [Request("m", [1], params, 9)])[0]
        .logprobs
    )
    assert entry.logprobs[1:3] == pytest.approx([np.log(0.5)] * 2)
    assert entry.logprobs[3] == -9999.0


REFUSED = [
    ("regex", ""),
    ("regex", "("),
    ("regex", "(?=a)b"),
    ("regex", r"[^\s\S]"),
    ("regex", "(" * 5000 + ")" * 5000),
    ("json", "{"),
    ("json", "[]"),
    ("json", "3"),
    ("json", '{"type":"frob"}'),
    ("json", '{"type":"string","minLength":5,"maxLength":2}'),
    ("json", '{"$ref":"#"}'),
    ("json", '{"$ref":"http://x.invalid/y"}'),
    ("json", '{"allOf":[{"type":"string"},{"type":"integer"}]}'),
    ("json", '{"not":{}}'),
    ("json", "[" * 100_000),
    ("json", '{"items":' * 5000 + "{}" + "}" * 5000),
    ("choice", "[]"),
    ("choice", "[1]"),
    ("choice", '"a"'),
    ("choice", json.dumps(["x"] * 5000)),
    ("grammar", ""),
    ("grammar", "start: nowhere"),
    ("grammar", "start: start"),
    ("grammar", "?"),
    ("regex", "a" * 200_000),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=range(len(REFUSED)))
def test_refused_with_a_reason(compiler, kind, value):
    began = time.monotonic()
    with pytest.raises(InvalidRequest) as raised:
        compiler.compile(StructuredOutput(kind, value))
    assert raised.value.param == "structured_outputs"
    assert len(str(raised.value)) < 600
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("regex", "(a{1000}){1000}"),
        ("regex", "((((a|b){1,100}){1,100}){1,100})"),
        ("regex", "(.*a){25}.{40}"),
        ("json", json.dumps({"type": "string", "maxLength": 10**6})),
        ("json", json.dumps({"anyOf": [{"const": f"k{i}"} for i in range(3000)]})),
    ],
)
def test_hard_ones_do_not_hold_up_the_engine(compiler, kind, value):
    """Processor time that only an explosion of states passes; it is no measure of speed."""
    began = time.thread_time()
    try:
        state = compiler.start(StructuredOutput(kind, value), [EOS])
        state.mask(np.zeros(VOCAB, np.float32))
    except InvalidRequest:
        pass
    assert time.thread_time() - began < 10.0


def test_without_a_tokenizer_constraints_are_refused():
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        GrammarCompiler(None, VOCAB, [EOS]).compile(StructuredOutput("regex", "a"))


def test_compiling_beside_the_engine(compiler):
    """Requests are checked on another thread while the engine's own thread samples."""
    errors: list[Exception] = []

    def check(start: int) -> None:
        try:
            for i in range(60):
                compiler.compile(StructuredOutput("regex", f"a{{{start + i % 40}}}b"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=check, args=(start,)) for start in (1, 20)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        state = compiler.start(StructuredOutput("regex", "[ab]+"), [EOS])
        state.mask(np.zeros(VOCAB, np.float32))
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("choice", json.dumps([f"v{i}" for i in range(4096)])),
        ("json", json.dumps({"properties": {f"p{i}": {"type": "null"} for i in range(2000)}})),
    ],
    ids=["choices", "properties"],
)
def test_wide_constraints_can_be_followed(compiler, tokenizer, kind, value):
    run(compiler, tokenizer, kind, value, limit=8)


def test_a_constraint_that_breaks_off_is_the_clients_error(compiler):
    states = "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(40))
    grammar = StructuredOutput("grammar", f'{states}\nr40: "x"\nstart: "ab" r0')
    made = SamplingParams(structured_output=grammar, eos_token_ids=[EOS])
    request = Request("r", [1], made, 100)
    sampler = Sampler(VOCAB, "raw_logprobs", compiler)
    result = sampler.sample(np.zeros((1, VOCAB), np.float32), [request])[0]
    while result.error is None:
        request.token_ids.append(result.token_id)
        assert request.num_output_tokens < 90
        result = sampler.sample(np.zeros((1, VOCAB), np.float32), [request])[0]
    assert result.error_param == "structured_outputs"


def test_a_constraint_may_not_hold_the_others_up_for_long(compiler):
    now = [0.0]

    def clock():
        now[0] += FREE_SECONDS / 4
        return now[0]

    matcher = compiler.compile(StructuredOutput("regex", "a*"))
    state = GrammarState(matcher, [EOS], VOCAB, clock)
    row = np.zeros(VOCAB, np.float32)
    state.mask(row)
    assert state.error is None
    for _ in range(8):
        state.mask(row)
    assert "expensive" in state.error


class PanicException(BaseException):
    """Named as the one of the grammar engine, which cannot be imported."""


class Panicking:
    def is_accepting(self):
        return False

    def consume_token(self, token):
        raise PanicException

    def is_stopped(self):
        raise PanicException


def test_a_panic_of_the_grammar_engine_ends_one_request_only():
    for use in (lambda s: s.advance([5]), lambda s: s.mask(np.zeros(VOCAB, np.float32))):
        state = GrammarState(Panicking(), [EOS], VOCAB)
        use(state)
        assert state.error is not None


def test_a_grammar_that_no_longer_compiles_fails_its_row_only():
    bad = SamplingParams(structured_output=StructuredOutput("regex", "a"))
    requests = [Request("bad", [1], bad, 100), Request("good", [1], SamplingParams(), 100)]
    sampler = Sampler(VOCAB, "raw_logprobs", GrammarCompiler(None, VOCAB, [EOS]))
    results = sampler.sample(np.zeros((2, VOCAB), np.float32), requests)
    assert results[0].error_param == "structured_outputs"
    assert results[1].token_id is not None


class CountingTrial:
    """Stands where the process is that tries constraints out."""

    def __init__(self):
        self.checked = []

    def start(self):
        pass

    def check(self, constraint):
        time.sleep(0.05)
        self.checked.append(constraint.value)

    def close(self):
        pass


@pytest.fixture
def counted(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    trial = CountingTrial()
    return GrammarCompiler(path, VOCAB, [EOS], trial), trial


def test_equal_constraints_are_compiled_once_also_at_the_same_time(counted):
    compiler, trial = counted
    threads = [
        threading.Thread(target=compiler.validate, args=(StructuredOutput("regex", f"{c}+"),))
        for c in "aaaabb"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(trial.checked) == ["a+", "b+"]
    compiler.validate(StructuredOutput("regex", "a" + "+"))
    assert len(trial.checked) == 2
    compiler.validate(StructuredOutput("regex", "a+", disable_any_whitespace=True))
    assert len(trial.checked) == 3


def test_the_constraints_used_longest_ago_are_forgotten(counted, monkeypatch):
    monkeypatch.setattr(structured_output, "CACHED_GRAMMARS", 3)
    compiler, trial = counted
    for letter in "abcadab":
        compiler.validate(StructuredOutput("regex", letter))
    assert trial.checked == ["a", "b", "c", "d", "b"]


def test_requests_with_one_constraint_each_follow_their_own_copy(counted, tokenizer):
    compiler, _ = counted
    constraint = StructuredOutput("regex", "(ab|ba){8}")
    first, second = (compiler.start(constraint, ()) for _ in "12")
    ids = [tokenizer.encode(c, add_special_tokens=False).ids[0] for c in "ab"]
    first.advance(ids * 8)
    second.advance(ids[::-1])
    assert (first.error, second.error) == (None, None)
    assert (first.complete, second.complete) == (True, False)
