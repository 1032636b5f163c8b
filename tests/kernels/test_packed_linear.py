"""PackedLinear of the library: its numbers, and the same bits in any batch."""

import itertools

import numpy as np
import pytest
from packed_cases import (
    FLOATING,
    MATRIX,
    QUANTISED,
    ROWS,
    attributes_for,
    check,
    draw,
    same_bits,
    tolerance,
    weights,
)

from ortloom.kernels import team
from ortloom.kernels.packed_contract import LINEAR_INPUTS, PACKED_LINEAR, PackedAttributes
from ortloom.kernels.packed_reference import packed_linear
from ortloom.kernels.packing import pack_float


@pytest.fixture
def linear(run_node, tier):
    def call(attributes, inputs, **options):
        options.setdefault("tier", tier)
        return run_node(PACKED_LINEAR, LINEAR_INPUTS, {"y": MATRIX}, attributes, inputs, **options)[
            0
        ]

    return call


# ---- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", QUANTISED + FLOATING, ids=lambda k: f"{k[0]}-{k[1]}")
@pytest.mark.parametrize(
    ("rows", "activation", "bias"),
    [
        (40, "", False),
        (16, "", True),
        (96, "silu", False),
        (32, "gelu", True),
        (64, "gelu_tanh", True),
    ],
)
def test_agrees_with_the_oracle(linear, tier, kind, rows, activation, bias):
    width = 256 if kind[1] else 77
    attributes = attributes_for(kind, rows, width, activation)
    given = weights(kind, rows, width, bias=bias)
    x = draw(max(ROWS), width)
    wanted = packed_linear(attributes, {"x": x, **given})
    for count in ROWS:
        got = linear(attributes, {"x": x[:count], **given}, threads=2)
        check(got, wanted[:count], tolerance(tier, kind[0]))


@pytest.mark.parametrize("kind", [QUANTISED[1], QUANTISED[5]], ids=lambda k: k[0])
def test_blocks_of_k_that_do_not_divide_it(linear, kind):
    attributes = attributes_for(kind, 32, 2 * 1024 + 96)
    given = weights(kind, 32, attributes.K)
    x = draw(40, attributes.K)
    check(linear(attributes, {"x": x, **given}), packed_linear(attributes, {"x": x, **given}))


@pytest.mark.parametrize("copies", [1, 2, 6])
@pytest.mark.parametrize("kind", QUANTISED, ids=lambda k: f"{k[0]}-{k[1]}")
def test_the_largest_codes_do_not_saturate(linear, kind, copies):
    """Every activation at its largest magnitude against runs of the extreme codes, in calls of one
    tile, of a few and of so many that nibbles are spread to bytes first."""
    attributes = attributes_for(kind, 48, 256)
    given = weights(kind, 48, 256, extreme=True)
    x = np.ones((4, 256), dtype=np.float32)
    x[1] = -1
    x[2, ::2] = -1
    x[3, 1::3] = -1
    wanted = packed_linear(attributes, {"x": x, **given})
    got = linear(attributes, {"x": np.tile(x, (copies, 1)), **given})
    check(got, np.tile(wanted, (copies, 1)))


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_activations_from_end_to_end(linear, activation):
    """W is an identity and a row of ones, so that y is act(x) itself, over all magnitudes."""
    attributes = PackedAttributes("f32", 32, 17, 0, activation)
    gate = np.zeros((16, 17), dtype=np.float32)
    np.fill_diagonal(gate, 1)
    up = np.zeros((16, 17), dtype=np.float32)
    up[:, 16] = 1
    size = 16 * 500
    values = np.sort(np.concatenate([np.linspace(-12, 12, size - 32), np.logspace(-20, 30, 32)]))
    x = np.ones((500, 17), dtype=np.float32)
    x[:, :16] = values.reshape(500, 16)
    weight = pack_float(np.concatenate([gate, up]), "f32")
    got = linear(attributes, {"x": x, "weight": weight})
    wanted = packed_linear(attributes, {"x": x, "weight": weight})
    difference = np.abs(got.astype(np.float64) - wanted)
    assert (difference <= 4e-7 * np.abs(wanted) + 1e-7 * np.minimum(np.abs(x[:, :16]), 1)).all()


def test_no_rows(linear):
    for kind in (QUANTISED[1], FLOATING[0]):
        attributes = attributes_for(kind, 40, 64)
        got = linear(attributes, {"x": np.zeros((0, 64), np.float32), **weights(kind, 40, 64)})
        assert got.shape == (0, 40)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    "kind",
    [QUANTISED[1], QUANTISED[6], FLOATING[0], FLOATING[2]],
    ids=lambda k: f"{k[0]}-{k[1]}",
)
def test_a_value_that_is_not_finite_stays_in_its_row(linear, kind, value):
    attributes = attributes_for(kind, 40, 256)
    given = weights(kind, 40, 256)
    x = draw(9, 256)
    clean = linear(attributes, {"x": x, **given})
    x[4, 100] = value
    got = linear(attributes, {"x": x, **given})
    assert not np.isfinite(got[4]).any()
    rest = np.arange(9) != 4
    same_bits(got[rest], clean[rest])


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-30, 1e30, 3e38])
def test_very_small_and_very_large_activations(linear, size):
    kind = ("u8", 32, np.float32, False)
    attributes = attributes_for(kind, 16, 32)
    given = weights(kind, 16, 32)
    given["scales"] = np.full_like(given["scales"], 2**-20)
    x = np.linspace(-1, 1, 32, dtype=np.float32)[None] * np.float32(size)
    with np.errstate(all="ignore"):
        wanted = packed_linear(attributes, {"x": x, **given})
    got = linear(attributes, {"x": x, **given})
    assert np.allclose(got, wanted, rtol=5e-6, atol=1e-44)


def test_tiers_of_one_machine_agree_in_integer_sums(run_node):
    """With a scale of 1 and whole activations the results are whole: equal in every tier."""
    from ortloom.kernels.isa import isa_report

    kind = ("u8", 32, np.float32, False)
    attributes = attributes_for(kind, 32, 256)
    given = weights(kind, 32, 256)
    given["scales"] = np.ones_like(given["scales"])
    x = np.random.default_rng(2).integers(-127, 128, (7, 256)).astype(np.float32)
    x[:, ::32] = 127
    names = [t.name for t in isa_report().tiers if not t.state.startswith("lacks")]
    got = [
        run_node(
            PACKED_LINEAR, LINEAR_INPUTS, {"y": MATRIX}, attributes, {"x": x, **given}, tier=name
        )[0]
        for name in names
    ]
    for other in got[1:]:
        same_bits(got[0], other)


def test_the_comparison_fails_for_another_rounding(linear):
    """Against an oracle that rounds activations to 6 bits the same check must not pass."""
    kind = QUANTISED[1]
    attributes = attributes_for(kind, 40, 128)
    given = weights(kind, 40, 128)
    x = draw(5, 128)
    step = np.abs(x.reshape(5, -1, 32)).max(axis=2, keepdims=True) / 31
    coarse = (np.rint(x.reshape(5, -1, 32) / np.where(step, step, 1)) * step).reshape(5, 128)
    with pytest.raises(AssertionError, match="off by"):
        check(
            linear(attributes, {"x": x, **given}),
            packed_linear(attributes, {"x": coarse.astype(np.float32), **given}),
        )


# ---- bits -------------------------------------------------------------------------------------

BITWISE = [QUANTISED[0], QUANTISED[1], QUANTISED[5], QUANTISED[6], *FLOATING]


def assert_batch_invariant(call, attributes, given, x, splits):
    """Every row has the bits it has alone, in each of the splits [(begin, end), ...]."""
    alone = np.concatenate([call(attributes, {"x": x[i : i + 1], **given}) for i in range(len(x))])
    for parts in splits:
        for begin, end in parts:
            got = call(attributes, {"x": x[begin:end], **given})
            wrong = (got.view(np.uint32) != alone[begin:end].view(np.uint32)).any(axis=1)
            assert not wrong.any(), f"rows {begin} .. {end} differ from the rows alone"


def random_splits(rows, seed, count):
    generator = np.random.default_rng(seed)
    for _ in range(count):
        cuts = sorted({0, rows, *generator.integers(1, rows, 4)})
        yield list(itertools.pairwise(cuts))


@pytest.mark.parametrize("kind", BITWISE, ids=lambda k: f"{k[0]}-{k[1]}")
def test_a_row_has_the_same_bits_in_any_batch(linear, kind):
    # Tile sizes, the change to widened weights and the cut into chunks of rows, each +- 1.
    edges = [n for edge in (2, 3, 6, 7, 12, 14, 18, 21, 36, 96) for n in (edge - 1, edge, edge + 1)]
    width = 1056 if kind[1] != 128 else 1152
    if not kind[1]:
        width = 300
    for rows, activation in ((40, ""), (64, "silu")):
        attributes = attributes_for(kind, rows, width, activation)
        given = weights(kind, rows, width, bias=True)
        x = draw(99, width)
        splits = [[(0, n)] for n in edges] + list(random_splits(99, rows, 5))
        assert_batch_invariant(linear, attributes, given, x, splits)


@pytest.mark.parametrize("kind", BITWISE, ids=lambda k: f"{k[0]}-{k[1]}")
def test_any_number_of_threads_gives_the_same_bits(linear, kind):
    width = 512
    attributes = attributes_for(kind, 336, width)
    given = weights(kind, 336, width)
    x = draw(70, width)
    for count in (1, 2, 13, 70):
        one = linear(attributes, {"x": x[:count], **given}, threads=1)
        for threads in (2, 3, 4):
            same_bits(linear(attributes, {"x": x[:count], **given}, threads=threads), one)


# Right in value, but calls of more than four rows have scales of activations one bit larger.
MUTANT = (
    "*scale_at = scales[g];",
    "*scale_at = call.rows > 4 ? scales[g] * 1.0000001f : scales[g];",
)


@pytest.mark.unsanitized
def test_the_bitwise_suite_fails_on_a_mutant(run_node, compile_mutant, monkeypatch):
    monkeypatch.delenv("ORTLOOM_CPU_ISA", raising=False)
    library = compile_mutant("one_bit", "linear_prepare.h", *MUTANT)

    def call(attributes, inputs):
        return run_node(
            PACKED_LINEAR, LINEAR_INPUTS, {"y": MATRIX}, attributes, inputs, library=library
        )[0]

    attributes = attributes_for(QUANTISED[1], 40, 2048)
    given = weights(QUANTISED[1], 40, 2048)
    x = draw(20, 2048)
    both = [call(attributes, {"x": x[: 4 * n], **given})[:4] for n in (1, 5)]
    assert np.abs(both[0] - both[1]).max() <= 1e-6 * np.abs(both[0]).max()
    assert_batch_invariant(call, attributes, given, x[:4], [[(0, 4)], [(1, 3)]])
    with pytest.raises(AssertionError, match="differ from the rows alone"):
        assert_batch_invariant(call, attributes, given, x, [[(0, 20)]])


def test_the_team_is_back_to_one_thread():
    assert team.threads() == 1
