"""Mixtures of experts: how they are stored, routed, laid out and refused.

That their graphs give transformers' logits is in test_families.
"""

import json
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from ortloom.errors import SourceInvalid, UnsupportedModel
from ortloom.exporter.architectures import parameter_shapes, require_supported, sparse_layers
from ortloom.exporter.experts import emit_experts
from ortloom.exporter.fit_blocks import fit_blocks
from ortloom.exporter.graph_build import make_config
from ortloom.exporter.options import ExportOptions
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.parameters import require_parameters
from ortloom.exporter.plan import plan
from ortloom.exporter.rewrites.expert_routing import fuse_routing
from ortloom.exporter.sources.expert_tensors import ExpertsView, expert_rows
from ortloom.exporter.sources.open_source import open_source
from ortloom.kernels import packing
from ortloom.kernels.contract import DOMAIN
from ortloom.models.manifest import Manifest

SPARSE = ("mixtral", "olmoe", "qwen3-moe-mixed")
GATE_UP, DOWN = (f"model.layers.1.mlp.experts.{name}_proj" for name in ("gate_up", "down"))


# ---- the graphs -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPARSE)
def test_a_layer_of_experts_costs_eight_nodes(name, bundles, tiny):
    config = tiny.family_config(name)
    sparse, layers = sparse_layers(config), config["num_hidden_layers"]
    experts, dense = sum(sparse), layers - sum(sparse)
    ops = dict(Manifest.load(bundles(name)).graph("cpu").ops)
    # OLMoE's norms of whole queries and keys stay before the attention, and so do the projections.
    apart = 2 * layers if name == "olmoe" else 0
    # A layer without experts is one node, its norm included.
    norm = int(sparse[0])
    assert ops["ortloom::ExpertRouting"] == ops["ortloom::PackedExpertsFloatFloat"] == experts
    assert ops["ortloom::PackedLinearFloat"] == 3 * experts + apart + 1
    assert ops.get("ai.onnx::RMSNormalization", 0) == norm + apart
    assert sum(count for op, count in ops.items() if "DecoderLayer" in op) == dense
    assert sum(ops.values()) == 8 * experts + dense + 2 * apart + 4


def test_layers_with_and_without_experts_keep_their_places(bundles):
    path = bundles("qwen3-moe-mixed") / "graphs" / "contract.onnx"
    nodes = onnx.load(path, load_external_data=False).graph.node
    found = [n.input[3] for n in nodes if n.op_type == "PackedExpertsFloatFloat"]
    assert found == [f"model.layers.{i}.mlp.experts.gate_up_proj.f32" for i in (1,)]
    dense = [i for n in nodes for i in n.input if i.endswith("mlp.down_proj.weight.f32")]
    assert dense == [f"model.layers.{i}.mlp.down_proj.weight.f32" for i in (0, 2, 3, 4)]


@pytest.mark.parametrize(("name", "count", "normalize"), [("olmoe", 3, 0), ("mixtral", 2, 1)])
def test_the_routing_is_that_of_the_config(bundles, name, count, normalize):
    model = onnx.load(bundles(name) / "graphs" / "cpu.onnx", load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "ExpertRouting":
            values = {a.name: a.i for a in node.attribute}
            assert values == {"top_k": count, "normalize": normalize}


@pytest.mark.parametrize(("name", "quant"), [*((n, None) for n in SPARSE), ("qwen3-moe", "int4")])
def test_planned_size_is_the_size(checkpoints, bundles, name, quant):
    planned = plan(ExportOptions(source=str(checkpoints(name)), output="unused", quant=quant))
    manifest = Manifest.load(bundles(name, quant))
    assert 0 <= planned.weight_bytes["cpu"] - manifest.weight_bytes("cpu") < 64 * 1024
    assert planned.parameters == manifest.architecture.num_parameters


# ---- weights ----------------------------------------------------------------------------------


def stored(folder, name):
    """A tensor of the weight file."""
    (file,) = Manifest.load(folder).weights
    (found,) = (tensor for tensor in file.tensors if tensor.name == name)
    with (folder / file.file.path).open("rb") as data:
        data.seek(found.offset)
        raw = data.read(found.length)
    return np.frombuffer(raw, found.dtype).reshape(found.shape)


def test_experts_are_rounded_one_by_one_and_routers_never(checkpoints, bundles):
    folder = bundles("qwen3-moe", "int4")
    source = load_file(checkpoints("qwen3-moe") / "model.safetensors")
    for name, parts in ((GATE_UP, ("gate_proj", "up_proj")), (DOWN, ("down_proj",))):
        prefix = name.rpartition(".")[0]
        for expert in range(8):
            rows = np.concatenate([source[f"{prefix}.{expert}.{p}.weight"] for p in parts])
            found = fit_blocks(rows)
            kinds = {
                "u4": packing.pack_codes(found.codes, "u4"),
                "scales": packing.pack_blocks(found.scales),
                "mins": packing.pack_blocks(found.mins),
            }
            for kind, wanted in kinds.items():
                np.testing.assert_array_equal(stored(folder, f"{name}.{kind}")[expert], wanted)
    excluded = Manifest.load(folder).quantization.excluded
    assert "model.layers.0.mlp.gate.weight" in excluded
    assert not [name for name in excluded if "experts" in name]


def write(folder, tensors, config=None):
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or {}))
    return folder


def expert_tensors(experts=3, half=4, width=6):
    rng = np.random.default_rng(0)
    shapes = {"gate_proj": (half, width), "up_proj": (half, width), "down_proj": (width, half)}
    return {
        f"model.layers.1.mlp.experts.{e}.{part}.weight": rng.standard_normal(shape).astype("f4")
        for e in range(experts)
        for part, shape in shapes.items()
    }


def test_rows_of_experts_cross_the_stored_matrices(tmp_path):
    tensors = expert_tensors() | {"model.norm.weight": np.ones(3, np.float32)}
    source = open_source(str(write(tmp_path / "m", tensors)))
    assert {n: i.shape for n, i in source.tensors.items()} == {
        GATE_UP: (3, 8, 6), DOWN: (3, 6, 4), "model.norm.weight": (3,),
    }  # fmt: skip
    prefix = GATE_UP.rpartition(".")[0]
    both = [np.concatenate([tensors[f"{prefix}.{e}.{p}_proj.weight"] for p in ("gate", "up")])
            for e in range(3)]  # fmt: skip
    for start, stop in ((0, 8), (0, 3), (2, 6), (4, 8), (5, 7)):
        got = expert_rows(source, GATE_UP, 2, start, stop)
        np.testing.assert_array_equal(got, both[2][start:stop])
    np.testing.assert_array_equal(source.rows(GATE_UP, 1, 3), np.stack(both[1:]))
    assert source.rows("model.norm.weight", 0, 3).tolist() == [1, 1, 1]


def test_experts_stored_as_one_tensor_are_read_as_well(tmp_path):
    whole = np.arange(3 * 8 * 6, dtype=np.float32).reshape(3, 8, 6)
    source = open_source(str(write(tmp_path / "m", {GATE_UP: whole})))
    assert not isinstance(source, ExpertsView)
    np.testing.assert_array_equal(expert_rows(source, GATE_UP, 2, 3, 5), whole[2, 3:5])


def test_mixtral_s_names(tmp_path):
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    renamed = {"model.layers.1.block_sparse_moe.gate.weight": np.ones((3, 6), np.float32)}
    tensors = expert_tensors()
    for name, array in tensors.items():
        for ours, theirs in names.items():
            if ours in name:
                moved = name.replace(".mlp.", ".block_sparse_moe.").replace(ours, theirs)
                renamed[moved] = array
    source = open_source(str(write(tmp_path / "m", renamed)))
    assert set(source.tensors) == {GATE_UP, DOWN, "model.layers.1.mlp.gate.weight"}
    plain = open_source(str(write(tmp_path / "n", tensors)))
    for name in (GATE_UP, DOWN):
        np.testing.assert_array_equal(source.rows(name, 0, 3), plain.rows(name, 0, 3))


def test_kept_forms_are_those_of_all_experts(tmp_path):
    halves = {name: a.astype(np.float16) for name, a in expert_tensors().items()}
    source = open_source(str(write(tmp_path / "m", halves)))
    assert source.block_form(GATE_UP) == PackedForm("f16", native=True)
    name = next(iter(halves))
    halves[name] = halves[name].astype(np.float32)
    source = open_source(str(write(tmp_path / "n", halves)))
    assert source.block_form(GATE_UP) is None
    assert source.block_form(DOWN) == PackedForm("f16", native=True)


def without(tensors, name):
    del tensors[name]


def narrower(tensors, name):
    tensors[name] = tensors[name][:-1]


def twice(tensors, name):
    moved = name.replace(".mlp.", ".block_sparse_moe.").replace("up_proj", "w3")
    tensors[moved] = tensors[name]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without, f"expert 1 of '{GATE_UP}' lacks a matrix"),
        (narrower, f"the matrices of '{GATE_UP}' differ in shape"),
        (twice, "is also stored under another name"),
    ],
)
def test_incomplete_experts_are_refused(tmp_path, change, text):
    tensors = expert_tensors()
    change(tensors, "model.layers.1.mlp.experts.1.up_proj.weight")
    with pytest.raises(SourceInvalid, match=text):
        open_source(str(write(tmp_path / "m", tensors)))


def test_too_few_experts_are_refused(tmp_path, tiny):
    config = tiny.family_config("qwen3-moe")
    tensors = {n: a for n, a in tiny.random_tensors(config).items() if ".experts.7." not in n}
    source = open_source(str(write(tmp_path / "m", tensors, config)))
    with pytest.raises(SourceInvalid, match=r"shape \[7, 128, 128\], .* \[8, 128, 128\]"):
        require_parameters(source, parameter_shapes(config), {})


# ---- what transformers saves, and what it builds ------------------------------------------------


@pytest.mark.parametrize("name", ["mixtral", "olmoe", "qwen3-moe", "qwen3-moe-mixed"])
def test_a_checkpoint_that_transformers_saved_has_the_parameters_of_its_model(tmp_path, tiny, name):
    facts = tiny.family_config(name)
    config = make_config({k: v for k, v in facts.items() if k != "dtype"})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "m")
    source = open_source(str(tmp_path / "m"))
    assert isinstance(source, ExpertsView)
    saved = source.config()
    assert require_supported(saved) == type(model).__name__
    shapes = parameter_shapes(saved)
    require_parameters(source, shapes, {})
    assert source.warnings == []
    for parameter, value in model.named_parameters():
        assert shapes[parameter] == tuple(value.shape)
        got = source.rows(parameter, 0, value.shape[0])
        np.testing.assert_array_equal(got, value.detach().numpy())
    assert len(shapes) == len(list(model.named_parameters()))


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("qwen3-moe", {"moe_intermediate_size": 72}, "experts of 72 inner channels"),
        ("mixtral", {"intermediate_size": 24}, "experts of 24 inner channels"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
        ("qwen3-moe", {"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
    ],
)
def test_features_that_are_not_supported(tiny, name, changes, text):
    with pytest.raises(UnsupportedModel, match=text):
        require_supported(tiny.family_config(name, **changes))


def test_which_layers_have_experts(tiny):
    def layers(**changes):
        return [int(s) for s in sparse_layers(tiny.family_config("qwen3-moe-mixed", **changes))]

    assert layers() == [0, 1, 0, 0, 0]
    assert layers(mlp_only_layers=None) == [0, 1, 0, 1, 0]
    assert layers(decoder_sparse_step=1, mlp_only_layers=[0]) == [0, 1, 1, 1, 1]
    assert layers(num_experts=0) == [0] * 5
    assert sparse_layers(tiny.family_config("mixtral")) == (True,)
    assert sparse_layers(tiny.family_config("qwen3")) == (False, False)


def routing_graph(score="Softmax", axis=-1, ordered=1, sums=-1, weights="w"):
    """Experts behind a routing, as they are translated."""
    nodes = [
        helper.make_node(
            score, ["logits"], ["p"], **({"axis": axis} if score == "Softmax" else {})
        ),
        helper.make_node("Cast", ["p"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("TopK", ["wide", "k"], ["v", "ids"], sorted=ordered),
        helper.make_node("ReduceSum", ["v", "axes"], ["total"], keepdims=1),
        helper.make_node("Div", ["v", "total"], ["w"]),
        helper.make_node("Experts", ["x", "ids", weights, "g", "d"], ["y"], domain=DOMAIN),
    ]
    info = helper.make_tensor_value_info
    shapes = {"logits": ["T", 8], "x": ["T", 16], "g": [8, 32, 16], "d": [8, 16, 16]}
    graph = helper.make_graph(
        nodes,
        "routing",
        [info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [info("y", TensorProto.FLOAT, ["T", 16])],
        [numpy_helper.from_array(np.array([2]), "k"),
         numpy_helper.from_array(np.array([sums]), "axes")],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports)).graph


@pytest.mark.parametrize(("weights", "normalize"), [("w", 1), ("v", 0)])
def test_a_routing_becomes_one_node(weights, normalize):
    graph = routing_graph(weights=weights)
    assert fuse_routing(graph) == 1
    routing, experts = list(graph)
    assert (routing.op_type, experts.op_type) == ("ExpertRouting", "Experts")
    assert [routing.attributes[n].value for n in ("top_k", "normalize")] == [2, normalize]
    assert routing.inputs[0].name == "logits"
    assert list(experts.inputs[1:3]) == list(routing.outputs)


@pytest.mark.parametrize(
    "changes",
    [
        {"score": "Sigmoid"},
        {"axis": 0},
        {"ordered": 0},
        {"sums": 0},
        {"weights": "p"},
    ],
    ids=str,
)
def test_another_routing_is_refused(changes):
    with pytest.raises(UnsupportedModel, match="experts are not chosen by a softmax over all"):
        fuse_routing(routing_graph(**changes))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"has_bias": True}, "Experts has biases"),
        ({"has_post_expert_norm": True}, "a norm behind"),
        ({"has_gate": False}, "no gate"),
        ({"is_transposed": True}, "transposed"),
        ({"is_concatenated": False}, "interleaved"),
        ({"act_fn": torch.nn.ReLU()}, "activation ReLU"),
    ],
)
def test_experts_of_another_formula_are_refused(change, text):
    from transformers.integrations.moe import _default_apply_gate

    class Experts(SimpleNamespace):
        _apply_gate = _default_apply_gate

    facts = {"has_bias": False, "has_post_expert_norm": False, "has_gate": True}
    facts |= {"is_transposed": False, "is_concatenated": True, "act_fn": torch.nn.SiLU()}
    none = torch.zeros(1, 1)
    with pytest.raises(UnsupportedModel, match=text):
        emit_experts(Experts(**{**facts, **change}), none, none, none)


def test_experts_with_a_gate_of_their_own_are_refused():
    class Clipped(SimpleNamespace):
        def _apply_gate(self, x):
            return x

    facts = {"has_bias": False, "has_post_expert_norm": False, "has_gate": True}
    facts |= {"is_transposed": False, "is_concatenated": True, "act_fn": torch.nn.SiLU()}
    none = torch.zeros(1, 1)
    with pytest.raises(UnsupportedModel, match="Clipped has a gate of its own"):
        emit_experts(Clipped(**facts), none, none, none)
