"""Each rewrite on a small graph: it does what it says and changes no number."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ortloom.errors import UnsupportedModel
from ortloom.exporter.bodies import attach_body
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.rewrites import edit
from ortloom.exporter.rewrites.batch_axis import drop_batch_axis
from ortloom.exporter.rewrites.fold import fold_constants
from ortloom.exporter.rewrites.packed_linear import pack_linears
from ortloom.exporter.rewrites.reshape import merge_reshapes
from ortloom.exporter.rewrites.rms_norm import fuse_rms_norm
from ortloom.exporter.rewrites.rotary import Rotation, rotation_tables
from ortloom.exporter.rewrites.silu import fuse_silu
from ortloom.exporter.rewrites.skip_norm import fuse_skip_norm

HEAD = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>\n'


def parse(text):
    model = ir.from_proto(onnx.parser.parse_model(HEAD + text))
    return model


def ops(model):
    return [node.op_type for node in model.graph]


def as_weight(model, name, *shape):
    """Turn a graph input into a weight: an initialiser without data in the graph."""
    value = next(v for v in model.graph.inputs if v.name == name)
    model.graph.inputs.remove(value)
    model.graph.initializers[name] = value
    assert edit.is_weight(value)
    assert tuple(value.shape) == shape


def run(model, feeds, weights=()):
    proto = ir.to_proto(model)
    for name, array in dict(weights).items():
        kept = [i for i in proto.graph.initializer if i.name != name]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend([*kept, onnx.numpy_helper.from_array(array, name)])
    attach_body(proto)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


NORM = """
g (float[t, 8] x, float[8] w) => (float[t, 8] y)
<float two = {2.0}, float eps = {0.001}, int64[1] axes = {-1}>
{
  sq = Pow(x, two)
  mean = ReduceMean<keepdims = 1>(sq, axes)
  shifted = Add(mean, eps)
  root = Sqrt(shifted)
  inverse = Reciprocal(root)
  normed = Mul(x, inverse)
  y = Mul(w, normed)
}
"""


def test_rms_norm():
    x, w = draw(5, 8), draw(8, seed=1)
    before = parse(NORM)
    wanted = run(before, {"x": x, "w": w})
    as_weight(before, "w", 8)
    assert fuse_rms_norm(before.graph) == 1
    assert ops(before) == ["RMSNormalization"]
    np.testing.assert_allclose(run(before, {"x": x}, {"w": w})[0], wanted[0], rtol=2e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [("{2.0}", "{3.0}"), ("{-1}", "{0}"), ("Mul(x, inverse)", "Mul(sq, inverse)")],
)
def test_what_is_no_rms_norm_stays(old, new):
    model = parse(NORM.replace(old, new))
    as_weight(model, "w", 8)
    assert fuse_rms_norm(model.graph) == 0


def test_silu():
    model = parse("g (float[t, 8] x) => (float[t, 8] y) { s = Sigmoid(x) y = Mul(x, s) }")
    x = draw(5, 8) * 5
    wanted = run(model, {"x": x})
    assert fuse_silu(model.graph) == 1
    assert ops(model) == ["QuickGelu"]
    np.testing.assert_allclose(run(model, {"x": x})[0], wanted[0], rtol=1e-5, atol=1e-6)
    gate = parse("g (float[t, 8] x, float[t, 8] z) => (float[t, 8] y) "
                 "{ s = Sigmoid(z) y = Mul(x, s) }")  # fmt: skip
    assert fuse_silu(gate.graph) == 0


def test_skip_norm_keeps_the_sum_for_the_next_layer():
    model = parse(
        """
        g (float[t, 8] a, float[t, 8] b, float[8] w) => (float[t, 8] y, float[t, 8] sum)
        { sum = Add(a, b) y = RMSNormalization<axis = -1, epsilon = 0.001>(sum, w) }
        """
    )
    feeds = {"a": draw(5, 8), "b": draw(5, 8, seed=1), "w": draw(8, seed=2)}
    wanted = run(model, feeds)
    assert fuse_skip_norm(model.graph) == 1
    assert ops(model) == ["SkipRMSNorm"]
    assert [v.name for v in model.graph.outputs] == ["y", "sum"]
    got = run(model, feeds)
    np.testing.assert_allclose(got[0], wanted[0], rtol=2e-6)
    np.testing.assert_array_equal(got[1], wanted[1])


def test_reshapes_collapse():
    model = parse(
        """
        g (float[t, 8] x) => (float[t, 8] y)
        <int64[3] s1 = {1, -1, 8}, int64[4] s2 = {1, -1, 2, 4}, int64[2] s3 = {-1, 8}>
        { a = Reshape(x, s1) b = Reshape(a, s2) c = Reshape(b, s3) y = Neg(c) }
        """
    )
    x = draw(5, 8)
    assert merge_reshapes(model.graph) > 0
    assert ops(model) == ["Neg"]
    np.testing.assert_array_equal(run(model, {"x": x})[0], -x)


def test_a_reshape_that_changes_rows_stays():
    model = parse(
        "g (float[t, 8] x) => (float[u, 4] y) <int64[2] s = {-1, 4}> { y = Reshape(x, s) }"
    )
    merge_reshapes(model.graph)
    assert ops(model) == ["Reshape"]


def test_the_batch_axis_goes():
    model = parse(
        """
        g (int64[t] ids, int64[n] rows, float[16, 8] table, float[8] w) => (float[n, 8] y)
        <int64[1] zero = {0}, int64[2] flat = {-1, 8}, int64[3] batch = {1, -1, 8},
         int64 first = {0}>
        {
          ids2 = Unsqueeze(ids, zero)
          h = Gather(table, ids2)
          n = RMSNormalization<axis = -1>(h, w)
          f = Reshape(n, flat)
          g = Neg(f)
          b = Reshape(g, batch)
          s = Sigmoid(b)
          sum = Add(h, s)
          picked = Gather<axis = 1>(sum, rows)
          y = Gather<axis = 0>(picked, first)
        }
        """
    )
    for value in model.graph.all_nodes():
        for out in value.outputs:
            if out.name in ("h", "n", "b", "s", "sum"):
                out.shape = ir.Shape([1, None, 8])
            elif out.name in ("f", "g"):
                out.shape = ir.Shape([None, 8])
    feeds = {"ids": np.array([3, 1, 4, 1]), "rows": np.array([2, 0])}
    weights = {"table": draw(16, 8), "w": draw(8, seed=1)}
    wanted = run(model, {**feeds, **weights})
    as_weight(model, "table", 16, 8)
    as_weight(model, "w", 8)
    drop_batch_axis(model.graph)
    assert ops(model) == ["Gather", "RMSNormalization", "Neg", "Sigmoid", "Add", "Gather"]
    np.testing.assert_array_equal(run(model, feeds, weights)[0], wanted[0])


def test_folding():
    model = parse(
        """
        g (float[t, 8] x) => (float[u, v, w] y)
        <int64 a = {1}, int64[1] b = {-1}, int64[2] tail = {2, 4}>
        { c = Cast<to = 7>(a) d = Reshape(c, b) e = Concat<axis = 0>(b, tail) y = Reshape(x, e) }
        """
    )
    fold_constants(model.graph)
    edit.sweep(model.graph)
    assert ops(model) == ["Reshape"]
    assert run(model, {"x": draw(3, 8)})[0].shape == (3, 2, 4)


def test_a_weight_is_never_folded():
    model = parse("g (float[8] w) => (float[8] y) { y = Neg(w) }")
    as_weight(model, "w", 8)
    assert fold_constants(model.graph) == 0


def rotation(expression):
    model = parse(
        f"""
        g (int64[t] positions, float[t, 1] other) => (float[t, u] y)
        <float[1, 2] f = {{1.0, 0.01}}, int64[1] last = {{1}}>
        {{ column = Unsqueeze(positions, last) p = Cast<to = 1>(column) h = {expression}
           y = Concat<axis = 1>(h, h) }}
        """
    )
    positions = next(v for v in model.graph.inputs if v.name == "positions")
    return Rotation(model.graph.outputs[0], 0.5), positions


def test_tables_are_exact_angles_in_float64_rounded_once():
    spin, positions = rotation("Mul(p, f)")
    cosine, sine = rotation_tables(spin, positions, 9000)
    assert cosine.shape == (9000, 2)
    angles = np.arange(9000, dtype=np.float32)[:, None] * np.array([1.0, 0.01], np.float32)
    exact = angles.astype(np.float64)
    np.testing.assert_array_equal(cosine, (np.cos(exact) * 0.5).astype(np.float32))
    np.testing.assert_array_equal(sine, (np.sin(exact) * 0.5).astype(np.float32))


def test_angles_that_need_more_than_the_position_are_refused():
    spin, positions = rotation("Mul(p, other)")
    with pytest.raises(UnsupportedModel, match="other"):
        rotation_tables(spin, positions, 16)
    spin, positions = rotation("Softplus(p)")
    with pytest.raises(UnsupportedModel, match="Softplus"):
        rotation_tables(spin, positions, 16)


def test_linears_become_packed_ones():
    model = parse(
        """
        g (float[t, 64] x, float[8, 64] w, float[8] b, float[8, 64] other) => (float[t, 8] y,
           float[t, 8] z)
        { y = Gemm<transB = 1>(x, w, b) z = Gemm<transB = 1>(x, other) }
        """
    )
    as_weight(model, "w", 8, 64)
    as_weight(model, "other", 8, 64)
    assert pack_linears(model.graph, {"w": PackedForm("u4", 32)}) == {"w"}
    assert ops(model) == ["PackedLinear", "Gemm"]
    node = next(iter(model.graph))
    assert [v.name if v else "" for v in node.inputs] == ["x", "w.u4", "w.scales", "", "b"]
    assert set(model.graph.initializers) == {"w.u4", "w.scales", "other"}
    shapes = [list(model.graph.initializers[n].shape) for n in ("w.u4", "w.scales")]
    assert shapes == [[1, 8, 16, 4], [1, 2, 16]]
    assert [v.name for v in model.graph.outputs] == ["y", "z"]
