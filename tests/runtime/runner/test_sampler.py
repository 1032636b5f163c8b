"""The sampler's stages in order, against an oracle that works on one row in float64."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortloom.runtime.logits_processors import LogitsProcessors, TokenCounts
from ortloom.runtime.logprobs import CUT
from ortloom.runtime.philox import uniform
from ortloom.runtime.request import Request
from ortloom.runtime.sampler import NOT_FINITE, NOTHING_ALLOWED, Sampler
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.structured_output import GrammarCompiler

VOCAB = 700


def make_sampler(mode="raw_logprobs", vocab=VOCAB):
    return Sampler(vocab, mode, GrammarCompiler(None, vocab, []))


def request(name="r", prompt=(1, 2, 3), output=(), **params):
    made = SamplingParams(**params).validated(VOCAB, -1)
    made = Request(name, list(prompt), made, 1000, seed=made.seed or 0)
    made.token_ids += list(output)
    return made


def logits(seed=0, rows=1, scale=3.0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, VOCAB)) * scale).astype(np.float32)


def oracle_row(row, r):
    """Logits after all processors, float64."""
    p, x = r.sampling, row.astype(np.float64)
    out = r.output_token_ids
    if p.allowed_token_ids is not None:
        for i in range(VOCAB):
            if i not in p.allowed_token_ids:
                x[i] = -np.inf
    for word in p.bad_words_token_ids or []:
        head = word[:-1]
        if not head or out[-len(head) :] == head:
            x[word[-1]] = -np.inf
    if len(out) < p.min_tokens:
        x[p.eos_token_ids + p.secondary_eos_token_ids + p.stop_token_ids] = -np.inf
    for i, bias in (p.logit_bias or {}).items():
        x[i] += bias
    for i in range(VOCAB):
        if i in r.token_ids:
            x[i] = x[i] / p.repetition_penalty if x[i] > 0 else x[i] * p.repetition_penalty
        count = out.count(i)
        x[i] -= count * p.frequency_penalty + (count > 0) * p.presence_penalty
    return x


def oracle_draw(x, r):
    """Sorts everything; returns (token, survivors, their log-probabilities)."""
    p = r.sampling
    order = sorted((i for i in range(VOCAB) if x[i] > -np.inf), key=lambda i: (-x[i], i))
    if p.greedy:
        return order[0], order, log_softmax(x)[order].tolist()
    v = np.array([x[i] / p.temperature for i in order])
    keep = np.ones(len(v), bool)
    if p.min_p:
        keep &= v >= v[0] + math.log(p.min_p)
    if p.top_k > 0:
        keep[p.top_k :] = False
    v, order = v[keep], [i for i, k in zip(order, keep, strict=True) if k]
    mass = np.exp(v - v[0]) / np.exp(v - v[0]).sum()
    if p.top_p < 1:
        n = int(np.searchsorted(np.cumsum(mass), p.top_p)) + 1
        v, order, mass = v[:n], order[:n], mass[:n] / mass[:n].sum()
    u = uniform(r.seed, p.sample_index, r.num_output_tokens)
    place = min(int(np.searchsorted(np.cumsum(mass), u, side="right")), len(mass) - 1)
    return order[place], order, np.log(mass).tolist()


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 1, 20]),
        "top_p": st.sampled_from([1.0, 0.8]),
        "min_p": st.sampled_from([0.0, 0.05]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.7]),
        "presence_penalty": st.sampled_from([0.0, -0.4]),
        "min_tokens": st.sampled_from([0, 6]),
        "eos_token_ids": st.just([5]),
        "stop_token_ids": st.just([17]),
        "logit_bias": st.sampled_from([None, {5: 9.0, 40: -3.0, 699: 2.5}]),
        "bad_words_token_ids": st.sampled_from([None, [[3], [11, 12], [12, 13]]]),
        "allowed_token_ids": st.sampled_from([None, [*range(0, VOCAB, 3), 5, 13]]),
        "seed": st.integers(0, 2**63 - 1),
    }
)


@settings(max_examples=120, deadline=None)
@given(params=PARAMS, seed=st.integers(0, 10**6), output=st.sampled_from([[], [11, 12], [5] * 7]))
def test_tokens_and_processed_logprobs_match_the_oracle(params, seed, output):
    row = logits(seed)
    r = request(prompt=[8, 9, 8], output=output, logprobs=5, **params)
    x = oracle_row(row[0], r)
    token, kept, logprobs = oracle_draw(x, r)
    result = make_sampler("processed_logprobs").sample(row, [r])[0]
    assert result.error is None
    assert result.token_id == token  # float32 noise would show as a rare mismatch
    entry = result.logprobs
    assert entry.token_ids[0] == token
    for i, value in zip(entry.token_ids, entry.logprobs, strict=True):
        if i in kept:
            assert value == pytest.approx(logprobs[kept.index(i)], abs=2e-4)
        else:
            assert value == CUT


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_a_row_is_bitwise_the_same_alone_and_in_any_batch(data, seed):
    count = data.draw(st.integers(2, 9))
    rows = logits(seed, count)
    requests = [
        request(f"r{i}", output=[4] * i, logprobs=4, **data.draw(PARAMS)) for i in range(count)
    ]
    together = make_sampler().sample(rows.copy(), requests)
    for i in range(count):
        alone = make_sampler().sample(rows[i : i + 1].copy(), [requests[i]])[0]
        assert alone == together[i]


def test_plain_greedy_batch_takes_the_lowest_id_of_a_tie():
    rows = logits(2, 3)
    rows[1, [50, 60]] = 99.0
    result = make_sampler().sample(rows, [request(f"g{i}", temperature=0.0) for i in range(3)])
    assert [r.token_id for r in result] == [int(rows[0].argmax()), 50, int(rows[2].argmax())]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad, temperature):
    rows = logits(4, 3)
    rows[1, 123] = bad
    requests = [request(f"n{i}", temperature=temperature, logprobs=1) for i in range(3)]
    result = make_sampler().sample(rows, requests)
    assert [r.error for r in result] == [None, NOT_FINITE, None]
    assert result[1].token_id is None
    assert result[0].token_id is not None


def test_constraints_that_leave_nothing_are_an_error():
    r = request(allowed_token_ids=[5], bad_words_token_ids=[[5]], temperature=0.0)
    result = make_sampler().sample(logits(), [r])[0]
    assert result.error == NOTHING_ALLOWED
    assert result.error_param == "allowed_token_ids"  # the client's doing, not ours


@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 1e-46, 1e-30, 1e30, 1e308])
@pytest.mark.parametrize("temperature", [0.0, 1e-9, 0.5, 2.0])
def test_extreme_penalties_still_give_a_token(penalty, temperature):
    row = logits(1)
    row[0, 2] = 0.0  # 0 times infinity is no number
    fields = {"frequency_penalty": 2.0, "presence_penalty": -2.0, "logit_bias": {3: 100.0}}
    r = request(repetition_penalty=penalty, temperature=temperature, logprobs=3, **fields)
    result = make_sampler("processed_logprobs").sample(row, [r])[0]
    assert result.error is None
    assert result.token_id is not None


def test_a_huge_top_k_is_off():
    assert request(top_k=10**30, temperature=1.0).sampling.top_k < 2**31


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 1e-4, 1e-3])
def test_tiny_temperatures_are_greedy_and_finite(temperature):
    for seed in range(20):
        row = logits(seed, scale=10)
        best = int(row[0].argmax())
        r = request(temperature=temperature, seed=seed, logprobs=2)
        result = make_sampler("processed_logprobs").sample(row, [r])[0]
        assert result.token_id == best
        assert all(math.isfinite(v) for v in result.logprobs.logprobs)


def test_seed_gives_the_same_tokens_and_sample_index_others():
    def run(**kw):
        sampler = make_sampler()
        r = request(**{"seed": 42, "temperature": 1.5, **kw})
        tokens = []
        for i in range(12):
            tokens.append(sampler.sample(logits(i), [r])[0].token_id)
            r.token_ids.append(tokens[-1])
        return tokens

    assert run() == run()
    assert run() != run(sample_index=1)
    assert run() != run(seed=43)


def test_state_of_a_new_request_with_an_old_id_is_not_inherited():
    sampler = make_sampler()
    first = request("same", output=[9] * 5, frequency_penalty=2.0, temperature=0.0)
    row = np.zeros((1, VOCAB), np.float32)
    row[0, 9], row[0, 8] = 3.0, 2.0
    assert sampler.sample(row.copy(), [first])[0].token_id == 8
    second = request("same", frequency_penalty=2.0, temperature=0.0)
    assert sampler.sample(row.copy(), [second])[0].token_id == 9


def test_penalty_scope():
    row = np.zeros((1, VOCAB), np.float32)
    row[0, 40], row[0, 41] = 3.0, 2.0
    fresh = request(prompt=[40], temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0)
    assert make_sampler().sample(row.copy(), [fresh])[0].token_id == 40
    repeated = request(prompt=[40], temperature=0.0, repetition_penalty=1000.0)
    assert make_sampler().sample(row.copy(), [repeated])[0].token_id == 41
    said = request(prompt=[1], output=[40], temperature=0.0, presence_penalty=2.0)
    assert make_sampler().sample(row.copy(), [said])[0].token_id == 41


def test_counts_kept_step_by_step_equal_counts_made_at_once():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 200, 500).tolist()
    counts = TokenCounts()
    for token in tokens:
        counts.add(token)
    assert dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) == {
        t: tokens.count(t) for t in set(tokens)
    }
    params = SamplingParams(frequency_penalty=0.5, repetition_penalty=1.2, presence_penalty=0.1)
    stepwise = LogitsProcessors(params, [1, 2], VOCAB)
    for token in tokens:
        stepwise.observe([token])
    at_once = LogitsProcessors(params, [1, 2], VOCAB)
    at_once.observe(tokens)
    a, b = logits(5)[0], logits(5)[0]
    stepwise.apply(a, tokens)
    at_once.apply(b, tokens)
    assert np.array_equal(a, b)


def test_min_tokens_masks_every_way_to_end_until_reached():
    row = np.zeros((1, VOCAB), np.float32)
    row[0, [5, 6, 7]] = [9, 8, 7]
    row[0, 100] = 1
    ends = {"eos_token_ids": [5], "secondary_eos_token_ids": [6], "stop_token_ids": [7]}
    r = request(temperature=0.0, min_tokens=2, ignore_eos=True, **ends)
    sampler = make_sampler()
    for expected in (100, 100, 5):
        token = sampler.sample(row.copy(), [r])[0].token_id
        assert token == expected
        r.token_ids.append(token)


def test_bad_words_ban_only_the_last_token_after_its_prefix():
    row = np.zeros((1, VOCAB), np.float32)
    row[0, 12], row[0, 50] = 5.0, 4.0
    words = [[11, 12]]
    plain = request(temperature=0.0, bad_words_token_ids=words, prompt=[11])
    assert make_sampler().sample(row.copy(), [plain])[0].token_id == 12  # 11 is in the prompt only
    after = request(temperature=0.0, bad_words_token_ids=words, output=[11])
    assert make_sampler().sample(row.copy(), [after])[0].token_id == 50


# ---- logprobs


def log_softmax(row):
    x = row.astype(np.float64)
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


@pytest.mark.parametrize("k", [0, 1, 5, 60, -1])
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_raw_logprobs_list_own_then_top_with_ranks(k, temperature):
    row = logits(11)
    r = request(temperature=temperature, seed=3, logprobs=k, repetition_penalty=1.5, top_k=9)
    entry = make_sampler().sample(row.copy(), [r])[0].logprobs
    expected = log_softmax(row[0])
    own = entry.token_ids[0]
    count = VOCAB if k < 0 else k
    order = sorted(range(VOCAB), key=lambda i: (-row[0, i], i))
    assert entry.token_ids == [own, *order[:count]]
    assert entry.logprobs == pytest.approx([expected[i] for i in entry.token_ids], abs=1e-5)
    assert entry.ranks == [int((row[0] >= row[0, i]).sum()) for i in entry.token_ids]


def test_ties_share_the_larger_rank():
    row = np.zeros((1, VOCAB), np.float32)
    row[0, [10, 20, 30]] = 5.0
    row[0, 40] = 6.0
    entry = make_sampler().sample(row, [request(temperature=0.0, logprobs=3)])[0].logprobs
    assert entry.token_ids == [40, 40, 10, 20]
    assert entry.ranks == [1, 1, 4, 4]


def test_raw_modes_see_the_row_before_the_processors_and_processed_ones_after():
    row = logits(13)
    best = int(row[0].argmax())
    params = {"temperature": 0.0, "logprobs": 1, "logit_bias": {best: -50.0}}
    by_mode = {}
    modes = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
    for mode in modes:
        entry = make_sampler(mode).sample(row.copy(), [request(**params)])[0].logprobs
        by_mode[mode] = entry
    second = by_mode["raw_logprobs"].token_ids[0]
    assert by_mode["raw_logprobs"].token_ids == [second, best]
    assert by_mode["raw_logits"].logprobs == pytest.approx([row[0, second], row[0, best]])
    assert by_mode["processed_logprobs"].token_ids == [second, second]
    biased = row[0].copy()
    biased[best] -= 50
    mass = log_softmax(biased)[second]
    assert by_mode["processed_logprobs"].logprobs == pytest.approx([mass] * 2, abs=1e-5)
    assert by_mode["processed_logits"].logprobs == pytest.approx([row[0, second]] * 2)


def test_a_greedy_pick_cuts_nothing_in_processed_modes():
    """As vLLM: neither the temperature nor a cut is in the values of a greedy request."""
    row = logits(14)
    r = request(temperature=0.0, top_k=2, top_p=0.5, logprobs=4)
    entry = make_sampler("processed_logprobs").sample(row.copy(), [r])[0].logprobs
    expected = np.sort(log_softmax(row[0]))[::-1][:4]
    assert entry.logprobs == pytest.approx([expected[0], *expected], abs=1e-5)
    assert entry.ranks == [1, 1, 2, 3, 4]
    entry = make_sampler("processed_logits").sample(row.copy(), [r])[0].logprobs
    assert entry.logprobs[1:] == pytest.approx(np.sort(row[0])[::-1][:4])


def test_cut_and_masked_tokens_are_reported_as_cut():
    row = logits(15)
    r = request(temperature=0.7, top_k=3, seed=1, logprobs=5)
    entry = make_sampler("processed_logits").sample(row.copy(), [r])[0].logprobs
    assert entry.logprobs[4:] == [CUT, CUT]
    order = np.argsort(-row[0])[:3]
    assert entry.logprobs[1:4] == pytest.approx(row[0, order] / np.float32(0.7), rel=1e-5)
    masked = request(allowed_token_ids=[4, 9], temperature=0.0, logprobs=3)
    entry = make_sampler("processed_logprobs").sample(row.copy(), [masked])[0].logprobs
    first, second = sorted(row[0, [4, 9]], reverse=True)
    both = np.log(np.exp(first) + np.exp(second))
    assert entry.logprobs[1:] == pytest.approx([first - both, second - both, CUT], abs=1e-5)


def test_asked_token_ids_follow_the_top_ones():
    row = logits(16)
    r = request(temperature=0.0, logprobs=1, logprob_token_ids=[600, 2])
    entry = make_sampler().sample(row.copy(), [r])[0].logprobs
    assert entry.token_ids[2:] == [600, 2]
    assert entry.logprobs[2:] == pytest.approx(log_softmax(row[0])[[600, 2]], abs=1e-5)
    assert entry.ranks[2] == int((row[0] >= row[0, 600]).sum())


def test_prompt_logprobs():
    rows = logits(17, 3)
    entries = make_sampler().prompt_logprobs(rows, [5, 6, 7], 2)
    for row, target, entry in zip(rows, [5, 6, 7], entries, strict=True):
        assert entry.token_ids[0] == target
        expected = log_softmax(row)
        assert entry.logprobs == pytest.approx([expected[i] for i in entry.token_ids], abs=1e-5)
    assert make_sampler("raw_logits").prompt_logprobs(rows[:1], [5], 0)[0].logprobs == [
        pytest.approx(float(rows[0, 5]))
    ]
