"""What every tier of the library must do inside the op host, whatever processor it is built for.

A check takes the host, the tier and a `kit`: the fixtures `steps`, `request_of` and `close`.
"""

import ctypes
import math

import numpy as np
from op_host import Call, OpRefused, call_of
from packed_cases import (
    FLOATING,
    QUANTISED,
    attributes_for,
    draw,
    same_bits,
    tolerance,
    weights,
)

from ortloom.kernels.contract import INPUTS, PAGED_ATTENTION, PagedAttentionAttributes
from ortloom.kernels.norm_contract import NORM_INPUTS, SKIP_RMS_NORM, NormAttributes
from ortloom.kernels.norm_reference import skip_rms_norm
from ortloom.kernels.packed_contract import (
    EMBEDDING_INPUTS,
    LINEAR_INPUTS,
    PACKED_EMBEDDING,
    PACKED_LINEAR,
)
from ortloom.kernels.packed_reference import packed_embedding, packed_linear
from ortloom.kernels.reference import paged_attention
from ortloom.kernels.sampling import SampleRow

ROWS = (1, 2, 3, 4, 5, 7, 13, 29)
NORM = NormAttributes()


def only(results):
    """The first output of each call; none may have been refused."""
    for result in results:
        if isinstance(result, OpRefused):
            raise result
    return [result[0] for result in results]


# ---- linear -----------------------------------------------------------------------------------


def linear_call(attributes, x, given, threads=1):
    return call_of(PACKED_LINEAR, LINEAR_INPUTS, attributes, {"x": x, **given}, threads=threads)


def check_linears(host, tier, kit):
    """Each format: agreement with the oracle, and a row's bits the same in every batch."""
    cases, calls = [], []
    for kind in QUANTISED + FLOATING:
        for rows, activation, bias in ((40, "", True), (64, "silu", False), (32, "gelu", False)):
            width = 256 if kind[1] else 77
            attributes = attributes_for(kind, rows, width, activation)
            given = weights(kind, rows, width, bias=bias)
            x = draw(max(ROWS), width)
            cases.append((kind, packed_linear(attributes, {"x": x, **given})))
            calls += [linear_call(attributes, x[:n], given, threads=1 + n % 2) for n in ROWS]
            calls += [linear_call(attributes, x[n : n + 1], given) for n in (1, 6, 28)]
    results = iter(only(host(calls, tier)))
    for kind, wanted in cases:
        limit = tolerance(tier, kind[0]) * float(np.abs(wanted).max())
        got = {n: next(results) for n in ROWS}
        for n, y in got.items():
            difference = float(np.abs(y - wanted[:n]).max())
            assert difference <= limit, f"{tier} {kind} {n} rows: off by {difference:g} > {limit:g}"
            same_bits(y, got[max(ROWS)][:n])
        for n in (1, 6, 28):
            same_bits(next(results), got[max(ROWS)][n : n + 1])


def check_blocks_of_k(host, tier, kit):
    """More of K than a block, and what the last block leaves."""
    for kind, width in ((QUANTISED[1], 2144), (QUANTISED[5], 1056), (FLOATING[2], 517)):
        attributes = attributes_for(kind, 32, width)
        given = weights(kind, 32, width)
        x = draw(40, width)
        counts = (1, 2, 40)
        results = only(host([linear_call(attributes, x[:n], given) for n in counts], tier))
        wanted = packed_linear(attributes, {"x": x, **given})
        assert np.abs(results[-1] - wanted).max() <= tolerance(tier, kind[0]) * np.abs(wanted).max()
        for n, y in zip(counts, results, strict=True):
            same_bits(y, results[-1][:n])


def check_integer_sums(host, tier, kit):
    """Scales of one and whole activations: results are whole numbers, the same in every tier.

    Half of the codes are the largest and smallest there are, against the largest activations.
    """
    for kind in (("u8", 32, np.float32, False), ("u4", 16, np.float32, True), QUANTISED[1]):
        attributes = attributes_for(kind, 48, 256)
        given = weights(kind, 48, 256, extreme=True)
        given["scales"] = np.ones_like(given["scales"])
        if "mins" in given:
            given["mins"] = np.full_like(given["mins"], -3)
        x = np.random.default_rng(2).integers(-127, 128, (7, 256)).astype(np.float32)
        x[:4] = 127
        x[1] = -127
        x[2, ::2] = -127
        x[3, 1::3] = -127
        x[:, ::32] = 127
        wanted = packed_linear(attributes, {"x": x, **given})
        assert (wanted == np.rint(wanted)).all()
        for count in (1, 2, 7):
            (y,) = only(host([linear_call(attributes, x[:count], given)], tier))
            same_bits(y + 0.0, wanted[:count] + 0.0)


def check_not_finite(host, tier, kit):
    for kind in (QUANTISED[1], FLOATING[2]):
        attributes = attributes_for(kind, 40, 256)
        given = weights(kind, 40, 256)
        x = draw(9, 256)
        spoilt = x.copy()
        spoilt[4, 100] = np.nan
        spoilt[5, 7] = np.inf
        clean, got = only(host([linear_call(attributes, a, given) for a in (x, spoilt)], tier))
        assert not np.isfinite(got[4:6]).any()
        rest = [0, 1, 2, 3, 6, 7, 8]
        same_bits(got[rest], clean[rest])


# ---- rows -------------------------------------------------------------------------------------


def check_embeddings(host, tier, kit):
    calls, wanted = [], []
    ids = np.array([0, 39, 17, 17, 8], dtype=np.int64)
    for kind in QUANTISED + FLOATING:
        attributes = attributes_for(kind, 40, 256)
        inputs = {"ids": ids, **weights(kind, 40, 256)}
        calls.append(call_of(PACKED_EMBEDDING, EMBEDDING_INPUTS, attributes, inputs))
        wanted.append(packed_embedding(attributes, inputs))
    for got, rows in zip(only(host(calls, tier)), wanted, strict=True):
        same_bits(got, rows)


def check_norms(host, tier, kit):
    calls, wanted = [], []
    generator = np.random.default_rng(3)
    for rows, width in ((1, 64), (5, 77), (33, 576)):
        x, skip = generator.standard_normal((2, rows, width), dtype=np.float32)
        gamma = generator.standard_normal(width, dtype=np.float32)
        inputs = {"x": x, "skip": skip, "gamma": gamma}
        calls.append(call_of(SKIP_RMS_NORM, NORM_INPUTS, NORM, inputs, outputs=(None, None)))
        wanted.append(skip_rms_norm(NORM, inputs))
    for (y, total), (norm, both) in zip(host(calls, tier), wanted, strict=True):
        assert np.abs(y - norm).max() <= 1e-6 * np.abs(norm).max()
        same_bits(total, both)


# ---- attention --------------------------------------------------------------------------------


def attention_call(attributes, inputs, threads=1):
    outputs = (None, "key_cache", "value_cache")
    return call_of(PAGED_ATTENTION, INPUTS, attributes, inputs, outputs=outputs, threads=threads)


def check_attention(host, tier, kit):
    requests = [kit.request(0, 5), kit.request(300, 1), kit.request(40, 21), kit.request(64, 1)]
    kinds = [
        (PagedAttentionAttributes(6, 2), {"head_size": 64}),
        (PagedAttentionAttributes(4, 1, do_rotary=1), {"head_size": 80, "norms": True}),
        (
            PagedAttentionAttributes(3, 3, do_rotary=1, rotary_interleaved=1, softcap=20.0),
            {"head_size": 128, "block_size": 32},
        ),
        (PagedAttentionAttributes(8, 2, local_window_size=48), {"head_size": 64, "sinks": True}),
    ]
    cases = []
    for seed, (attributes, options) in enumerate(kinds):
        inputs = kit.steps(seed).step(attributes, requests, **options)
        cases.append((attributes, inputs, paged_attention(attributes, inputs)))
    calls = [attention_call(a, i, threads) for a, i, _ in cases for threads in (1, 3)]
    results = iter(host(calls, tier))
    for _attributes, _inputs, wanted in cases:
        one, three = next(results), next(results)
        kit.close(one, wanted)
        for a, b in zip(one, three, strict=True):
            same_bits(a, b)


def check_attention_invariance(host, tier, kit):
    """Each request alone gives the bits it has in the batch."""
    attributes = PagedAttentionAttributes(6, 2, do_rotary=1)
    requests = [kit.request(270, 1), kit.request(3, 9), kit.request(0, 50)]
    inputs = kit.steps(9).step(attributes, requests)
    bounds = inputs["cumulative_sequence_length"]
    calls = [attention_call(attributes, inputs)]
    for r in range(len(requests)):
        part = slice(bounds[r], bounds[r + 1])
        alone = dict(inputs)
        for name in ("query", "key", "value", "slot_mapping"):
            alone[name] = inputs[name][part]
        alone["cumulative_sequence_length"] = np.array([0, requests[r].added], np.int32)
        for name in ("past_seqlens", "block_table"):
            alone[name] = inputs[name][r : r + 1]
        calls.append(attention_call(attributes, alone))
    together, *each = only(host(calls, tier))
    same_bits(together, np.concatenate(each))


# ---- sampler ----------------------------------------------------------------------------------


def sampler_call(rows=6, vocab=4099, top=3):
    """A greedy row and rows with cuts; the host adds raw log-probabilities."""
    generator = np.random.default_rng(5)
    logits = (generator.standard_normal((rows, vocab)) * 3).astype(np.float32)
    logits[1, 7] = logits[1, 9] = 30.0  # a tie
    raw = b""
    for i in range(rows):
        row = SampleRow()
        row.inverse_temperature = 0.0 if i < 2 else 1.0 / (0.5 + 0.25 * i)
        row.log_min_p = -math.inf if i != 3 else math.log(0.02)
        row.top_p = 0.9 if i == 4 else 1.0
        row.top_k = 40 if i == 5 else 0
        row.repetition_penalty = 1.0
        row.seed, row.position = 11 * i, i
        raw += bytes(ctypes.string_at(ctypes.addressof(row), ctypes.sizeof(row)))
    packed = np.frombuffer(raw, np.uint8).reshape(rows, ctypes.sizeof(SampleRow))
    return Call(
        "sampler", ("logits", "rows"), {"top": top}, {"logits": logits, "rows": packed.copy()},
        outputs=("rows", None),
    )  # fmt: skip


def check_sampler(host, tier, kit):
    """Tokens that argmax gives, no row refused; all bits are those of the portable tier."""
    call = sampler_call()
    (rows, values), (rows_again, values_again) = host([call], tier) + host([call], "portable")
    assert (rows == rows_again).all()
    same_bits(values, values_again)
    got = [SampleRow.from_buffer_copy(row.tobytes()) for row in rows]
    assert [row.status for row in got] == [0] * len(got)
    logits = call.inputs["logits"]
    assert [row.token for row in got[:2]] == logits[:2].argmax(axis=1).tolist()
    raw = values.view(np.float64)[0, 0]
    row = logits[0].astype(np.float64)
    wanted = row.max() - np.log(np.exp(row - row.max()).sum()) - row.max()
    assert abs(raw - wanted) < 1e-6
    return rows, values


# ---- refusals ---------------------------------------------------------------------------------


def check_refusals(host, tier, kit):
    attributes = attributes_for(QUANTISED[1], 40, 64)
    given = weights(QUANTISED[1], 40, 64)
    x = draw(2, 96)
    (refused,) = host([linear_call(attributes, x, given)], tier)
    assert isinstance(refused, OpRefused)
    assert "x has shape [2, 96], but must be [any, 64]" in str(refused)


CHECKS = (
    check_linears,
    check_blocks_of_k,
    check_integer_sums,
    check_not_finite,
    check_embeddings,
    check_norms,
    check_attention,
    check_attention_invariance,
    check_sampler,
    check_refusals,
)
