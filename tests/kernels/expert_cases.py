"""Inputs of PackedExperts that its tests share."""

import numpy as np
from packed_cases import draw, weights

from ortloom.kernels.experts_contract import ExpertsAttributes
from ortloom.kernels.experts_reference import WEIGHT_INPUTS, expert_weights
from ortloom.kernels.packed_reference import packed_linear, quantise_activations

EXPERTS, WIDTH, INNER, SLOTS = 8, 128, 96, 2
U4, U8 = ("u4", 32, np.float16, False), ("u8", 32, np.float16, False)
U4_MINS, U8_MINS = ("u4", 32, np.float32, True), ("u8", 16, np.float16, True)
FORMS = [
    # gate and up projections, down projections, activation
    (U4, U4, "silu"),
    (U8, U8, "silu"),
    (U4_MINS, U8_MINS, "gelu"),
    (U8_MINS, U4, "gelu_tanh"),
    (("f32", 0, None, False), ("f32", 0, None, False), "silu"),
    (("f16", 0, None, False), ("f16", 0, None, False), "gelu"),
    (("bf16", 0, None, False), ("bf16", 0, None, False), "gelu_tanh"),
    (U4, ("f32", 0, None, False), "silu"),
    (("bf16", 0, None, False), U8_MINS, "silu"),
]


def form_id(form):
    return "-".join([form[0][0], str(form[0][1]), form[1][0], str(form[1][1]), form[2]])


def experts_of(form, *, experts=EXPERTS, width=WIDTH, inner=INNER, seed=0):
    """(attributes, weight inputs) of a mixture."""
    gate_up, down, activation = form
    attributes = ExpertsAttributes(
        experts, width, inner, gate_up[0], down[0], gate_up[1], down[1], activation
    )
    given = {}
    for kind, (name, rows, columns) in {
        "gate_up": (gate_up, 2 * inner, width),
        "down": (down, width, inner),
    }.items():
        parts = [weights(name, rows, columns, seed=seed + 10 * e) for e in range(experts)]
        for suffix, part in WEIGHT_INPUTS.items():
            if part in parts[0]:
                given[kind + suffix] = np.stack([p[part] for p in parts])
    return attributes, given


def routes(tokens, experts=EXPERTS, slots=SLOTS, seed=3):
    """Distinct experts and weights for each token; some experts are popular, some are not."""
    generator = np.random.default_rng(seed)
    favour = np.linspace(2, 0, experts)
    scores = generator.standard_normal((tokens, experts)) + favour
    ids = np.argsort(-scores, axis=1)[:, :slots].astype(np.int64)
    factors = generator.uniform(0.05, 1, (tokens, slots)).astype(np.float32)
    return {"ids": ids, "weights": factors}


def certain(attributes, inputs, margin=1e-3):
    """Tokens none of whose inner activations lies so near the middle between two integers that
    the last digit decides how it is rounded."""
    kept = np.ones(len(inputs["x"]), dtype=bool)
    if attributes.down_block_size == 0:
        return kept
    for expert in range(attributes.experts):
        tokens = np.nonzero((inputs["ids"] == expert).any(axis=1))[0]
        if not len(tokens):
            continue
        given = {"x": inputs["x"][tokens], **expert_weights(inputs, "gate_up", expert)}
        inner = packed_linear(attributes.gate_up(), given)
        _, steps = quantise_activations(inner)
        with np.errstate(divide="ignore", invalid="ignore"):
            exact = inner / np.repeat(steps, 32, axis=1)
        distance = np.abs(np.abs(exact - np.floor(exact)) - 0.5)
        kept[tokens] &= ~(distance < margin).any(axis=1)
    return kept


def case(form, tokens, **options):
    """(attributes, inputs) with `tokens` rows that are rounded the same in any arithmetic."""
    attributes, given = experts_of(form, **options)
    count = 3 * tokens + 8
    x = np.clip(draw(count, attributes.K), -4, 4)
    rows = {"x": x, **routes(count, attributes.experts)}
    kept = np.nonzero(certain(attributes, {**rows, **given}))[0][:tokens]
    assert len(kept) == tokens
    return attributes, {**{name: array[kept] for name, array in rows.items()}, **given}


def rows_of(inputs, rows):
    """The same call with some of its tokens."""
    per_token = ("x", "ids", "weights")
    return {n: np.ascontiguousarray(a[rows]) if n in per_token else a for n, a in inputs.items()}
