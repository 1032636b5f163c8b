"""Every op of the allow-list: a row alone, in any batch, at 1 to 4 threads: the same bits."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortloom.exporter.quantize import round_to_nearest
from ortloom.exporter.structure import ALLOWED
from ortloom.kernels import load, packing, team
from ortloom.kernels.contract import DOMAIN, OP_POOLS

WIDTH, OUT, ROWS = 192, 160, 40
COUNTS = (1, 2, 3, 4, 5, 8, 13, 16, 17, 33)
MS = "com.microsoft"
ATTENTION = {f"{DOMAIN}::{op}" for op in OP_POOLS}  # see tests/kernels
FORM = {"format": "u4", "N": OUT, "K": WIDTH, "block_size": 32}


def weights(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def case(op):
    """(node, initialisers, number of row inputs, element type of the rows, outputs)."""
    blocks = round_to_nearest(weights(OUT, WIDTH), 4)
    packed = {"q": packing.pack_codes(blocks.codes, "u4"), "s": packing.pack_blocks(blocks.scales)}
    node = helper.make_node
    match op:
        case "ai.onnx::Gemm":
            made = node("Gemm", ["x", "w", "b"], ["y"], transB=1)
            return made, {"w": weights(OUT, WIDTH), "b": weights(OUT)}, 1
        case "ai.onnx::RMSNormalization":
            return node("RMSNormalization", ["x", "w"], ["y"], axis=-1), {"w": weights(WIDTH)}, 1
        case "ai.onnx::Add" | "ai.onnx::Mul":
            return node(op.rpartition(":")[2], ["x", "x2"], ["y"]), {}, 2
        case "ai.onnx::Sigmoid":
            return node("Sigmoid", ["x"], ["y"]), {}, 1
        case "ai.onnx::Reshape":
            return node("Reshape", ["x", "s"], ["y"]), {"s": np.array([-1, 8, WIDTH // 8])}, 1
        case "ai.onnx::Gather":
            return node("Gather", ["w", "i"], ["y"]), {"w": weights(50, WIDTH)}, 0
        case "com.microsoft::QuickGelu":
            return node("QuickGelu", ["x"], ["y"], domain=MS, alpha=1.0), {}, 1
        case "ortloom::SkipRMSNorm":
            made = node("SkipRMSNorm", ["x", "x2", "w"], ["y"], domain=DOMAIN)
            return made, {"w": weights(WIDTH)}, 2
        case "ortloom::PackedLinear":
            return node("PackedLinear", ["x", "q", "s"], ["y"], domain=DOMAIN, **FORM), packed, 1
        case "ortloom::ExpertRouting":
            made = node("ExpertRouting", ["x"], ["ids", "y"], domain=DOMAIN, top_k=8, normalize=1)
            return made, {}, 1
        case "ortloom::PackedExperts":
            return experts_case()
        case "ortloom::PackedEmbedding":
            made = node("PackedEmbedding", ["i", "q", "s"], ["y"], domain=DOMAIN, **FORM)
            return made, packed, 0
    raise AssertionError(f"no case for {op}")


def experts_case():
    """As many experts as x has columns, so that x itself is their logits."""
    inner = 16
    given = {
        "g": packing.pack_float(weights(WIDTH * 2 * inner, WIDTH), "f16"),
        "d": packing.pack_float(weights(WIDTH * WIDTH, inner), "f16"),
    }
    given = {name: a.reshape(WIDTH, -1, *a.shape[1:]) for name, a in given.items()}
    form = {"experts": WIDTH, "K": WIDTH, "I": inner}
    form |= {"gate_up_format": "f16", "down_format": "f16"}
    routing = case("ortloom::ExpertRouting")[0]
    routing.output[1] = "w"
    inputs = ["x", "ids", "w", "g", "", "", "d"]
    made = helper.make_node("PackedExperts", inputs, ["y"], domain=DOMAIN, **form)
    return [routing, made], given, 1


def session(node, initialisers, inputs, threads, **entries):
    nodes = node if isinstance(node, list) else [node]
    names = ["x", "x2"][:inputs] or ["i"]
    kind = TensorProto.FLOAT if inputs else TensorProto.INT64
    shape = ["rows", WIDTH] if inputs else ["rows"]
    graph = helper.make_graph(
        nodes,
        "op",
        [helper.make_tensor_value_info(n, kind, shape) for n in names],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in initialisers.items()],
    )
    imports = [helper.make_opsetid(d, v) for d, v in (("", 23), (MS, 1), (DOMAIN, 1))]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    own = nodes[0].domain == DOMAIN
    options.intra_op_num_threads = 1 if own else threads
    options.log_severity_level = 3
    if own:
        load.register(options)
        team.configure(threads, spin_microseconds=0)
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def differing(node, initialisers, inputs, **entries):
    """(threads, rows, start) of every run whose rows differ from the whole batch on one thread."""
    rng = np.random.default_rng(7)
    if inputs:
        rows = {n: weights(ROWS, WIDTH, seed=i) * 3 for i, n in enumerate(["x", "x2"][:inputs])}
    else:
        rows = {"i": rng.integers(0, 50, ROWS)}
    whole = None
    bad = []
    for threads in (1, 2, 3, 4):
        run = session(node, initialisers, inputs, threads, **entries)
        if whole is None:
            whole = run.run(None, rows)[0]
        for count in COUNTS:
            for start in (0, ROWS - count):
                part = {n: np.ascontiguousarray(a[start : start + count]) for n, a in rows.items()}
                if not np.array_equal(run.run(None, part)[0], whole[start : start + count]):
                    bad.append((threads, count, start))
    return bad


@pytest.mark.parametrize("op", sorted(ALLOWED - ATTENTION))
def test_rows_do_not_see_each_other(op):
    assert differing(*case(op)) == []


def test_the_test_can_fail():
    """Without prepacking, one row of a Gemm takes another path and other bits."""
    assert differing(*case("ai.onnx::Gemm"), session__disable_prepacking="1") != []
