"""One linear for query, key and value: the same bits, bytes stored once, all layers or none."""

import shutil
from itertools import pairwise

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortloom.errors import ManifestError, UnsupportedModel
from ortloom.exporter.bodies import detach_bodies
from ortloom.exporter.rewrites.fused_qkv import fuse_qkv, joined_weights, packable
from ortloom.exporter.rewrites.gated_linear import fuse_gates, gates, joined_gates
from ortloom.exporter.rewrites.joined_linears import joined_name
from ortloom.exporter.rewrites.silu import fuse_silu
from ortloom.exporter.rewrites.skip_norm import fuse_skip_norm
from ortloom.exporter.variants import to_bytes
from ortloom.exporter.verify import schedule
from ortloom.exporter.verify.check import check_tokens
from ortloom.exporter.verify.session import GraphRunner
from ortloom.exporter.weights import StoredTensor, WeightJob, WeightLayout
from ortloom.models.manifest import MANIFEST_NAME, Manifest
from ortloom.models.weight_file import WEIGHT_ALIGNMENT

CASES = [
    ("qwen2", None), ("qwen3", None), ("llama", "int4"), ("qwen2", "int4"), ("qwen2", "int8"),
]  # fmt: skip


def contract_model(folder):
    proto = onnx.load(folder / "graphs" / "contract.onnx", load_external_data=False)
    detach_bodies(proto)
    return ir.from_proto(proto)


def before_layers(folder, fused):
    """The cpu graph with and without the rewrite, its layers still node by node."""
    model = contract_model(folder)
    fuse_gates(model.graph)
    fuse_silu(model.graph)
    fuse_skip_norm(model.graph)
    if fused:
        assert fuse_qkv(model.graph) > 0
    return to_bytes(model)


def logits(folder, data, calls, threads):
    manifest = Manifest.load(folder)
    runner = GraphRunner(
        data, folder, manifest.graph("cpu"), manifest.kv_groups, use_library=True, threads=threads
    )
    found = runner.run(calls(check_tokens(folder, 320)))
    return np.stack([found[key] for key in sorted(found)])


@pytest.mark.parametrize(("name", "quant"), CASES)
def test_fused_and_separate_linears_give_the_same_bits(name, quant, bundles):
    folder = bundles(name, quant)
    fused, separate = (before_layers(folder, fused) for fused in (True, False))
    nodes = onnx.load_from_string(fused).graph.node
    attention = [n for n in nodes if n.op_type == "PagedAttention"]
    assert attention
    assert all(list(n.input[1:3]) == ["", ""] for n in attention)
    for calls, threads in ((schedule.steps, 1), (schedule.one_shot, 2)):
        one, other = (logits(folder, data, calls, threads) for data in (fused, separate))
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize(("name", "quant"), [("qwen2", None), ("qwen2", "int4")])
def test_parts_and_whole_are_the_same_bytes(name, quant, bundles):
    manifest = Manifest.load(bundles(name, quant))
    (weights,) = manifest.weights
    tensors = {t.name: t for t in weights.tensors}
    parts = [t for t in weights.tensors if t.part_of is not None]
    kinds = {None: ("weight.f32",), "int4": ("weight.u4", "weight.scales", "weight.mins")}[quant]
    layers = range(manifest.architecture.num_layers)
    assert {t.part_of for t in parts} == {
        *(f"model.layers.{i}.self_attn.qkv.{kind}" for i in layers for kind in (*kinds, "bias")),
        *(f"model.layers.{i}.mlp.gate_up.{kind}" for i in layers for kind in kinds),
    }
    for parent in {t.part_of for t in parts}:
        whole, mine = tensors[parent], [t for t in parts if t.part_of == parent]
        names = {"qkv": ["q_proj", "k_proj", "v_proj"], "gate_up": ["gate_proj", "up_proj"]}
        assert [t.name.split(".")[4] for t in mine] == names[parent.split(".")[4]]
        assert whole.offset == mine[0].offset
        assert whole.offset % WEIGHT_ALIGNMENT == 0
        for one, after in pairwise(mine):
            assert one.offset + one.length == after.offset
        assert sum(t.length for t in mine) == whole.length
        assert whole.shape == (sum(t.shape[0] for t in mine), *mine[0].shape[1:])
    stored = sorted((t for t in weights.tensors if t.part_of is None), key=lambda t: t.offset)
    ends = [t.offset + t.length for t in stored]
    assert all(end <= after.offset for end, after in zip(ends, stored[1:], strict=False))
    assert ends[-1] == weights.file.size


def test_only_the_cpu_graph_is_fused(bundles):
    for variant in ("contract", "plain"):
        path = bundles("qwen2", "int8") / "graphs" / f"{variant}.onnx"
        names = {i.name for i in onnx.load(path, load_external_data=False).graph.initializer}
        assert "model.layers.0.self_attn.q_proj.weight.u8" in names
        assert not any("qkv" in name for name in names)
    path = bundles("qwen2", "int8") / "graphs" / "cpu.onnx"
    names = {i.name for i in onnx.load(path, load_external_data=False).graph.initializer}
    assert "model.layers.0.self_attn.qkv.weight.u8" in names
    assert not any("q_proj" in name for name in names)


def test_a_part_outside_its_whole_is_noticed(bundles, tmp_path):
    manifest = Manifest.load(bundles("llama"))
    folder = tmp_path / "bundle"
    shutil.copytree(bundles("llama"), folder)
    (weights,) = manifest.weights
    place = next(i for i, t in enumerate(weights.tensors) if t.part_of is not None)
    part = weights.tensors[place]
    for change, text in (
        ({"offset": part.offset + weights.tensors[place - 1].length}, "lies outside"),
        ({"part_of": "nothing"}, "lies outside 'nothing'"),
        ({"part_of": None, "offset": part.offset + 4}, "is not aligned"),
    ):
        tensors = list(weights.tensors)
        tensors[place] = msgspec.structs.replace(part, **change)
        changed = msgspec.structs.replace(weights, tensors=tuple(tensors))
        sealed = msgspec.structs.replace(manifest, weights=(changed,)).sealed()
        (folder / MANIFEST_NAME).write_bytes(sealed.to_bytes())
        with pytest.raises(ManifestError, match=text):
            Manifest.load(folder)


# --- what is not fused ------------------------------------------------------------------------


def attention_of(graph, layer):
    return [n for n in graph if n.op_type == "PagedAttention"][layer]


def another_input(graph, key):
    key.replace_input_with(0, attention_of(graph, 0).outputs[0])


def another_block_size(graph, key):
    key.attributes["block_size"] = ir.AttrInt64("block_size", 64)


def no_bias(graph, key):
    key.replace_input_with(4, None)


def part_of_a_panel(graph, key):
    key.attributes["N"] = ir.AttrInt64("N", 120)


def read_twice(graph, key):
    norm = next(n for n in graph if n.op_type == "RMSNormalization")
    norm.replace_input_with(0, key.outputs[0])


def something_between(graph, key):
    made = ir.Node("", "Sigmoid", [key.outputs[0]])
    graph.insert_after(key, made)
    attention_of(graph, 1).replace_input_with(1, made.outputs[0])


def constant_weight(graph, key):
    array = np.zeros((128, 128), np.float32)
    key.inputs[1].const_value = ir.tensor(array)


@pytest.mark.parametrize(
    "change",
    [
        another_input,
        another_block_size,
        no_bias,
        part_of_a_panel,
        read_twice,
        something_between,
        constant_weight,
    ],
)
def test_one_layer_that_does_not_qualify_leaves_all_as_they_are(change, bundles):
    model = contract_model(bundles("qwen2"))
    assert len(packable(model.graph)) == 3
    change(model.graph, attention_of(model.graph, 1).inputs[1].producer())
    before = [n.op_type for n in model.graph]
    assert packable(model.graph) == []
    assert joined_weights(model.graph) == ()
    assert fuse_qkv(model.graph) == 0
    assert [n.op_type for n in model.graph] == before


def test_weights_that_lie_apart_are_refused(bundles):
    model = contract_model(bundles("llama"))
    weight = model.graph.initializers["model.layers.1.self_attn.k_proj.weight.f32"]
    old = weight.const_value
    weight.const_value = ir.ExternalTensor(
        old.location, old.offset + 64, old.length, old.dtype, shape=old.shape, name=old.name
    )
    with pytest.raises(UnsupportedModel, match=r"layers\.1\.self_attn\.qkv\.weight.*side by side"):
        fuse_qkv(model.graph)


def up_of_another_width(graph, gate):
    gate.linears[1].attributes["N"] = ir.AttrInt64("N", 16)


def up_of_other_rows(graph, gate):
    gate.linears[1].replace_input_with(0, attention_of(graph, 0).outputs[0])


def gate_read_twice(graph, gate):
    norm = next(n for n in graph if n.op_type == "RMSNormalization")
    norm.replace_input_with(0, gate.linears[0].outputs[0])


@pytest.mark.parametrize("change", [up_of_another_width, up_of_other_rows, gate_read_twice])
def test_a_gate_that_does_not_qualify_stays_as_it_is(change, bundles):
    model = contract_model(bundles("qwen2"))
    assert len(gates(model.graph)) == 3
    change(model.graph, gates(model.graph)[1])
    assert len(gates(model.graph)) == len(joined_gates(model.graph)) == 2
    assert fuse_gates(model.graph) == 2


# --- names and layout -------------------------------------------------------------------------


def test_names():
    names = [f"model.layers.3.self_attn.{p}_proj.weight.u4" for p in "qkv"]
    assert joined_name(names, "qkv") == "model.layers.3.self_attn.qkv.weight.u4"


def test_a_layout_keeps_joined_tensors_together():
    from ortloom.exporter.weights import JoinedTensor

    tensors = [StoredTensor(name, "float32", (rows, 5)) for name, rows in
               (("a", 3), ("x", 7), ("b", 2), ("y", 1))]  # fmt: skip
    layout = WeightLayout(
        jobs=[WeightJob((tensor,), lambda: iter(())) for tensor in tensors],
        joined=(JoinedTensor("ab", ("a", "b")),),
    )
    first = WEIGHT_ALIGNMENT
    offsets = {name: offset for name, (_, offset) in layout.places().items()}
    assert offsets == {"a": first, "b": first + 60, "x": 2 * first, "y": 3 * first}
    assert layout.size() == 3 * first + 20
    described = [(t.name, t.shape, t.length, t.part_of) for t in layout.described()]
    assert described == [
        ("ab", (5, 5), 100, None),
        ("a", (3, 5), 60, "ab"),
        ("b", (2, 5), 40, "ab"),
        ("x", (7, 5), 140, None),
        ("y", (1, 5), 20, None),
    ]
