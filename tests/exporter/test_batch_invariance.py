"""Every op of the allow-list: a row alone, in any batch, at 1 to 4 threads: the same bits."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortloom.exporter.quantize import round_to_nearest
from ortloom.exporter.structure import ALLOWED
from ortloom.kernels import load, packing, team
from ortloom.kernels.contract import DOMAIN, HEAD_MAJOR_LAYOUT, INPUTS, OP_POOLS, POOLS
from ortloom.kernels.layer_contract import LAYER_INPUTS, LAYER_OPS, pool_slots
from ortloom.kernels.pool_values import bfloat16_bits

WIDTH, OUT, ROWS = 192, 160, 40
COUNTS = (1, 2, 3, 4, 5, 8, 13, 16, 17, 33)
MS = "com.microsoft"
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


# ---- ops with pools: a row is a request's next token ---------------------------------------------

HEADS, KV_HEADS, HEAD, FFN, BLOCK, TABLE = 2, 1, 64, 160, 16, 3
QKV = (HEADS + 2 * KV_HEADS) * HEAD
ATTENDING = sorted(op for op in ALLOWED if pool_slots(op.rpartition(":")[2]) is not None)
KERNELS = [op for op in ATTENDING if "_" not in op]
"""Names with a number are further names of the same kernels."""


def matrix(prefix, rows, width, seed):
    """A layer's matrix as initialisers and attributes."""
    blocks = round_to_nearest(weights(rows, width, seed=seed), 4)
    arrays = {
        f"{prefix}_weight": packing.pack_codes(blocks.codes, "u4"),
        f"{prefix}_scales": packing.pack_blocks(blocks.scales / np.float32(np.sqrt(width))),
    }
    facts = {"format": "u4", "N": rows, "K": width, "block_size": 32}
    return arrays, {f"{prefix}_{name}": value for name, value in facts.items()}


def requests(kind):
    """What one token of each of ROWS requests needs, by the names of the attention's inputs."""
    rng = np.random.default_rng(3)
    past = rng.integers(0, BLOCK * TABLE - 1, ROWS).astype(np.int32)
    table = (1 + rng.permutation(ROWS * TABLE)).reshape(ROWS, TABLE).astype(np.int32)
    slots = table[np.arange(ROWS), past // BLOCK] * BLOCK + past % BLOCK
    shape = (1 + ROWS * TABLE, BLOCK, KV_HEADS, HEAD)
    pools = {name: weights(*shape, seed=5 + i) for i, name in enumerate(POOLS[:2])}
    if kind == "bfloat16":
        pools = {name: bfloat16_bits(array) for name, array in pools.items()}
    elif kind == "int8":
        codes = {n: np.clip(a * 40, -127, 127).astype(np.int8) for n, a in pools.items()}
        scales = {name: np.full(shape[:3], 0.02, np.float32) for name in POOLS[2:]}
        pools = {**codes, **scales}
    else:
        pools = {name: array.astype(kind) for name, array in pools.items()}
    rows = {"past_seqlens": past, "block_table": table, "slot_mapping": slots.astype(np.int32)}
    return pools, rows


class Attending:
    """One attention or layer op with pools of its own."""

    def __init__(self, op):
        self.op = op.rpartition(":")[2]
        attention = LAYER_OPS.get(self.op, self.op)
        self.pools, self.rows = requests(OP_POOLS[attention])
        self.attributes = {
            "num_heads": HEADS, "kv_num_heads": KV_HEADS, "kv_layout": HEAD_MAJOR_LAYOUT,
        }  # fmt: skip
        self.weights = {}
        if self.op in LAYER_OPS:
            self.names, self.outputs = LAYER_INPUTS, ["y", "sum"]
            self.rows |= {n: weights(ROWS, WIDTH, seed=i) for i, n in enumerate(("x", "skip"))}
            sizes = {"qkv": (QKV, WIDTH), "o": (WIDTH, HEADS * HEAD),
                     "gate_up": (2 * FFN, WIDTH), "down": (WIDTH, FFN)}  # fmt: skip
            for seed, (prefix, size) in enumerate(sizes.items()):
                arrays, facts = matrix(prefix, *size, seed)
                self.weights |= arrays
                self.attributes |= facts
            self.attributes["activation"] = "silu"
            self.weights |= {n: weights(WIDTH) for n in ("attention_gamma", "mlp_gamma")}
        else:
            self.names, self.outputs = INPUTS, ["output"]
            self.rows["query"] = weights(ROWS, QKV)

    def session(self):
        given = {*self.pools, *self.rows, *self.weights, "cumulative_sequence_length"}
        names = [name if name in given else "" for name in self.names]
        while not names[-1]:
            names.pop()
        outputs = [*self.outputs, *(f"{name}_out" for name in self.pools)]
        node = helper.make_node(self.op, names, outputs, domain=DOMAIN, **self.attributes)
        arrays = {**self.pools, **self.rows, "cumulative_sequence_length": np.zeros(1, np.int32)}

        def info(name, array):
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            kind = TensorProto.BFLOAT16 if array.dtype == np.uint16 else kind
            return helper.make_tensor_value_info(name, kind, [None] * array.ndim)

        graph = helper.make_graph(
            [node],
            "op",
            [info(name, array) for name, array in arrays.items()],
            [info(n, np.zeros((1, 1), np.float32)) for n in self.outputs]
            + [info(f"{name}_out", array) for name, array in self.pools.items()],
            [numpy_helper.from_array(a, n) for n, a in self.weights.items()],
        )
        imports = [helper.make_opsetid(d, v) for d, v in (("", 23), (DOMAIN, 1))]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        load.register(options)
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def run(self, session, chosen):
        """Outputs of some requests, in that order, and the pools' blocks of theirs."""
        pools = {name: array.copy() for name, array in self.pools.items()}
        feeds = {name: np.ascontiguousarray(array[chosen]) for name, array in self.rows.items()}
        feeds["cumulative_sequence_length"] = np.arange(len(chosen) + 1, dtype=np.int32)
        binding = session.io_binding()
        kept = []
        for name, array in {**pools, **feeds}.items():
            if array.dtype == np.uint16:
                value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                    array, TensorProto.BFLOAT16
                )
            else:
                value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
            kept.append(value)
            binding.bind_ortvalue_input(name, value)
            if name in pools:
                binding.bind_ortvalue_output(f"{name}_out", value)
        for name in self.outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        # In the order in which they were bound: the pools come first.
        found = [value.numpy() for value in binding.get_outputs()[len(pools) :]]
        blocks = self.rows["block_table"][chosen]
        return found + [array[blocks] for array in pools.values()]


def wrong_requests(op):
    """(threads, chosen requests) of every call whose bits differ from the whole batch's."""
    case = Attending(op)
    session = case.session()
    rng = np.random.default_rng(11)
    team.configure(1, spin_microseconds=0)
    whole = case.run(session, np.arange(ROWS))
    assert all(np.isfinite(array).all() for array in whole[: len(case.outputs)])
    bad = []
    for threads in (1, 2, 3, 4):
        team.configure(threads, spin_microseconds=0)
        for count in COUNTS:
            chosen = rng.permutation(ROWS)[:count]
            got = case.run(session, chosen)
            same = all(np.array_equal(a, b[chosen]) for a, b in zip(got, whole, strict=True))
            if not same:
                bad.append((threads, list(chosen)))
    return bad


def named(ops):
    return [pytest.param(op, id=op.replace("BFloat16", "BFloat16-bf16")) for op in ops]


@pytest.mark.parametrize("op", named([*KERNELS, "ortloom::DecoderLayer_2"]))
def test_requests_do_not_see_each_other(op):
    assert op in ALLOWED
    assert wrong_requests(op) == []


@pytest.mark.parametrize("op", sorted(ALLOWED - set(ATTENDING)))
def test_rows_do_not_see_each_other(op):
    assert differing(*case(op)) == []


def test_every_allowed_name_is_a_tested_kernel():
    assert {op.partition("_")[0] for op in ATTENDING} == set(KERNELS)
    assert len(KERNELS) == 8


def test_the_test_can_fail():
    """Without prepacking, one row of a Gemm takes another path and other bits."""
    assert differing(*case("ai.onnx::Gemm"), session__disable_prepacking="1") != []
