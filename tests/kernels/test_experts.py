"""PackedExperts and ExpertRouting of the library: numbers, bits, and which weights are read."""

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from expert_cases import FORMS, INNER, U4, WIDTH, case, experts_of, form_id, routes, rows_of
from packed_cases import MATRIX, check, draw, same_bits

from ortloom.kernels.experts_contract import (
    EXPERT_ROUTING,
    EXPERTS_INPUTS,
    PACKED_EXPERTS,
    ROUTING_INPUTS,
    ExpertsAttributes,
    RoutingAttributes,
)
from ortloom.kernels.experts_reference import expert_routing, packed_experts

ROUTED = {"ids": ("int64", 2), "weights": MATRIX}
FLOAT = FORMS[4]
COUNTS = (1, 2, 3, 5, 16, 40, 130)


@pytest.fixture
def experts(run_node, tier):
    def call(attributes, inputs, **options):
        options.setdefault("tier", tier)
        return run_node(
            PACKED_EXPERTS, EXPERTS_INPUTS, {"y": MATRIX}, attributes, inputs, **options
        )[0]

    return call


# ---- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_agrees_with_the_oracle(experts, form):
    attributes, inputs = case(form, max(COUNTS))
    wanted = packed_experts(attributes, inputs)
    for count in COUNTS:
        rows = np.arange(count)
        check(experts(attributes, rows_of(inputs, rows), threads=2), wanted[:count])


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_any_number_of_slots(experts, slots):
    attributes, inputs = case(FLOAT, 20)
    inputs |= routes(20, slots=slots)
    check(experts(attributes, inputs), packed_experts(attributes, inputs))


def test_an_expert_may_be_named_twice_and_all_tokens_may_name_one(experts):
    attributes, inputs = case(FLOAT, 30)
    inputs["ids"][:] = 5
    check(experts(attributes, inputs), packed_experts(attributes, inputs))


def test_no_tokens(experts):
    for form in (U4, U4, "silu"), FLOAT:
        attributes, inputs = case(form, 2)
        assert experts(attributes, rows_of(inputs, slice(0, 0))).shape == (0, WIDTH)


def test_widths_that_fill_no_panel(experts):
    """Neither the last panel of the down projections nor an odd number of panels hurts."""
    attributes, inputs = case(FLOAT, 9, width=77, inner=48)
    check(experts(attributes, inputs), packed_experts(attributes, inputs))


# ---- which weights are read -------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS[:5], ids=form_id)
def test_weights_of_experts_that_no_token_names_do_not_matter(experts, form):
    attributes, inputs = case(form, 12)
    inputs["ids"] %= 3
    wanted = experts(attributes, inputs)
    spoiled = dict(inputs)
    for name in set(inputs) - {"x", "ids", "weights"}:
        array = inputs[name].copy()
        array[3:] = np.nan if array.dtype.kind == "f" else 255
        spoiled[name] = array
    same_bits(experts(attributes, spoiled), wanted)
    spoiled["ids"] = inputs["ids"].copy()
    spoiled["ids"][0, 0] = 3
    assert (experts(attributes, spoiled)[0] != wanted[0]).any(), "the spoiled weights must show"


# The weights lie in memory of which the pages of experts 2 and 3 may not be read at all.
FORBIDDEN_PAGES = """
import ctypes, mmap, sys
import numpy as np
import onnxruntime as ort
from ortloom.kernels import load, team
from ortloom.kernels.experts_contract import EXPERTS_INPUTS, PACKED_EXPERTS
from ortloom.kernels.probe_model import one_node_model

spare = int(sys.argv[1])
attributes = dict(experts=4, K=64, I=64, gate_up_format="f32", down_format="f32",
                  gate_up_block_size=0, down_block_size=0, activation="silu")
libc = ctypes.CDLL(None, use_errno=True)
arrays, maps = {}, []
for name, shape in (("gate_up", (4, 8, 64, 16)), ("down", (4, 4, 64, 16))):
    size = int(np.prod(shape)) * 4
    held = mmap.mmap(-1, size)
    maps.append(held)
    array = np.frombuffer(held, dtype=np.float32).reshape(shape)
    array[:] = 0.01
    arrays[name] = array
    address = ctypes.c_void_p(array.ctypes.data + size // 2)
    assert size // 4 % mmap.PAGESIZE == 0
    assert libc.mprotect(address, ctypes.c_size_t(size // 2), 0) == 0
arrays["x"] = np.ones((3, 64), np.float32)
arrays["ids"] = np.array([[0, 1], [1, 0], [0, spare]])
arrays["weights"] = np.full((3, 2), 0.5, np.float32)
types = {name: (array.dtype.name, array.ndim) for name, array in arrays.items()}
options = ort.SessionOptions()
load.register(options)
session = ort.InferenceSession(
    one_node_model(PACKED_EXPERTS, attributes, EXPERTS_INPUTS, types, {"y": ("float32", 2)}),
    options, providers=["CPUExecutionProvider"])
team.configure(2, 50)
values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
y = session.run_with_ort_values(None, values)[0].numpy()
assert np.isfinite(y).all()
print("done", flush=True)
"""


@pytest.mark.parametrize(("named", "survives"), [(1, True), (2, False)])
def test_pages_of_experts_that_no_token_names_are_never_touched(named, survives):
    """A read of such a page kills the process: shown by naming such an expert."""
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN_PAGES, str(named)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ("done" in done.stdout) == survives, done.stderr
    assert (done.returncode == 0) == survives


# ---- bits -------------------------------------------------------------------------------------


def assert_batch_invariant(call, attributes, inputs, parts):
    """Every token has the bits it has alone, in each of the batches."""
    count = len(inputs["x"])
    alone = np.concatenate(
        [call(attributes, rows_of(inputs, slice(i, i + 1))) for i in range(count)]
    )
    for part in parts:
        got = call(attributes, rows_of(inputs, part))
        wrong = (got.view(np.uint32) != alone[part].view(np.uint32)).any(axis=1)
        assert not wrong.any(), f"tokens {part} differ from the tokens alone"


def batches(count, seed, number):
    """Random choices of tokens in random order, and the whole."""
    generator = np.random.default_rng(seed)
    yield np.arange(count)
    for size in (2, 3, 7, 13, count // 2, count - 1, *generator.integers(2, count, number)):
        yield generator.permutation(count)[:size]


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_a_token_has_the_same_bits_in_any_batch(experts, form):
    attributes, given = experts_of(form)
    inputs = {"x": draw(150, WIDTH), **routes(150), **given}
    assert_batch_invariant(experts, attributes, inputs, batches(150, 1, 4))


@pytest.mark.parametrize("form", [FORMS[0], FORMS[2], FLOAT, FORMS[8]], ids=form_id)
def test_any_number_of_threads_gives_the_same_bits(experts, form):
    attributes, given = experts_of(form, width=256, inner=192)
    inputs = {"x": draw(210, 256), **routes(210), **given}
    for count in (1, 2, 13, 210):
        part = rows_of(inputs, slice(0, count))
        one = experts(attributes, part, threads=1)
        for threads in (2, 3, 4):
            same_bits(experts(attributes, part, threads=threads), one)


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("form", [FORMS[0], FLOAT], ids=form_id)
def test_a_value_that_is_not_finite_stays_in_its_row(experts, form, value):
    attributes, given = experts_of(form)
    inputs = {"x": draw(9, WIDTH), **routes(9), **given}
    clean = experts(attributes, inputs)
    inputs["x"][4, 100] = value
    got = experts(attributes, inputs)
    assert not np.isfinite(got[4]).any()
    rest = np.arange(9) != 4
    same_bits(got[rest], clean[rest])


# Right in value, but in calls of more than four tokens the last slot is added first.
MUTANT = (
    "for (int64_t slot = 0; slot < slots; ++slot) {",
    "for (int64_t turn = 0; turn < slots; ++turn) {\n"
    "          const int64_t slot = tokens > 4 ? slots - 1 - turn : turn;\n"
    "          const bool begins = turn == 0;",
    "if (slot == 0) {",
    "if (begins) {",
)


@pytest.mark.unsanitized
def test_the_bitwise_suite_fails_on_a_mutant(run_node, compile_mutant, monkeypatch):
    monkeypatch.delenv("ORTLOOM_CPU_ISA", raising=False)
    library = compile_mutant("slot_order", "packed_experts.cc", *MUTANT)

    def call(attributes, inputs):
        return run_node(
            PACKED_EXPERTS, EXPERTS_INPUTS, {"y": MATRIX}, attributes, inputs, library=library
        )[0]

    attributes, inputs = case(FLOAT, 20)
    inputs |= routes(20, slots=4)
    check(call(attributes, inputs), packed_experts(attributes, inputs))
    few = rows_of(inputs, slice(0, 4))
    assert_batch_invariant(call, attributes, few, [np.arange(4), np.array([2, 0])])
    with pytest.raises(AssertionError, match="differ from the tokens alone"):
        assert_batch_invariant(call, attributes, inputs, [np.arange(20)])


# ---- refusals ---------------------------------------------------------------------------------

GOOD = ExpertsAttributes(8, WIDTH, INNER, "u4", "u4", 32, 32)


def refused(run_node, text, attributes, inputs):
    with pytest.raises(Exception, match=rf"ortloom::PackedExperts: .*{text}"):
        run_node(PACKED_EXPERTS, EXPERTS_INPUTS, {"y": MATRIX}, attributes, inputs)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"experts": 0}, "experts = 0 must be 1 to 65536"),
        ({"experts": 1 << 20}, "experts = 1048576 must be 1 to 65536"),
        ({"K": 0}, "K = 0 must be 1 to"),
        ({"I": -16}, "I = -16 must be 1 to"),
        (
            {"I": 104, "down_format": "f32", "down_block_size": 0},
            "I = 104 must be a multiple of 16",
        ),
        ({"gate_up_format": "u3"}, 'gate_up: format "u3" is unknown'),
        ({"down_block_size": 0}, "down: block_size = 0 is not one of"),
        ({"down_block_size": 64}, "down: K = 96 must be a multiple of 32 and of block_size = 64"),
        ({"activation": ""}, "activation is empty"),
        ({"activation": "relu"}, 'activation "relu" is unknown'),
    ],
)
def test_wrong_attributes(run_node, change, text):
    attributes, inputs = case(FORMS[0], 2)
    assert attributes == GOOD
    refused(run_node, text, replace(attributes, **change), inputs)


@pytest.mark.parametrize(
    ("name", "edit", "text"),
    [
        ("x", lambda a: a[:, :64], r"x has shape \[5, 64\], but must be \[any, 128\]"),
        ("ids", lambda a: a[:4], r"ids has shape \[4, 2\], but must be \[5, any\]"),
        ("ids", lambda a: a[:, :1], r"weights has shape \[5, 2\], but must be \[5, 1\]"),
        ("weights", lambda a: a[:, 0], r"weights has shape \[5\]"),
        ("gate_up", lambda a: a[:7], r"gate_up: a weight input has shape \[7, .* with 8 experts"),
        ("gate_up", lambda a: a[:, :3], r"gate_up, of each expert: weight has shape \[3, 16"),
        ("gate_up_scales", lambda a: a[:7], "must begin with 8 experts"),
        ("down_scales", lambda a: a[..., :8], "down, of each expert: scales has shape"),
        ("down_scales", lambda a: a.astype(np.int32), "scales is int32"),
        ("down", lambda a: a.astype(np.float32), "down, of each expert: weight is float32"),
        ("ids", lambda a: a - 8, r"ids\[0, 0\] = -\d is outside 0 .. 7"),
    ],
)
def test_wrong_tensors(run_node, name, edit, text):
    attributes, inputs = case(FORMS[0], 5)
    inputs[name] = np.ascontiguousarray(edit(inputs[name]))
    refused(run_node, text, attributes, inputs)


@pytest.mark.parametrize("wrong", [-1, 8, 1 << 40])
def test_an_id_out_of_range_is_refused_before_anything_is_computed(run_node, wrong):
    attributes, inputs = case(FORMS[0], 5)
    inputs["ids"][4, 1] = wrong
    refused(run_node, rf"ids\[4, 1\] = {wrong} is outside 0 .. 7", attributes, inputs)


def test_missing_and_superfluous_scales(run_node):
    attributes, inputs = case(FORMS[0], 5)
    scales = inputs.pop("down_scales")
    refused(run_node, "down, of each expert: scales is missing", attributes, inputs)
    attributes, inputs = case(FLOAT, 5)
    inputs["down_scales"] = scales
    refused(run_node, "format f32 has neither scales", attributes, inputs)


# ---- routing ----------------------------------------------------------------------------------


def route(run_node, logits, top_k, normalize, **options):
    attributes = RoutingAttributes(top_k, normalize)
    got = run_node(
        EXPERT_ROUTING, ROUTING_INPUTS, ROUTED, attributes, {"logits": logits}, **options
    )
    return attributes, got


def logits_of(tokens, experts, seed=5):
    return np.random.default_rng(seed).standard_normal((tokens, experts), np.float32) * 3


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (128, 8), (60, 4), (1, 1), (5, 5)])
def test_routing_agrees_with_the_oracle(run_node, experts, top_k, normalize):
    logits = logits_of(200, experts)
    attributes, (ids, weights) = route(run_node, logits, top_k, normalize, threads=2)
    wanted = expert_routing(attributes, {"logits": logits})
    np.testing.assert_array_equal(ids, wanted[0])
    np.testing.assert_allclose(weights, wanted[1], rtol=2e-7)
    if normalize:
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)


def test_equal_logits_go_to_the_lower_expert(run_node):
    logits = np.zeros((3, 16), np.float32)
    logits[1, [3, 9, 12]] = 1
    logits[2, ::2] = -1
    _, (ids, weights) = route(run_node, logits, 4, 1)
    assert ids.tolist() == [[0, 1, 2, 3], [3, 9, 12, 0], [1, 3, 5, 7]]
    assert (weights[0] == 0.25).all()


@pytest.mark.parametrize("normalize", [0, 1])
def test_logits_that_are_no_numbers_stay_in_their_row(run_node, normalize):
    logits = logits_of(6, 8)
    clean = route(run_node, logits, 3, normalize)[1]
    logits[1, 0], logits[2], logits[3, 4] = np.nan, np.nan, np.inf
    logits[4] = -np.inf
    _, (ids, weights) = route(run_node, logits, 3, normalize)
    assert ((ids >= 0) & (ids < 8)).all()
    assert 0 not in ids[1]
    assert not np.isfinite(weights[[1, 2, 4]]).any()
    assert np.isnan(weights[3, 0])
    for got, old in zip((ids, weights), clean, strict=True):
        np.testing.assert_array_equal(got[[0, 5]], old[[0, 5]])


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_routing_of_a_token_is_the_same_in_any_batch(run_node, threads):
    logits = logits_of(300, 128)
    whole = route(run_node, logits, 8, 1, threads=threads)[1]
    for begin, end in itertools.pairwise([0, 1, 2, 5, 64, 129, 300]):
        part = route(run_node, logits[begin:end], 8, 1, threads=threads)[1]
        for got, wanted in zip(part, whole, strict=True):
            np.testing.assert_array_equal(got, wanted[begin:end])
    assert [a.shape for a in route(run_node, logits[:0], 8, 1)[1]] == [(0, 8), (0, 8)]


@pytest.mark.parametrize(
    ("attributes", "logits", "text"),
    [
        (RoutingAttributes(0), logits_of(2, 8), "top_k = 0 must be at least 1"),
        (RoutingAttributes(2, 3), logits_of(2, 8), "normalize = 3 must be 0 or 1"),
        (RoutingAttributes(9), logits_of(2, 8), r"logits has shape \[2, 8\], but top_k = 9"),
        (RoutingAttributes(2), logits_of(2, 8)[0], r"logits has shape \[8\]"),
    ],
)
def test_wrong_routings(run_node, attributes, logits, text):
    with pytest.raises(Exception, match=rf"ortloom::ExpertRouting: .*{text}"):
        run_node(EXPERT_ROUTING, ROUTING_INPUTS, ROUTED, attributes, {"logits": logits})
