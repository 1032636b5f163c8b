"""A layer of the cpu graphs as one node: the same bits, and other shapes of layer left alone."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortloom.exporter.bodies import detach_bodies
from ortloom.exporter.rewrites import edit
from ortloom.exporter.rewrites.decoder_layer import fuse_layers
from ortloom.exporter.rewrites.fused_qkv import fuse_qkv
from ortloom.exporter.rewrites.gated_linear import fuse_gates
from ortloom.exporter.rewrites.kv_cache import FORMS, set_kv_cache
from ortloom.exporter.rewrites.skip_norm import fuse_skip_norm
from ortloom.exporter.structure import require_structure
from ortloom.exporter.variants import derive
from ortloom.exporter.verify import schedule
from ortloom.exporter.verify.check import check_tokens
from ortloom.exporter.verify.figures import compare
from ortloom.exporter.verify.session import GraphRunner
from ortloom.kernels.contract import DOMAIN, OP_POOLS
from ortloom.kernels.layer_contract import LAYER_INPUTS, LAYER_OPS, MAX_LAYER_FORMS
from ortloom.models.manifest import Manifest

LAYERS = {"llama": 2, "qwen2": 3, "qwen3": 2}
CASES = [
    ("llama", None), ("qwen2", None), ("qwen3", None), ("llama", "int4"), ("qwen2", "int8"),
]  # fmt: skip


def contract_model(folder):
    proto = onnx.load(folder / "graphs" / "contract.onnx", load_external_data=False)
    detach_bodies(proto)
    return ir.from_proto(proto)


def unfused(folder, form=FORMS[0]):
    """The cpu graph as it is in front of the rewrite."""
    model = contract_model(folder)
    fuse_gates(model.graph)
    fuse_skip_norm(model.graph)
    fuse_qkv(model.graph)
    set_kv_cache(model.graph, form)
    return model


def ops(graph):
    return [node.op_type for node in graph]


def layer_nodes(graph):
    return [node for node in graph if node.op_type in LAYER_OPS]


def logits(folder, data, variant="cpu", library=True, threads=2, calls=schedule.steps):
    manifest = Manifest.load(folder)
    runner = GraphRunner(
        data, folder, manifest.graph(variant), manifest.kv_groups,
        use_library=library, threads=threads,
    )  # fmt: skip
    found = runner.run(calls(check_tokens(folder, 320)))
    return np.stack([found[key] for key in sorted(found)])


@pytest.mark.parametrize(("name", "quant"), CASES)
def test_every_layer_is_one_node(name, quant, bundles):
    folder, layers = bundles(name, quant), LAYERS[name]
    for form in FORMS:
        model = derive(contract_model(folder), "cpu", form)
        require_structure(model, layers)
        nodes = layer_nodes(model.graph)
        assert len(nodes) == layers
        assert not set(ops(model.graph)) & {*OP_POOLS, "PackedLinearFloat"}
        # The first layer has nothing to add in front of its norm.
        assert [node.inputs[1] is None for node in nodes] == [True] + [False] * (layers - 1)
        names = [node.op_type for node in nodes]
        assert len(set(names)) == 2 <= MAX_LAYER_FORMS
        assert all(other == f"{names[0]}_2" for other in names[1:])
        given = {n for n, v in zip(LAYER_INPUTS, nodes[1].inputs, strict=False) if v is not None}
        assert ("qkv_bias" in given) == (name == "qwen2")
        assert ("q_norm_weight" in given) == (name == "qwen3")
        assert ("qkv_scales" in given) == (quant is not None)
    norms = [node for node in model.graph if node.op_type in ("RMSNormalization", "SkipRMSNorm")]
    assert len(norms) == 1, "the one behind the last layer"


def test_the_nodes_carry_what_the_seven_had(bundles):
    model = unfused(bundles("qwen2", "int8"))
    attention = [node for node in model.graph if node.op_type == "PagedAttention"]
    windows = [node.attributes["local_window_size"].as_int() for node in attention]
    assert fuse_layers(model.graph) == 3
    nodes = layer_nodes(model.graph)
    assert [node.attributes["local_window_size"].as_int() for node in nodes] == windows
    for node in nodes:
        assert edit.real(node, "attention_norm_epsilon", 0) == pytest.approx(1e-5)
        assert edit.real(node, "mlp_norm_epsilon", 0) == pytest.approx(1e-5)
        assert node.attributes["activation"].as_string() == "silu"
        sizes = {p: (edit.integer(node, f"{p}_N", 0), edit.integer(node, f"{p}_K", 0))
                 for p in ("qkv", "o", "gate_up", "down")}  # fmt: skip
        assert sizes == {
            "qkv": (8 * 64, 128), "o": (128, 4 * 64), "gate_up": (2 * 192, 128), "down": (128, 192),
        }  # fmt: skip


def one_norm(graph):
    """Let the first norm be the library's, as it is inside of a layer."""
    norm = next(node for node in graph if node.op_type == "RMSNormalization")
    x, gamma = norm.inputs
    made = edit.new_node(
        graph, norm, "SkipRMSNorm", [x, None, gamma],
        {"epsilon": edit.real(norm, "epsilon", 1e-5)}, domain=DOMAIN,
    )  # fmt: skip
    edit.same_type(made.outputs[0], norm.outputs[0])
    edit.replace(norm.outputs[0], made.outputs[0])
    graph.remove(norm, safe=True)


@pytest.mark.parametrize(("name", "quant"), CASES)
def test_fused_and_separate_layers_give_the_same_bits(name, quant, bundles):
    folder = bundles(name, quant)
    model = unfused(folder)
    one_norm(model.graph)
    assert layer_nodes(model.graph) == []
    # Without bodies: both kinds of SkipRMSNorm are in this graph.
    seven = ir.to_proto(model).SerializeToString()
    one = (folder / "graphs" / "cpu.onnx").read_bytes()
    for calls, threads in ((schedule.steps, 1), (schedule.one_shot, 2), (schedule.steps, 3)):
        left, right = (logits(folder, data, threads=threads, calls=calls) for data in (one, seven))
        np.testing.assert_array_equal(left.view(np.uint32), right.view(np.uint32))


@pytest.mark.parametrize("name", LAYERS)
def test_plain_and_cpu_agree_with_and_without_the_library(name, bundles):
    folder = bundles(name)
    graphs = {v: (folder / "graphs" / f"{v}.onnx").read_bytes() for v in ("cpu", "plain")}
    wanted = logits(folder, graphs["cpu"])
    assert compare(logits(folder, graphs["cpu"], library=False), wanted).relative <= 5e-6
    assert compare(logits(folder, graphs["plain"], "plain", False), wanted).relative <= 5e-6


# ---- what is left alone -------------------------------------------------------------------------


class Parts:
    """The nodes of the second of three layers, by what they are."""

    def __init__(self, graph):
        self.graph = graph
        self.attention = [node for node in graph if node.op_type == "PagedAttention"][1]
        self.qkv = self.attention.inputs[0].producer()
        self.first = self.qkv.inputs[0].producer()
        self.o = self.attention.outputs[0].uses()[0].node
        self.second = self.o.outputs[0].uses()[0].node
        self.gate_up = self.second.outputs[0].uses()[0].node
        self.down = self.gate_up.outputs[0].uses()[0].node

    def between(self, node, index=0):
        """Put a Sigmoid in front of one input of a node."""
        made = ir.Node("", "Sigmoid", [node.inputs[index]])
        self.graph.insert_before(node, made)
        node.replace_input_with(index, made.outputs[0])

    def read_again(self, value, name):
        """Let the graph give a value as well."""
        value.name = name
        self.graph.outputs.append(value)


CHANGES = {
    "something between norm and qkv": lambda p: p.between(p.qkv),
    "something between qkv and attention": lambda p: p.between(p.attention),
    "something between attention and o": lambda p: p.between(p.o),
    "a norm behind the attention": lambda p: p.between(
        p.second, [v.producer() for v in p.second.inputs[:2]].index(p.o)
    ),
    "something between norm and mlp": lambda p: p.between(p.gate_up),
    "something between gate and down": lambda p: p.between(p.down),
    "no activation": lambda p: p.gate_up.attributes.pop("activation"),
    "an activation on o": lambda p: p.o.attributes.add(ir.AttrString("activation", "silu")),
    "an activation on qkv": lambda p: p.qkv.attributes.add(ir.AttrString("activation", "silu")),
    "qkv read twice": lambda p: p.read_again(p.qkv.outputs[0], "again"),
    "first norm read twice": lambda p: p.read_again(p.first.outputs[0], "again"),
    "first sum read twice": lambda p: p.read_again(p.first.outputs[1], "again"),
    "attention read twice": lambda p: p.read_again(p.attention.outputs[0], "again"),
    "o read twice": lambda p: p.read_again(p.o.outputs[0], "again"),
    "second norm read twice": lambda p: p.read_again(p.second.outputs[0], "again"),
    "gated rows read twice": lambda p: p.read_again(p.gate_up.outputs[0], "again"),
    "another residual": lambda p: p.second.replace_input_with(
        [v.producer() for v in p.second.inputs[:2]].index(p.first), p.first.inputs[0]
    ),
    "another width of o": lambda p: p.o.attributes.add(ir.AttrInt64("N", 112)),
    "another width of down": lambda p: p.down.attributes.add(ir.AttrInt64("K", 96)),
    "another op for o": lambda p: setattr(p.o, "op_type", "Other"),
    "another op for a norm": lambda p: setattr(p.second, "op_type", "Other"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_of_another_shape_stays_and_the_others_do_not(change, bundles):
    model = unfused(bundles("qwen2", "int8"))
    before = Parts(model.graph)
    CHANGES[change](before)
    assert fuse_layers(model.graph) == 2
    kept = [node for node in model.graph if node.op_type == "PagedAttention"]
    assert kept == [before.attention]
    assert before.down in list(model.graph)


def test_what_is_read_besides_may_be_the_layers_own_outputs(bundles):
    model = unfused(bundles("qwen2", "int8"))
    parts = Parts(model.graph)
    parts.read_again(parts.down.outputs[0], "rows")
    parts.read_again(parts.second.outputs[1], "sums")
    assert fuse_layers(model.graph) == 3
    node = layer_nodes(model.graph)[1]
    assert [value.name for value in node.outputs[:2]] == ["rows", "sums"]
    assert all(value.is_graph_output() for value in node.outputs[:2])


def test_separate_projections_stay(bundles):
    model = contract_model(bundles("qwen2"))
    fuse_gates(model.graph)
    fuse_skip_norm(model.graph)
    before = ops(model.graph)
    assert fuse_layers(model.graph) == 0
    assert ops(model.graph) == before


def test_a_fifth_form_stays(bundles, tiny, tmp_path):
    """Layers that differ in which matrices are of which format take a name each."""
    config = tiny.family_config("qwen3", num_hidden_layers=6)
    folder = tmp_path / "bundle"
    tiny.run_export(tiny.write_checkpoint(tmp_path / "source", config), folder)
    model = unfused(folder)
    attention = [node for node in model.graph if node.op_type == "PagedAttention"]
    for layer, node in enumerate(attention[1:]):
        projection = node.outputs[0].uses()[0].node
        projection.attributes.add(
            ir.AttrString("format", ("f32", "f16", "bf16", "x", "f32")[layer])
        )
    assert fuse_layers(model.graph) == 5
    names = ["DecoderLayer", *(f"DecoderLayer_{n}" for n in (2, 3, 4)), "DecoderLayer_2"]
    assert [node.op_type for node in layer_nodes(model.graph)] == names
    assert [n for n in model.graph if n.op_type == "PagedAttention"] == [attention[4]]
