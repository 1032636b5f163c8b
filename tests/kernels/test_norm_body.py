"""The body of SkipRMSNorm: agreement with the oracle, invariance, what is refused."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from ortloom.kernels.contract import DOMAIN
from ortloom.kernels.norm_body import add_skip_norm_body, skip_rms_norm_function
from ortloom.kernels.norm_contract import SKIP_RMS_NORM, NormAttributes
from ortloom.kernels.norm_reference import skip_rms_norm

VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
OPSET = 23 if VERSION >= (1, 23) else 21
WIDTH = 576


def norm_node(number, x, has_skip, outputs, epsilon):
    inputs = [x, "skip" if has_skip else "", "gamma"]
    names = [f"{name}{number}" for name in outputs]
    return helper.make_node(
        SKIP_RMS_NORM, inputs, names, f"n{number}", domain=DOMAIN, epsilon=epsilon
    )


def make_model(nodes, outputs):
    info, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    inputs = [info(name, kind, ["T", WIDTH]) for name in ("x", "skip")]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "norms",
            [*inputs, info("gamma", kind, [WIDTH])],
            [info(name, kind, ["T", WIDTH]) for name in outputs],
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=10,
    )
    add_skip_norm_body(model)
    onnx.checker.check_model(model)
    return model


def start(model, options):
    return ort.InferenceSession(
        model.SerializeToString(), options(1), providers=["CPUExecutionProvider"]
    )


def drawn(tokens, scale=1.0):
    rng = np.random.default_rng(tokens)
    rows = {n: rng.standard_normal((tokens, WIDTH), dtype=np.float32) for n in ("x", "skip")}
    rows["x"] *= np.float32(scale)
    return {**rows, "gamma": rng.standard_normal(WIDTH, dtype=np.float32)}


@pytest.mark.parametrize("has_skip", [True, False])
@pytest.mark.parametrize("outputs", [("y",), ("y", "sum")])
def test_agrees_with_the_oracle(options, has_skip, outputs):
    names = [f"{name}0" for name in outputs]
    session = start(make_model([norm_node(0, "x", has_skip, outputs, 1e-5)], names), options)
    for inputs in (drawn(0), drawn(1), drawn(33), drawn(4, 1e-4), drawn(5, 1e6)):
        given = inputs if has_skip else {n: a for n, a in inputs.items() if n != "skip"}
        expected = skip_rms_norm(NormAttributes(1e-5), given)
        for got, wanted in zip(session.run(names, inputs), expected, strict=False):
            assert got.shape == wanted.shape
            limit = 5e-6 * np.abs(wanted).max(initial=0)
            assert np.abs(got - wanted).max(initial=0) <= limit


def test_nodes_may_differ_in_epsilon_and_outputs(options):
    nodes = [
        norm_node(0, "x", True, ("y", "sum"), 0.5),
        norm_node(1, "sum0", True, ("y",), 1e-6),
    ]
    model = make_model(nodes, ["y0", "y1"])
    assert len(model.functions) == 1
    inputs = drawn(3)
    first, second = start(model, options).run(["y0", "y1"], inputs)
    wanted, total = skip_rms_norm(NormAttributes(0.5), inputs)
    assert np.abs(first - wanted).max() <= 5e-6 * np.abs(wanted).max()
    wanted, _ = skip_rms_norm(NormAttributes(1e-6), {**inputs, "x": total})
    assert np.abs(second - wanted).max() <= 5e-6 * np.abs(wanted).max()


def test_the_default_epsilon(options):
    node = norm_node(0, "x", True, ("y",), 0.0)
    del node.attribute[:]
    inputs = drawn(2, 1e-3)
    inputs["skip"][:] = 0
    (got,) = start(make_model([node], ["y0"]), options).run(["y0"], inputs)
    wanted, _ = skip_rms_norm(NormAttributes(), inputs)
    assert np.abs(got - wanted).max() <= 5e-6 * np.abs(wanted).max()


def test_a_row_is_the_same_alone_and_in_any_batch(options):
    session = start(make_model([norm_node(0, "x", True, ("y",), 1e-5)], ["y0"]), options)
    inputs = drawn(40)
    (together,) = session.run(["y0"], inputs)
    for start_row, stop in ((0, 1), (39, 40), (3, 20), (7, 9)):
        part = {n: a[start_row:stop] if n != "gamma" else a for n, a in inputs.items()}
        difference = np.abs(session.run(["y0"], part)[0] - together[start_row:stop]).max()
        # Bitwise on every release that serves; before, ReduceMean looked at the number of rows.
        assert difference <= (0 if VERSION >= (1, 23) else 1e-6 * np.abs(together).max())


def test_wrong_nodes_are_refused():
    nodes = [norm_node(i, "x", i == 0, ("y",), 1e-5) for i in range(2)]
    with pytest.raises(ValueError, match="'n0' and 'n1' differ in skip"):
        make_model(nodes, ["y0", "y1"])
    odd = norm_node(0, "x", True, ("y",), 1e-5)
    odd.attribute.append(helper.make_attribute("eps", 0.1))
    with pytest.raises(ValueError, match=r"'n0' has unknown attributes \['eps'\]"):
        make_model([odd], ["y0"])
    with pytest.raises(ValueError, match="opset 17 is too old"):
        skip_rms_norm_function(True, 17)
