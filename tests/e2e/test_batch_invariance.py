"""A row's numbers are bitwise the same alone, in any batch, in any chunking, at 1 to 4 threads.

Three layers: the served graphs hold only ops of the allow-list; each of them with batch or token
rows is shown invariant at the shapes the demo model has; and the whole graphs are, logits of every
row compared. (Attention and layers alone are covered in tests/kernels.)
"""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from ortloom.kernels import load, team
from ortloom.kernels.layer_contract import pool_slots
from ortloom.models.manifest import Manifest

ALLOWED = {
    "ai.onnx::Gather",
    "ai.onnx::RMSNormalization",
    "ortloom::DecoderLayer",
    "ortloom::DecoderLayer_2",
    "ortloom::PackedEmbeddingFloat",
    "ortloom::PackedEmbeddingSymmetric",
    "ortloom::PackedLinearFloat",
    "ortloom::PackedLinearSymmetric",
    "ortloom::PagedAttention",
    "ortloom::SkipRMSNorm",
}
"""Ops a served CPU graph may hold; each has a proof of invariance below or in tests/kernels."""

ROWS = 70
THREADS = [1, 2, 3, 4]
BUNDLES = ["demo_bundle", "demo_bundle_int8", "demo_bundle_int4"]
WINDOWS = {
    "one_shot": [(0, ROWS)],
    "chunks_of_16": [(i, min(i + 16, ROWS)) for i in range(0, ROWS, 16)],
    "chunks_of_7": [(i, min(i + 7, ROWS)) for i in range(0, ROWS, 7)],
    "token_by_token": [(i, i + 1) for i in range(ROWS)],
}


@pytest.fixture(params=BUNDLES)
def bundle(request):
    return request.getfixturevalue(request.param)


def same_bits(left, right):
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()


def first_difference(left, right):
    """Which row differs first, or None; used for messages and for the check of the check."""
    for row, (a, b) in enumerate(zip(left, right, strict=True)):
        if not same_bits(a, b):
            return row
    return None


def test_the_comparison_sees_one_bit():
    left = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    right = left.copy()
    assert first_difference(left, right) is None
    right.view(np.uint32)[5, 3] ^= 1
    assert first_difference(left, right) == 5


def test_a_sum_in_another_order_is_caught():
    """What the suite guards against: the same row summed in blocks that depend on the batch."""
    rows = np.random.default_rng(0).standard_normal((ROWS, 576)).astype(np.float32)

    def in_blocks(width):
        parts = rows.reshape(ROWS, -1, width).sum(axis=2, dtype=np.float32)
        return parts.sum(axis=1, dtype=np.float32)

    assert first_difference(in_blocks(32), in_blocks(64)) is not None


def test_served_graphs_hold_only_allowed_ops(bundle):
    graph = Manifest.load(bundle).graph("cpu")
    assert {name for name, _ in graph.ops} <= ALLOWED
    model = onnx.load(bundle / graph.file.path, load_external_data=False)
    seen = {f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in model.graph.node}
    assert seen == {name for name, _ in graph.ops}


def row_nodes(bundle):
    """One node of each kind: op, attributes and the shapes of its constant inputs."""
    graph = Manifest.load(bundle).graph("cpu")
    model = onnx.load(bundle / graph.file.path, load_external_data=False)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    kinds = {}
    for node in model.graph.node:
        if pool_slots(node.op_type) is not None:
            continue
        shapes = tuple(
            tuple(constants[name].dims) if name in constants else None for name in node.input
        )
        key = (node.domain, node.op_type, shapes)
        kinds.setdefault(key, (node, constants))
    return model, list(kinds.items())


def own_options(threads):
    """As the cpu provider: our ops share out the work, ONNX Runtime has one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    load.register(options)
    team.configure(threads, spin_microseconds=100)
    return options


def single(model, key, node, constants, draw):
    """A model of one node with random constants, and its inputs of ROWS rows."""
    _, op, shapes = key
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    width = attributes.get("K", 576)
    initializers, inputs, feeds = [], [], {}
    for name, shape in zip(node.input, shapes, strict=True):
        if not name:
            continue
        if shape is not None:
            kind = constants[name].data_type
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            if dtype == np.uint8:
                value = draw.integers(0, 256, shape, dtype=np.uint8)
            else:
                value = draw.standard_normal(shape).astype(dtype)
            initializers.append(onnx.numpy_helper.from_array(value, name))
        elif op.startswith("PackedEmbedding") or op == "Gather":
            rows = attributes["N"] if "N" in attributes else shapes[0][0]
            feeds[name] = draw.integers(0, rows, ROWS, dtype=np.int64)
            inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["T"]))
        else:
            feeds[name] = draw.standard_normal((ROWS, width)).astype(np.float32)
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["T", width]))
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output if name
    ]
    graph = helper.make_graph([node], "one", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=10), feeds


@pytest.mark.parametrize("threads", THREADS)
def test_each_op_is_invariant(bundle, threads):
    model, kinds = row_nodes(bundle)
    draw = np.random.default_rng(3)
    proven = set()
    for key, (node, constants) in kinds:
        if key[1] == "Gather" and key[2][0] is None:
            proven.add(key[1])  # picks rows of activations: no arithmetic
            continue
        alone, feeds = single(model, key, node, constants, draw)
        session = ort.InferenceSession(alone.SerializeToString(), own_options(threads))
        whole = session.run(None, feeds)
        for windows in WINDOWS.values():
            parts = [
                session.run(None, {name: value[a:b] for name, value in feeds.items()})
                for a, b in windows
            ]
            for index, value in enumerate(whole):
                if value.shape[:1] == (ROWS,):
                    joined = np.concatenate([part[index] for part in parts])
                    assert first_difference(value, joined) is None, (key, windows[:2])
        proven.add(key[1])
    have = {name.split("::")[1] for name, _ in Manifest.load(bundle).graph("cpu").ops}
    assert proven == {op for op in have if pool_slots(op) is None}


class Graph:
    """A bundle's cpu graph with pools of its own; logits of every token it is fed."""

    BLOCK = 16

    def __init__(self, bundle, threads):
        manifest = Manifest.load(bundle)
        graph = manifest.graph("cpu")
        self.io = graph.io
        options = own_options(threads)
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(bundle.resolve())
        )
        self.session = ort.InferenceSession(str(bundle / graph.file.path), options)
        (group,) = manifest.kv_groups
        shape = (32, self.BLOCK, group.kv_heads, group.head_dim_k)
        self.pools = {}
        for name, out in zip(
            self.io.k_cache + self.io.v_cache,
            self.io.k_cache_out + self.io.v_cache_out,
            strict=True,
        ):
            self.pools[name] = (out, ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32)))

    def step(self, parts):
        """parts: (ids, past, blocks) a request; returns the logits of all tokens, in order."""
        lengths = [len(ids) for ids, _, _ in parts]
        width = max(len(blocks) for _, _, blocks in parts)
        positions = [past + i for (ids, past, _) in parts for i in range(len(ids))]
        table = np.full((len(parts), width), -1, np.int32)
        for row, (_, _, blocks) in enumerate(parts):
            table[row, : len(blocks)] = blocks
        slots = [
            blocks[p // self.BLOCK] * self.BLOCK + p % self.BLOCK
            for ids, past, blocks in parts
            for p in range(past, past + len(ids))
        ]
        feeds = {
            self.io.input_ids: np.concatenate([ids for ids, _, _ in parts]).astype(np.int64),
            self.io.positions: np.array(positions, np.int64),
            self.io.cu_seqlens: np.cumsum([0, *lengths]).astype(np.int32),
            self.io.past_seqlens: np.array([past for _, past, _ in parts], np.int32),
            self.io.block_table: table,
            self.io.slot_mapping: np.array(slots, np.int32),
            self.io.logits_indices: np.arange(sum(lengths), dtype=np.int64),
        }
        binding = self.session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        for name, (out, pool) in self.pools.items():
            binding.bind_ortvalue_input(name, pool)
            binding.bind_ortvalue_output(out, pool)
        binding.bind_output(self.io.logits)
        self.session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()[-1]


def test_whole_graph_is_invariant(bundle):
    ids = np.random.default_rng(5).integers(300, 40000, ROWS)
    other = np.random.default_rng(6).integers(300, 40000, 40)
    blocks, far = [3, 9, 1, 20, 5], [30, 2, 11]
    want = Graph(bundle, 1).step([(ids, 0, blocks)])
    assert want.shape[0] == ROWS
    for threads in THREADS:
        graph = Graph(bundle, threads)
        assert team.threads() == threads
        for name, windows in WINDOWS.items():
            if name == "token_by_token" and threads in (3, 4):
                continue
            rows = [graph.step([(ids[a:b], a, blocks)]) for a, b in windows]
            assert first_difference(want, np.concatenate(rows)) is None, (threads, name)
        mixed = graph.step([(other, 0, far), (ids, 0, blocks)])
        assert first_difference(want, mixed[len(other) :]) is None, (threads, "mixed")
