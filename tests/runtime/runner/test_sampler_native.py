"""The op library's sampler and the NumPy one give the same results, bit for bit.

Both sum masses that add up exactly and take the same float32 steps, so there is no residual:
tokens, values, ranks and errors are compared with ==.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortloom.errors import KernelUnavailable
from ortloom.kernels import isa, team
from ortloom.runtime.request import Request
from ortloom.runtime.sampler import NOT_FINITE, Sampler
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.structured_output import GrammarCompiler

MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
KINDS = (
    "normal",
    "peaked",
    "flat",
    "ties",
    "masked",
    "equal",
    "zeros",
    "broken",
    "huge",
    "uneven",
    "misleading",
)


def make(vocab, mode, native):
    return Sampler(vocab, mode, GrammarCompiler(None, vocab, []), native)


def row_of(generator, kind, vocab):
    row = generator.standard_normal(vocab, dtype=np.float32) * 3
    if kind == "peaked":
        row *= 4
    elif kind == "flat":
        row *= np.float32(0.003)
    elif kind == "ties":
        row = np.round(row)
    elif kind == "masked":
        row[generator.random(vocab) < 0.9] = -np.inf
        row[0] = 1
    elif kind == "equal":
        row[:] = 2.5
    elif kind == "zeros":
        row = np.where(row > 0, np.float32(0.0), np.float32(-0.0))
    elif kind == "broken":
        row[generator.integers(vocab)] = generator.choice([np.nan, np.inf])
    elif kind == "uneven":  # one block in 16, which a first guess goes by, is unlike the others
        row[np.arange(vocab) // 64 % 16 == 0] -= np.float32(generator.choice([-4, 4, 30]))
    elif kind == "misleading":  # the guess stops at the top, blocks fill what is below unevenly
        block, place = np.divmod(np.arange(vocab), 64)
        row *= np.float32(0.001)
        row -= np.where(block % 2 == 0, (place > 25) + 1.0 * (place > 33), 1.0 * (place > 4))
        row[(block % 16 == 0) & (place > 0)] -= np.float32(30)
    elif kind == "huge":
        row *= np.float32(1e37)
    return row


def params_of(generator, vocab):
    def one_of(*choices):
        return choices[generator.integers(len(choices))]

    def ids(count):
        return generator.integers(0, vocab, count).tolist()

    fields = {
        "temperature": one_of(0.0, 0.01, 0.3, 1.0, 1.7),
        "top_k": one_of(0, 0, -1, 1, 3, 50, 400, 10**9),
        "top_p": one_of(1.0, 1.0, 1e-9, 0.3, 0.9, 0.999),
        "min_p": one_of(0.0, 0.0, 1e-4, 0.02, 0.5, 1.0),
        "repetition_penalty": one_of(1.0, 1.0, 1.3, 0.7, 1e30),
        "frequency_penalty": one_of(0.0, 0.7),
        "presence_penalty": one_of(0.0, -0.4),
        "min_tokens": one_of(0, 3),
        "stop_token_ids": ids(2),
        "logit_bias": one_of(None, {i: float(generator.normal() * 5) for i in ids(3)}),
        "bad_words_token_ids": one_of(
            None, [[i] for i in ids(2)], [[1 % vocab, i] for i in ids(3)]
        ),
        "allowed_token_ids": one_of(None, None, ids(30)),
        "logprobs": one_of(None, None, 0, min(vocab, 5), min(vocab, 70), -1),
    }
    fields["logprobs_detail"] = one_of(False, False, True)
    fields["sampling_mask"] = one_of(False, False, True)
    if fields["logprobs"] is not None:
        fields["logprob_token_ids"] = one_of(None, ids(2))
    return SamplingParams(**fields).validated(vocab, -1)


def batch(seed, vocab, count):
    generator = np.random.default_rng(seed)
    kinds = [KINDS[i] for i in generator.integers(0, len(KINDS), count)]
    logits = np.stack([row_of(generator, kind, vocab) for kind in kinds])
    requests = []
    for i in range(count):
        params = params_of(generator, vocab)
        prompt = generator.integers(0, vocab, 5).tolist()
        drawn = int(generator.integers(-(2**63), 2**63 - 1))
        request = Request(f"r{i}", prompt, params, 100, seed=drawn)
        request.token_ids += generator.integers(0, vocab, generator.integers(0, 5)).tolist()
        request.token_ids += [1 % vocab]
        requests.append(request)
    return logits, requests


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([1, 2, 63, 64, 65, 700, 5000, 20000]),
    mode=st.sampled_from(MODES),
)
def test_both_samplers_agree_exactly(seed, vocab, mode):
    logits, requests = batch(seed, vocab, 6)
    expected = make(vocab, mode, False).sample(logits.copy(), requests)
    assert make(vocab, mode, True).sample(logits.copy(), requests) == expected


@pytest.mark.unsanitized
@pytest.mark.parametrize("kind", KINDS)
def test_wide_draws_agree_exactly(kind):
    """No cut but top_p, so that the whole row is searched."""
    generator = np.random.default_rng(4)
    for vocab in (9000, 40000):
        for seed in range(24):
            logits = row_of(generator, kind, vocab)[np.newaxis]
            top_p = (1.0, 0.4, 0.6, 0.7, 0.8, 0.97, 0.9999)[seed % 7]
            params = SamplingParams(temperature=(1.0, 2.0)[seed % 2], top_p=top_p, logprobs=1)
            request = Request("r", [1], params, 100, seed=seed)
            expected = make(vocab, "processed_logprobs", False).sample(logits.copy(), [request])
            got = make(vocab, "processed_logprobs", True).sample(logits.copy(), [request])
            assert got == expected


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_results_do_not_depend_on_the_batch(native, seed):
    """Shuffled, split and alone; the order of rows decides nothing."""
    logits, requests = batch(seed, 3000, 9)
    together = make(3000, "processed_logprobs", native).sample(logits.copy(), requests)
    order = np.random.default_rng(seed).permutation(9).tolist()
    sampler = make(3000, "processed_logprobs", native)
    shuffled = []
    for part in (order[:1], order[1:5], order[5:]):
        shuffled += sampler.sample(logits[part].copy(), [requests[i] for i in part])
    assert shuffled == [together[i] for i in order]


def test_results_do_not_depend_on_threads():
    logits, requests = batch(11, 3000, 16)
    expected = make(3000, "raw_logprobs", True).sample(logits.copy(), requests)
    try:
        team.configure(3, 50)
        assert make(3000, "raw_logprobs", True).sample(logits.copy(), requests) == expected
    finally:
        team.configure(1, 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_request_followed_for_many_steps_gets_the_same_tokens(seed):
    """Counts, bad words and min_tokens move on with the output."""
    vocab = 400
    generator = np.random.default_rng(seed)
    params = SamplingParams(
        temperature=1.3,
        repetition_penalty=1.2,
        frequency_penalty=0.4,
        presence_penalty=0.3,
        bad_words_token_ids=[[i, j] for i in range(60) for j in range(5)],
        min_tokens=40,
        stop_token_ids=list(range(20)),
        logprobs=2,
    ).validated(vocab)
    mine = Request("a", [1, 2, 3], params, 1000, seed=seed)
    other = Request("a", [1, 2, 3], params, 1000, seed=seed)
    native, slow = make(vocab, "processed_logits", True), make(vocab, "processed_logits", False)
    for _ in range(120):  # more distinct tokens than the counts first have room for
        logits = generator.standard_normal((1, vocab), dtype=np.float32)
        (got,) = native.sample(logits.copy(), [mine])
        (expected,) = slow.sample(logits.copy(), [other])
        assert got == expected
        mine.token_ids.append(got.token_id)
        other.token_ids.append(got.token_id)


@pytest.mark.parametrize("num_top", [0, 4, -1])
@pytest.mark.parametrize("mode", MODES)
def test_prompt_entries_agree(mode, num_top):
    logits = np.random.default_rng(5).standard_normal((3, 2000), dtype=np.float32)
    native, slow = make(2000, mode, True), make(2000, mode, False)
    targets = [0, 77, 1999]
    before = logits.copy()
    assert native.prompt_logprobs(logits, targets, num_top) == slow.prompt_logprobs(
        logits, targets, num_top
    )
    assert np.array_equal(before, logits)


@pytest.mark.parametrize("native", [True, False])
def test_logits_that_may_not_be_written_are_copied(native):
    logits, requests = batch(21, 500, 4)
    expected = make(500, "raw_logprobs", native).sample(logits.copy(), requests)
    strided = np.empty((4, 1000), np.float32)[:, ::2]
    strided[:] = logits
    assert make(500, "raw_logprobs", native).sample(strided, requests) == expected
    fixed = logits.copy()
    fixed.flags.writeable = False
    if native:
        assert make(500, "raw_logprobs", native).sample(fixed, requests) == expected
        assert np.array_equal(fixed, logits, equal_nan=True)


@pytest.mark.parametrize("native", [True, False])
def test_a_token_id_outside_the_vocabulary_is_an_error(native):
    params = SamplingParams(repetition_penalty=1.3)
    request = Request("r", [1, 99999], params, 100)
    logits = np.zeros((1, 500), np.float32)
    with pytest.raises(IndexError):
        make(500, "raw_logprobs", native).sample(logits, [request])


def test_plain_greedy_rows_agree_and_fail_alone():
    logits = np.random.default_rng(1).standard_normal((40, 5000), dtype=np.float32)
    logits[3, 17] = np.nan
    logits[4] = -np.inf
    logits[5, [9, 8]] = 50.0
    params = SamplingParams(temperature=0.0)
    requests = [Request(f"r{i}", [1], params, 10) for i in range(40)]
    got = make(5000, "raw_logprobs", True).sample(logits.copy(), requests)
    assert got == make(5000, "raw_logprobs", False).sample(logits.copy(), requests)
    assert [r.error for r in got[3:6]] == [NOT_FINITE, NOT_FINITE, None]
    assert got[5].token_id == 8
    assert make(5000, "raw_logprobs", True).sample(logits[:0], []) == []


def test_without_the_library_numpy_takes_over(monkeypatch):
    monkeypatch.setenv("ORTLOOM_NO_OPS", "1")
    logits, requests = batch(31, 900, 5)
    alone = make(900, "raw_logprobs", None).sample(logits.copy(), requests)
    monkeypatch.delenv("ORTLOOM_NO_OPS")
    assert make(900, "raw_logprobs", None).sample(logits.copy(), requests) == alone


def test_a_tier_that_cannot_be_used_is_not_passed_over(monkeypatch):
    monkeypatch.setenv(isa.ISA_VARIABLE, "sse9")
    with pytest.raises(KernelUnavailable, match="sse9"):
        make(900, "raw_logprobs", None)


def test_vocabularies_too_large_for_exact_sums_are_sampled_in_numpy():
    vocab = 2**19 + 1
    logits = np.zeros((1, vocab), np.float32)
    logits[0, 7] = 30.0
    request = Request("r", [1], SamplingParams(temperature=1.0, seed=1), 10)
    assert make(vocab, "raw_logprobs", None).sample(logits, [request])[0].token_id == 7
