"""Bad words as text, over a real tokenizer: single characters, "ab", "tr", "tru", "true", "12"."""

import numpy as np
import pytest

from ortloom.runtime.bad_words import BadWords
from ortloom.runtime.request import Request
from ortloom.runtime.sampler import Sampler
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.structured_output import GrammarCompiler
from ortloom.runtime.vocabulary_bytes import VocabularyBytes

VOCAB, EOS = 264, 0


@pytest.fixture(scope="module")
def file(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("tok") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def vocabulary(file):
    return VocabularyBytes(file, VOCAB)


def named(vocabulary, ids):
    return {vocabulary.token_bytes(i).decode() for i in ids}


def ids_of(tokenizer, *tokens):
    return [tokenizer.token_to_id(token) for token in tokens]


def test_tokens_that_hold_or_begin_with_bytes(vocabulary):
    assert named(vocabulary, vocabulary.containing(b"tr")) == {"tr", "tru", "true"}
    assert named(vocabulary, vocabulary.containing(b"ru")) == {"tru", "true"}
    assert named(vocabulary, vocabulary.beginning(b"a")) == {"a", "ab"}
    assert vocabulary.beginning(b"abc") == []
    assert vocabulary.containing(b"<end>") == []  # a special token is no text


def test_a_word_is_banned_however_it_is_cut(vocabulary, tokenizer):
    words = BadWords(["rue"], vocabulary)
    assert named(vocabulary, words.forbidden([])) == {"true"}
    output = ids_of(tokenizer, "tr")
    assert named(vocabulary, words.forbidden(output)) == {"true"}
    output += ids_of(tokenizer, "u")
    assert named(vocabulary, words.forbidden(output)) == {"true", "e"}
    output += ids_of(tokenizer, "a")
    assert named(vocabulary, words.forbidden(output)) == {"true"}


def test_beginnings_that_overlap(vocabulary, tokenizer):
    words = BadWords(["ababc", "bac"], vocabulary)
    output = ids_of(tokenizer, "ab", "ab", "ab", "a", "b", "a")
    for end in range(len(output) + 1):
        words.forbidden(output[:end])
    assert named(vocabulary, words.forbidden(output)) == {"c"}  # ...ababa: of "bac"
    output += ids_of(tokenizer, "b")
    assert named(vocabulary, words.forbidden(output)) == {"c"}  # ...ababab: of "ababc"
    output += ids_of(tokenizer, "b")
    assert words.forbidden(output) == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("native", [False, None])
def test_no_draw_ever_completes_a_word(file, tokenizer, seed, native):
    banned = ["aba", "true", "12a", "bb"]
    sampler = Sampler(VOCAB, "raw_logprobs", GrammarCompiler(file, VOCAB, [EOS]), native)
    params = SamplingParams(bad_words=banned, seed=seed)
    request = Request("r", [1], params, 1000, seed=seed)
    rng = np.random.default_rng(seed)
    likely = ids_of(tokenizer, "a", "b", "ab", "t", "r", "u", "e", "tr", "tru", "1", "2", "12")
    for step in range(300):
        row = rng.normal(size=(1, VOCAB)).astype(np.float32)
        row[0, likely] += 8
        result = sampler.sample(row, [request])[0]
        request.token_ids.append(result.token_id)
        if step == 150:
            sampler.remove("r")  # a lost state is made again from the tokens
    text = tokenizer.decode(request.output_token_ids)
    assert len(text) > 300
    assert [word for word in banned if word in text] == []
