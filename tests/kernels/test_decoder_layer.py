"""A layer as one node is its seven ops bit by bit, and refuses what they refuse."""

import dataclasses

import numpy as np
import pytest
from layer_cases import (
    BF16,
    F16,
    F32,
    HIDDEN,
    U4,
    U4_MINIMA,
    U8,
    Layer,
    assert_same,
    layer_inputs,
    run_bound_layer,
)
from packed_cases import check

from ortloom.kernels.contract import (
    HEAD_MAJOR_LAYOUT,
    POOL_OPS,
    POOLS,
    PagedAttentionAttributes,
)
from ortloom.kernels.layer_contract import LAYER_INPUTS, layer_name

# A prefill, a decode step, and one whose keys are read in partitions by several tasks.
MIXED = ((0, 5), (37, 1), (600, 1))
# Rows for several tasks of the norms and of each linear's first phase.
MANY = ((0, 190), (63, 2), (600, 1))


def heads(*counts, **attributes):
    return PagedAttentionAttributes(*counts, kv_layout=HEAD_MAJOR_LAYOUT, **attributes)


CASES = {
    "u4": Layer(),
    "u4 minima, bias": Layer((U4_MINIMA,) * 4, bias=True),
    "u8, gelu": Layer((U8,) * 4, activation="gelu"),
    "f32, no skip": Layer((F32,) * 4, skip=False),
    "f16, gelu_tanh, bias": Layer((F16,) * 4, activation="gelu_tanh", bias=True),
    "bf16": Layer((BF16,) * 4),
    "mixed matrices": Layer((U8, F32, U4, U4_MINIMA), skip=False),
    "norms, sinks, window": Layer(
        (U4, U8, U4, U8),
        heads(6, 2, do_rotary=1, local_window_size=19, softcap=9.0, qk_norm_epsilon=0.1),
        features=("norms", "sinks"),
    ),
    "one kv head, no rotary": Layer((U4,) * 4, heads(3, 1, is_causal=0, scale=0.2)),
    "f16 pools": Layer(pools="float16", bias=True),
    "bf16 pools": Layer(pools="bfloat16", form=1),
    "int8 pools": Layer(pools="int8", form=3),
}


@pytest.fixture
def draw(steps, request_of):
    def make(layer, requests=MIXED, seed=0, **kinds):
        return layer_inputs(steps, layer, [request_of(*r) for r in requests], seed, **kinds)

    return make


@pytest.mark.parametrize("case", CASES)
def test_one_node_gives_the_bits_of_seven(case, draw, run_layer, run_chain, tier):
    layer = CASES[case]
    inputs = draw(layer)
    inputs["slot_mapping"][1] = -1
    inputs["block_table"][1, 0] = -1
    wanted = run_chain(layer, inputs, tier)
    assert np.isfinite(wanted[0]).all()
    assert np.abs(wanted[0]).max() > 0.01
    for threads in (1, 2, 3):
        assert_same(run_layer(layer, inputs, threads, tier), wanted)


@pytest.mark.parametrize("case", ["u4", "f32, no skip", "int8 pools"])
def test_many_rows(case, draw, run_layer, run_chain):
    layer = CASES[case]
    inputs = draw(layer, MANY)
    wanted = run_chain(layer, inputs)
    for threads in (1, 3):
        assert_same(run_layer(layer, inputs, threads), wanted)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 17])
def test_every_number_of_decode_rows(count, draw, run_layer, run_chain):
    """One and two rows take other phases than more."""
    layer = CASES["u4"]
    inputs = draw(layer, [(7 * r + 3, 1) for r in range(count)])
    assert_same(run_layer(layer, inputs, 2), run_chain(layer, inputs))


def test_a_step_without_rows(draw, run_layer):
    layer = CASES["u4"]
    inputs = draw(layer, ((4, 0),))
    y, total, *pools = run_layer(layer, inputs)
    assert y.shape == total.shape == (0, HIDDEN)
    assert all(np.array_equal(p, inputs[n]) for n, p in zip(POOLS, pools, strict=False))


def test_the_forms_of_a_name_are_the_same_kernel(draw, run_layer):
    layer = CASES["u4"]
    inputs = draw(layer)
    wanted = run_layer(layer, inputs)
    for form in (1, 2, 3):
        assert_same(run_layer(dataclasses.replace(layer, form=form), inputs), wanted)


# ---- a row and its batch ------------------------------------------------------------------------


def part_of(inputs, chosen):
    """The call of some requests of another, in that order."""
    ends = inputs["cumulative_sequence_length"]
    spans = [slice(ends[r], ends[r + 1]) for r in chosen]
    rows = np.concatenate([np.arange(s.start, s.stop) for s in spans])
    made = dict(inputs)
    for name in ("x", "skip", "slot_mapping"):
        made[name] = inputs[name][rows]
    lengths = [s.stop - s.start for s in spans]
    made["cumulative_sequence_length"] = np.cumsum([0, *lengths], dtype=np.int32)
    for name in ("past_seqlens", "block_table"):
        made[name] = inputs[name][list(chosen)]
    return made, rows


@pytest.mark.parametrize("case", ["u4", "u4 minima, bias", "norms, sinks, window", "bf16 pools"])
def test_a_request_gives_the_same_bits_in_any_batch(case, draw, run_layer):
    layer = CASES[case]
    requests = [(0, 9), (600, 1), (17, 1), (255, 3), (64, 16), (5, 1), (31, 2), (300, 1)]
    inputs = draw(layer, requests)
    whole = run_layer(layer, inputs)
    generator = np.random.default_rng(5)
    for threads in (1, 2, 3):
        for _ in range(6):
            count = generator.integers(1, len(requests) + 1)
            chosen = generator.permutation(len(requests))[:count]
            part, rows = part_of(inputs, chosen)
            y, total, *pools = run_layer(layer, part, threads)
            assert_same((y, total), [array[rows] for array in whole[:2]])
            for name, pool, wanted in zip(POOLS, pools, whole[2:], strict=False):
                blocks = np.unique(part["block_table"])
                blocks = blocks[blocks >= 0]
                assert np.array_equal(pool[blocks], wanted[blocks]), name


# ---- a changed library --------------------------------------------------------------------------

STORE = "phases.add(attention->store_tasks(), store, weights(1));"
ATTEND = "phases.add(attention->tasks(), attend, weights(1));"
MUTANTS = {
    "no change": ("rows(count), share(", "rows(count), share("),
    "the first norm's epsilon twice": (
        "normed, sum, width, mlp_epsilon_}",
        "normed, sum, width, attention_epsilon_}",
    ),
    "attention before its keys are stored": (
        STORE + "\n    " + ATTEND,
        ATTEND + "\n    " + STORE,
    ),
}


@pytest.mark.unsanitized
def test_changed_kernels_are_noticed(draw, run_layer, run_chain, compile_mutant, monkeypatch):
    monkeypatch.delenv("ORTLOOM_CPU_ISA", raising=False)
    layer = CASES["u4"]
    inputs = draw(layer)
    wanted = run_chain(layer, inputs, "portable")
    for name, (old, new) in MUTANTS.items():
        library = compile_mutant(name.replace(" ", "_"), "decoder_layer.cc", old, new)
        got = run_layer(layer, inputs, library=library)
        if name == "no change":
            assert_same(got, wanted)
            continue
        with pytest.raises(AssertionError, match="differs"):
            assert_same(got, wanted)


# ---- refusals -----------------------------------------------------------------------------------


@pytest.fixture
def refused(draw, run_layer):
    """Checks that a call is refused with that text and leaves the pools as they were."""

    def make(text, edit, layer=CASES["u4"], apart=()):
        inputs = draw(layer)
        session = run_layer.session(layer, inputs)
        edit(inputs)
        before = {name: inputs[name].copy() for name in POOLS if name in inputs}
        kind = layer_name(POOL_OPS[layer.pools], 0)
        with pytest.raises(Exception, match=f"ortloom::{kind}: .*{text}"):
            run_bound_layer(session, inputs, apart)
        for name, pool in before.items():
            assert np.array_equal(inputs[name], pool), name

    return make


def cut(name, change=lambda array: array[:-1]):
    def edit(inputs):
        inputs[name] = np.ascontiguousarray(change(inputs[name]))

    return edit


def narrow_x(inputs):
    cut("x", lambda array: array[:, :-1])(inputs)


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        (r"x has shape \[7, 95\], but must be \[any, 96\] \(\[T, K\]\)", narrow_x),
        (r"skip has shape \[6, 96\], but must be \[7, 96\] \(\[T, K\]\)", cut("skip")),
        (r"attention_gamma has shape \[95\], but must be \[96\] \(\[K\]\)", cut("attention_gamma")),
        (r"mlp_gamma has shape \[95\], but must be \[96\] \(\[K\]\)", cut("mlp_gamma")),
        (r"qkv_weight has shape", cut("qkv_weight")),
        (r"o_scales has shape", cut("o_scales")),
        (r"gate_up_weight has shape", cut("gate_up_weight")),
        (r"down_scales has shape", cut("down_scales")),
        (r"slot_mapping has shape \[6\]", cut("slot_mapping")),
        (r"value_cache has shape .*as in key_cache", cut("value_cache")),
        (r"slot_mapping\[\d\] = \d+ is outside", cut("slot_mapping", lambda a: a + 100_000)),
        (r"past_seqlens\[0\] = -1 is negative", cut("past_seqlens", lambda a: a * 0 - 1)),
    ],
)  # fmt: skip
def test_wrong_tensors(text, edit, refused):
    refused(text, edit)


def test_a_wrong_bias_names_its_matrix(refused):
    for prefix, size in (("qkv", 512), ("o", 96), ("gate_up", 320), ("down", 96)):
        name = f"{prefix}_bias"
        text = rf"{name} has shape \[{size - 1}\], but must be \[{size}\] \(\[N\]\)"
        refused(text, cut(name), CASES["u4 minima, bias"])


@pytest.mark.parametrize("case", ["u4", "f16 pools", "bf16 pools", "int8 pools"])
def test_every_pool_must_be_bound_in_place(case, draw, refused):
    layer = CASES[case]
    for name in [n for n in POOLS if n in draw(layer)]:
        refused("bind one OrtValue as input and as output", lambda i: None, layer, (name,))


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("activation is missing", {"activation": None}),
        ("activation is missing", {"activation": ""}),
        ("gate_up_K = 128, but qkv_K is 96", {"gate_up_K": 128}),
        ("o_N = 112, but qkv_K is 96", {"o_N": 112}),
        ("down_N = 97, but qkv_K is 96", {"down_N": 97}),
        ("down_K = 192, but gate_up_N / 2 is 160", {"down_K": 192}),
        ("epsilons must be finite and not negative", {"mlp_norm_epsilon": -1.0}),
        ("epsilons must be finite and not negative", {"attention_norm_epsilon": float("nan")}),
        ('qkv_format "" is unknown', {"qkv_format": None}),
        ('o_format "u5" is unknown; choices: f32', {"o_format": "u5"}),
        ("down_N = 0 and down_K = 160 must be 1 to", {"down_N": 0}),
        ("gate_up_block_size = 48 is not one of 16", {"gate_up_block_size": 48}),
        ("down_K = 168 must be a multiple of 32 and of block_size = 32", {"down_K": 168}),
        ("qkv_block_size = 32, but format f16 has no blocks", {"qkv_format": "f16"}),
        ("gate_up_N = 336 must be a multiple of 32", {"gate_up_N": 336}),
        ("positive multiple of kv_num_heads", {"kv_num_heads": 3}),
    ],
)
def test_wrong_attributes_stop_the_session(text, changes, draw, run_layer):
    layer = Layer(changes=tuple(changes.items()))
    with pytest.raises(Exception, match=f"ortloom::DecoderLayer: .*{text}"):
        run_layer.session(layer, draw(layer))


def test_a_projection_of_other_heads_is_refused(draw, run_layer):
    """Its width is known with the pools only."""
    wide = Layer(attention=heads(5, 1, do_rotary=1))
    narrow = Layer(attention=heads(3, 1, do_rotary=1))
    inputs = {**draw(narrow), **{n: a for n, a in draw(wide).items() if n.startswith("o_")}}
    mixed = dataclasses.replace(wide, changes=(("num_heads", 3), ("qkv_N", 320)))
    with pytest.raises(Exception, match=r"o_K = 320, but num_heads \* head size is 192"):
        run_layer(mixed, inputs)


@pytest.mark.parametrize(
    "name", ["x", "attention_gamma", "mlp_gamma", "qkv_weight", "slot_mapping"]
)
def test_a_missing_input_is_refused(name, draw, run_layer):
    layer = CASES["u4"]
    rest = {n: a for n, a in draw(layer).items() if n != name}
    place = f"input {LAYER_INPUTS.index(name)} is marked single but has an empty string"
    with pytest.raises(Exception, match=place):
        run_layer.session(layer, rest)


def test_int8_pools_need_their_scales(draw, run_layer):
    layer = CASES["int8 pools"]
    inputs = draw(layer)
    rest = {n: a for n, a in inputs.items() if n not in ("k_scale", "v_scale")}
    with pytest.raises(Exception, match=r"output size 4 not in range"):
        run_layer(layer, rest)


def test_the_session_works_on_after_an_error(draw, run_layer):
    layer = CASES["u4"]
    inputs = draw(layer)
    good = run_layer(layer, inputs)
    with pytest.raises(Exception, match="slot_mapping"):
        run_layer(layer, {**inputs, "slot_mapping": inputs["slot_mapping"] + 100_000})
    assert_same(run_layer(layer, inputs), good)


def test_the_reference_is_not_the_layer_itself(draw, run_chain):
    """The chain agrees with a change of one weight only within what that weight is worth."""
    layer = CASES["f32, no skip"]
    inputs = draw(layer)
    wanted = run_chain(layer, inputs)
    changed = {**inputs, "mlp_gamma": inputs["mlp_gamma"] * np.float32(1.01)}
    with pytest.raises(AssertionError):
        check(run_chain(layer, changed)[0], wanted[0])
