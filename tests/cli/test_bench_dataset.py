"""Data sets: lengths are what was asked for, draws are repeatable, files are read in their form."""

import json

import numpy as np
import pytest

from ortloom.bench.dataset import DATASETS, DatasetPlan, Vocabulary, build_workload, lengths
from ortloom.bench.prompt_maker import PromptMaker
from ortloom.commands.bench.dataset_options import range_ratio
from ortloom.errors import BenchmarkFailed, ConfigError
from ortloom.models.chat_template import ChatTemplate
from ortloom.models.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def letters(tiny, tmp_path_factory):
    """A tokenizer with a token a byte: every length can be read off the text."""
    folder = tiny.write(tmp_path_factory.mktemp("tiny") / "model")
    tokenizer = Tokenizer.load(folder)
    return Vocabulary(tokenizer, ChatTemplate.load(folder, tokenizer))


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A byte-level BPE tokenizer with words in it, trained here."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("bpe")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    draw = np.random.default_rng(0)
    stems = ["".join(draw.choice(list("abcdefghijklmnop"), 5)) for _ in range(600)]
    backend.train_from_iterator([" ".join(draw.permutation(stems)) for _ in range(20)], trainer)
    backend.save(str(folder / "tokenizer.json"))
    return Vocabulary(Tokenizer.load(folder))


def build(vocabulary, **fields):
    return build_workload(DatasetPlan(**fields), vocabulary)


def test_random_prompts_have_the_length_asked_for(words):
    work = build(words, num_prompts=50, random_input_len=64, random_output_len=9)
    assert len(work.samples) == 50
    for sample in (*work.samples, work.trial):
        assert len(words.tokenizer.encode(sample.prompt)) == sample.prompt_len == 64
        assert sample.output_len == 9
    assert len({sample.prompt for sample in (*work.samples, work.trial)}) == 51


def test_random_prompts_of_a_vocabulary_without_words(letters):
    work = build(letters, num_prompts=20, random_input_len=12)
    for sample in work.samples:
        assert len(sample.prompt) == sample.prompt_len == 12
        assert sample.prompt.isprintable()


def test_random_range_prefix_and_seed(words):
    plan = dict(num_prompts=200, input_len=40, output_len=10, range_ratio=(0.5, 0.2))
    work = build(words, seed=4, **plan)
    inputs = {sample.prompt_len for sample in work.samples}
    outputs = {sample.output_len for sample in work.samples}
    assert (min(inputs), max(inputs)) == (20, 60)
    assert (min(outputs), max(outputs)) == (8, 12)
    assert build(words, seed=4, **plan) == work
    assert build(words, seed=5, **plan) != work
    shared = build(words, num_prompts=5, input_len=8, random_prefix_len=16).samples
    heads = {tuple(words.tokenizer.encode(sample.prompt)[:16]) for sample in shared}
    assert len(heads) == 1
    assert {sample.prompt_len for sample in shared} == {24}


def test_lengths_hold_their_bounds():
    draw = np.random.default_rng(0)
    assert set(lengths(1, 0.9, 100, draw)) == {1, 2}
    assert set(lengths(100, 0.0, 100, draw)) == {100}


def test_a_prompt_that_joins_tokens_is_filled_up(words):
    maker = PromptMaker(words.tokenizer, np.random.default_rng(0))
    pair = words.tokenizer.encode("a") + words.tokenizer.encode("b")
    joined = words.tokenizer.encode(words.tokenizer.decode(pair * 8))
    sample = maker.sample(pair * 8, 1)
    assert sample.prompt_len == 16
    assert len(joined) <= 16


def test_prefix_repetition(words):
    work = build(
        words,
        name="prefix_repetition",
        num_prompts=10,
        repeated_prefix_len=12,
        repeated_suffix_len=6,
        repeated_num_prefixes=3,
        repeated_output_len=5,
    )
    heads = [tuple(words.tokenizer.encode(sample.prompt)[:12]) for sample in work.samples]
    assert sorted(heads.count(head) for head in set(heads)) == [3, 3, 4]
    assert {(sample.prompt_len, sample.output_len) for sample in work.samples} == {(18, 5)}
    assert tuple(words.tokenizer.encode(work.trial.prompt)[:12]) not in heads


def conversation(*turns):
    return {"conversations": [{"from": "x", "value": turn} for turn in turns]}


def test_sharegpt(letters, tmp_path):
    path = tmp_path / "share.json"
    rows = [
        conversation("hello there", "answer"),
        conversation("hi", "too short a prompt"),
        conversation("too short an answer", "ok"),
        conversation("only one turn"),
        conversation("x" * 1025, "too long a prompt"),
        conversation("x" * 1000, "y" * 1049),
        conversation("fine too", "y" * 20, "more"),
    ]
    path.write_text(json.dumps(rows))
    plan = dict(name="sharegpt", path=str(path), shuffle=False)
    work = build(letters, num_prompts=2, **plan)
    assert [(s.prompt, s.prompt_len, s.output_len) for s in work.samples] == [
        ("hello there", 11, 6),
        ("fine too", 8, 20),
    ]
    assert len(build(letters, num_prompts=7, **plan).samples) == 7
    assert len(build(letters, num_prompts=7, oversample=False, **plan).samples) == 2
    fixed = build(letters, num_prompts=3, sharegpt_output_len=9, **plan).samples
    assert {sample.output_len for sample in fixed} == {9}
    assert "too short an answer" in {sample.prompt for sample in fixed}
    with pytest.raises(BenchmarkFailed, match="--tokenizer"):
        build(Vocabulary(), **plan)


def test_custom(letters, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "one"}\n\n{"prompt": "two", "output_tokens": 3}\n')
    plan = dict(name="custom", path=str(path), num_prompts=2, shuffle=False)
    texts = [(s.prompt, s.output_len) for s in build(letters, chat=True, **plan).samples]
    assert texts == [("one", 256), ("two", 256)]
    templated = build(letters, custom_output_len=8, **plan).samples
    assert [(s.prompt, s.output_len) for s in templated] == [("user: one\n", 8), ("user: two\n", 8)]
    plain = build(letters, skip_chat_template=True, **plan).samples
    assert plain[0].prompt == "one"
    assert build(Vocabulary(), **plan).samples[0].prompt_len == 0
    with pytest.raises(BenchmarkFailed, match="output_tokens"):
        build(letters, custom_output_len=-1, **plan)


def test_spec_bench_and_burstgpt_and_sonnet(letters, tmp_path):
    questions = tmp_path / "q.jsonl"
    lines = [{"category": c, "turns": [f"ask {c}", "then"]} for c in ("math", "qa", "math")]
    questions.write_text("\n".join(map(json.dumps, lines)))
    plan = dict(path=str(questions), num_prompts=2, chat=True, spec_category="math")
    assert [s.prompt for s in build(letters, name="spec_bench", **plan).samples] == ["ask math"] * 2

    trace = tmp_path / "t.csv"
    trace.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,7,7,14,x\n6,GPT-4,10,4,14,x\n7,GPT-4,9,0,9,x\n8,GPT-4,20,5,25,x\n"
    )
    plan = dict(name="burstgpt", path=str(trace), num_prompts=5)
    sizes = [(s.prompt_len, s.output_len) for s in build(letters, shuffle=False, **plan).samples]
    assert sizes == [(10, 4), (20, 5), (10, 4), (20, 5), (10, 4)]
    assert len(build(letters, **plan).samples) == 5

    poem = tmp_path / "poem.txt"
    poem.write_text("".join(f"line number {i} of the poem\n" for i in range(10, 60)))
    plan = dict(name="sonnet", path=str(poem), num_prompts=4, chat=True)
    work = build(letters, sonnet_input_len=400, sonnet_prefix_len=120, **plan)
    assert all(abs(sample.prompt_len - 400) < 30 for sample in work.samples)
    assert len({sample.prompt[:100] for sample in work.samples}) == 1
    assert len({sample.prompt for sample in work.samples}) == 4
    with pytest.raises(BenchmarkFailed, match="sonnet input length"):
        build(letters, sonnet_input_len=10, **plan)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("sharegpt", "{", "is not JSON"),
        ("sharegpt", "[1]", "not in the ShareGPT form"),
        ("sharegpt", "[]", "no prompt that can be used"),
        ("custom", "[1]", "line 1 is not a JSON object"),
        ("custom", '{"prompt": "a"}\nx', "line 2 is not JSON"),
        ("custom", '{"text": "a"}', "needs a text named prompt"),
        ("spec_bench", '{"turns": []}', "needs a list named turns"),
        ("burstgpt", "a,b\n1,2\n", "not in the BurstGPT form"),
        ("sonnet", "\n", "has no lines"),
        ("sonnet", None, "No such file"),
    ],
)
def test_files_that_cannot_be_used(letters, tmp_path, name, text, error):
    path = tmp_path / "data"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BenchmarkFailed, match=error):
        build(letters, name=name, path=str(path), num_prompts=2)


def test_made_prompts_need_a_tokenizer():
    with pytest.raises(BenchmarkFailed, match="--tokenizer"):
        build(Vocabulary())


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("0.5", (0.5, 0.5)),
        ("0", (0.0, 0.0)),
        ('{"input": 0.1, "output": 0.9}', (0.1, 0.9)),
        ('{"output": 0.9}', (0.0, 0.9)),
    ],
)
def test_range_ratio(text, pair):
    assert range_ratio(text) == pair


@pytest.mark.parametrize(
    "text", ["1", "-0.1", "x", "true", '{"prompt": 1}', "[0.1]", '{"input": 2}']
)
def test_range_ratio_refused(text):
    with pytest.raises(ConfigError, match="--random-range-ratio"):
        range_ratio(text)


def test_every_data_set_is_a_choice():
    from ortloom.commands.bench.tables import bench_table

    (flag,) = [f for f in bench_table("serve").flags if f.name == "--dataset-name"]
    assert set(DATASETS) <= set(flag.choices)


@pytest.mark.parametrize(
    "fields",
    [
        {"input_len": 99999999},
        {"random_input_len": 99999999},
        {"output_len": 99999999},
        {"random_output_len": 99999999},
        {"random_prefix_len": 99999999},
        {"random_input_len": 500, "range_ratio": (0.9, 0.0)},
        {"name": "prefix_repetition", "repeated_prefix_len": 99999999},
        {"name": "prefix_repetition", "repeated_suffix_len": 99999999},
        {"name": "prefix_repetition", "repeated_output_len": 99999999},
        {"name": "sonnet", "path": "no-such-file", "sonnet_input_len": 99999999},
        {"name": "sonnet", "path": "no-such-file", "input_len": 99999999},
        {"name": "sonnet", "path": "no-such-file", "sonnet_output_len": 99999999},
        {"name": "custom", "path": "no-such-file", "custom_output_len": 99999999},
        {"name": "sharegpt", "path": "no-such-file", "sharegpt_output_len": 99999999},
        {"name": "spec_bench", "path": "no-such-file", "spec_output_len": 99999999},
        {"name": "burstgpt", "path": "no-such-file", "output_len": 99999999},
    ],
)
def test_lengths_beyond_the_context_are_refused_before_a_prompt_is_made(fields, monkeypatch):
    monkeypatch.setattr(PromptMaker, "__init__", lambda *_: pytest.fail("a prompt is made"))
    plan = {"random_input_len": 64, "random_output_len": 8, "repeated_prefix_len": 8, **fields}
    plan = DatasetPlan(num_prompts=20, **plan)
    with pytest.raises(ConfigError, match="does not fit the context of 600 tokens"):
        build_workload(plan, Vocabulary(), 600)


def test_lengths_that_just_fit_the_context_are_not_refused(letters):
    plan = DatasetPlan(num_prompts=2, random_input_len=56, random_output_len=8)
    assert len(build_workload(plan, letters, 64).samples) == 2
    with pytest.raises(ConfigError, match="56 tokens with 8 new ones"):
        build_workload(plan, letters, 63)
    unknown = DatasetPlan(name="custom", path="no-such-file", custom_output_len=-1)
    with pytest.raises(BenchmarkFailed):  # each line says its own: the file is what is missing
        build_workload(unknown, letters, 64)
