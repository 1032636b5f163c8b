"""Logits processors of users: named at start, found by entry point, named by a request."""

import sys
import types

import numpy as np
import pytest

from ortloom.errors import ConfigError, InvalidRequest, UnsupportedParameter
from ortloom.runtime import user_processors
from ortloom.runtime.request import Request
from ortloom.runtime.sampler import Sampler
from ortloom.runtime.sampling_params import LogitsProcessorSpec, SamplingParams
from ortloom.runtime.structured_output import GrammarCompiler
from ortloom.runtime.user_processors import UserProcessors

VOCAB = 100


class Only:
    """Allows the token that the request's extra arguments name."""

    def __init__(self, vocab_size):
        assert vocab_size == VOCAB

    @classmethod
    def validate_params(cls, params):
        if (params.extra_args or {}).get("only", 0) == "bad":
            raise ValueError("only must be a token")

    def new_request(self, params):
        token = (params.extra_args or {}).get("only")
        if token is None:
            return None

        def change(output, row):
            kept = row[token + len(output)]
            row[:] = -np.inf
            row[token + len(output)] = kept

        return change


def ban(token):
    def change(output, row):
        made = row.copy()
        made[token] = -np.inf
        return made

    return change


def ban_first(output, row):
    row[0] = -np.inf


def broken(output, row):
    raise RuntimeError("user bug")


def giving_up(output, row):
    sys.exit("user bug")


@pytest.fixture(autouse=True)
def module(monkeypatch):
    made = types.ModuleType("user_side")
    made.Only, made.ban, made.ban_first, made.broken = Only, ban, ban_first, broken
    made.Not, made.giving_up = object, giving_up
    monkeypatch.setitem(sys.modules, "user_side", made)


@pytest.fixture(params=[True, False], ids=["native", "numpy"])
def make(request):
    def sampler(users, **options):
        grammars = GrammarCompiler(None, VOCAB, [])
        return Sampler(VOCAB, "raw_logprobs", grammars, request.param, users=users, **options)

    return sampler


def ask(name, **fields):
    return Request(name, [1, 2], SamplingParams(temperature=0.0, **fields), 50)


def rows(count):
    values = np.tile(np.linspace(1, 0, VOCAB, dtype=np.float32), (count, 1))
    return values


def test_each_row_is_changed_by_its_own_request_only(make):
    sampler = make(UserProcessors(["user_side:Only"], None, VOCAB))
    plain, first, second = ask("a"), ask("b", extra_args={"only": 7}), ask("c")
    first.token_ids.append(50)  # one token of output: the function sees it
    results = sampler.sample(rows(3), [plain, first, second])
    assert [r.token_id for r in results] == [0, 8, 0]


def test_raw_logprobs_do_not_see_it(make):
    sampler = make(UserProcessors(["user_side.Only"], None, VOCAB))
    (alone,) = sampler.sample(rows(1), [ask("a", extra_args={"only": 7}, logprobs=1)])
    expected = rows(1)[0].astype(np.float64)
    expected = expected[7] - np.log(np.exp(expected).sum())
    assert alone.token_id == 7
    assert alone.logprobs.logprobs[0] == pytest.approx(expected, abs=1e-5)


def test_seeds_draw_the_same_with_a_function_that_does_nothing(make):
    users = UserProcessors([], ".*", VOCAB)
    spec = [LogitsProcessorSpec("user_side.ban", [99])]
    for seed in range(5):
        both = [
            Request(
                "x", [1], SamplingParams(seed=seed, top_k=20, logits_processors=s), 9, seed=seed
            )
            for s in (None, spec)
        ]
        tokens = [make(users).sample(rows(1) * 3, [r])[0].token_id for r in both]
        assert tokens[0] == tokens[1]


def test_a_request_names_functions_and_factories(make):
    users = UserProcessors([], r"user_side\.ban.*", VOCAB)
    specs = [LogitsProcessorSpec("user_side.ban_first"), LogitsProcessorSpec("user_side.ban", [1])]
    request = ask("r", logits_processors=specs)
    users.validate(request.sampling)
    assert make(users).sample(rows(1), [request])[0].token_id == 2


@pytest.mark.parametrize(
    ("pattern", "name", "error"),
    [
        (None, "user_side.ban", UnsupportedParameter),
        (r"user_side\.ban", "os.system", InvalidRequest),
        (r"user_side\..*", "user_side.nothing", InvalidRequest),
        (".*", "nowhere", InvalidRequest),
    ],
)
def test_names_that_are_not_allowed(pattern, name, error):
    users = UserProcessors([], pattern, VOCAB)
    with pytest.raises(error) as raised:
        users.validate(SamplingParams(logits_processors=[LogitsProcessorSpec(name)]))
    assert raised.value.param == "logits_processors"


def test_a_class_may_refuse_a_request():
    users = UserProcessors(["user_side:Only"], None, VOCAB)
    with pytest.raises(InvalidRequest, match="only must be a token"):
        users.validate(SamplingParams(extra_args={"only": "bad"}))


@pytest.mark.parametrize("name", ["broken", "giving_up"])
def test_one_that_fails_ends_its_request_alone(make, name):
    users = UserProcessors([], ".*", VOCAB)
    spec = [LogitsProcessorSpec(f"user_side.{name}")]
    results = make(users).sample(rows(2), [ask("a", logits_processors=spec), ask("b")])
    assert "user bug" in results[0].error
    assert results[1].token_id == 0


@pytest.mark.parametrize("name", ["user_side:Not", "user_side:Missing", "no_such_module:X", "x"])
def test_a_class_that_cannot_be_used_stops_the_start(name):
    with pytest.raises(ConfigError, match=name):
        UserProcessors([name], None, VOCAB)


def test_a_bad_pattern_stops_the_start():
    with pytest.raises(ConfigError, match="--logits-processor-pattern"):
        UserProcessors([], "(", VOCAB)


def test_entry_points_are_found(make, monkeypatch, tmp_path):
    folder = tmp_path / "user_side-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: user-side\nVersion: 1.0\n")
    points = f"[{user_processors.ENTRY_POINTS}]\nonly = user_side:Only\n"
    (folder / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    sampler = make(UserProcessors([], None, VOCAB))
    assert sampler.sample(rows(1), [ask("a", extra_args={"only": 9})])[0].token_id == 9
