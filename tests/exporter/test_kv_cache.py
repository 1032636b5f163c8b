"""The graphs of each type of KV cache: what they are, and what they compute."""

import numpy as np
import onnx
import pytest

from ortloom.errors import UnsupportedModel
from ortloom.exporter.bodies import detach_bodies
from ortloom.exporter.rewrites.kv_cache import FORMS
from ortloom.exporter.structure import require_structure
from ortloom.exporter.verify import schedule
from ortloom.exporter.verify.check import check_tokens
from ortloom.exporter.verify.figures import compare
from ortloom.exporter.verify.first_layers import first_layers
from ortloom.exporter.verify.session import GraphRunner, narrowed
from ortloom.kernels.contract import HEAD_MAJOR_LAYOUT, POOL_OPS
from ortloom.kernels.layer_contract import LAYER_OPS, layer_name
from ortloom.models.manifest import Manifest

PATHS = {
    "float32": "graphs/cpu.onnx",
    "float16": "graphs/cpu.kv-float16.onnx",
    "bfloat16": "graphs/cpu.kv-bfloat16.onnx",
    "int8_per_token_head": "graphs/cpu.kv-int8.onnx",
}
SMALLER = [
    pytest.param("float16", 2e-3, id="f16"),
    pytest.param("bfloat16", 2e-2, id="bf16"),
    pytest.param("int8_per_token_head", 5e-2, id="int8"),
]


def layers(model):
    return [node for node in model.graph.node if node.op_type in LAYER_OPS]


def test_the_bundle_has_a_cpu_graph_for_each(bundles):
    folder = bundles("qwen2")
    manifest = Manifest.load(folder)
    assert manifest.kv_cache_dtypes("cpu") == tuple(PATHS)
    assert manifest.kv_cache_dtypes("plain") == manifest.kv_cache_dtypes("contract") == ("float32",)
    assert manifest.graph("plain").kv_layout == manifest.kv_groups[0].kv_layout == "NB,BS,H,D"
    contract = manifest.graph("contract")
    for form in FORMS:
        graph = manifest.graph("cpu", form.name)
        assert graph.file.path == PATHS[form.name]
        assert graph.file.size < 200_000
        assert graph.kv_layout == HEAD_MAJOR_LAYOUT
        ops = dict(graph.ops)
        names = [layer_name(POOL_OPS[form.pools], number) for number in range(2)]
        assert [ops[f"ortloom::{name}"] for name in names] == [1, 2]
        kinds = {spec.name: spec for spec in graph.inputs}
        for name in (*graph.io.k_cache, *graph.io.v_cache):
            assert kinds[name].dtype == form.pools
            assert kinds[name].shape == ("num_blocks", "block_size", 2, 64)
        others = {spec.name: spec for spec in contract.inputs if "_cache." not in spec.name}
        assert all(kinds[name] == spec for name, spec in others.items())
        scales = (*graph.io.k_scale, *graph.io.v_scale)
        assert len(scales) == (6 if form.pools == "int8" else 0)
        for name in scales:
            assert kinds[name].dtype == "float32"
            assert kinds[name].shape == ("num_blocks", "block_size", 2)
        outputs = [spec.name for spec in graph.outputs]
        assert outputs == ["logits", *(f"{which}_out.{i}" for which in ("k_cache", "v_cache")
                                       for i in range(3)),
                           *graph.io.k_scale_out, *graph.io.v_scale_out]  # fmt: skip


def test_the_graphs_differ_in_their_layers_alone(bundles):
    folder = bundles("qwen2")
    rest = []
    for form in FORMS:
        model = onnx.load(folder / PATHS[form.name], load_external_data=False)
        nodes = layers(model)
        assert len(nodes) == 3
        assert {LAYER_OPS[node.op_type] for node in nodes} == {POOL_OPS[form.pools]}
        for node in nodes:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            assert attributes["kv_layout"].decode() == HEAD_MAJOR_LAYOUT
        others = [node for node in model.graph.node if node not in nodes]
        rest.append([node.SerializeToString() for node in others])
        rest[-1] += [weight.SerializeToString() for weight in model.graph.initializer]
    assert all(other == rest[0] for other in rest[1:])


def run(folder, graph, data, library):
    manifest = Manifest.load(folder)
    tokens = check_tokens(folder, 320)
    runner = GraphRunner(data, folder, graph, manifest.kv_groups, use_library=library)
    found = runner.run(schedule.steps(tokens))
    return np.stack([found[s, p] for s in (0, 1) for p in range(schedule.LENGTHS[s])])


@pytest.mark.parametrize(("kind", "allowed"), SMALLER)
@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_a_smaller_cache_is_near_float32_with_the_op_and_with_the_body(
    bundles, name, kind, allowed
):
    folder = bundles(name)
    manifest = Manifest.load(folder)
    logits = {}
    for which in ("float32", kind):
        graph = manifest.graph("cpu", which)
        data = (folder / graph.file.path).read_bytes()
        for library in (True, False):
            logits[which, library] = run(folder, graph, data, library)
    for library in (True, False):
        figures = compare(logits[kind, library], logits["float32", library])
        assert 1e-6 < figures.relative <= allowed
    # A code that falls on the other side of a tie in the body changes what follows.
    figures = compare(logits[kind, True], logits[kind, False])
    assert figures.relative <= allowed / 2


def test_first_layers_and_narrowed_windows_of_int8(bundles):
    """The check of large models runs a part of the graph."""
    folder = bundles("qwen2")
    graph = Manifest.load(folder).graph("cpu", "int8_per_token_head")
    data = (folder / graph.file.path).read_bytes()
    part, cut = first_layers(graph, data, 2)
    assert part.io.v_scale_out == ("v_scale_out.0", "v_scale_out.1")
    assert {v.name for v in onnx.load_from_string(cut).graph.input} >= {"k_scale.1", "k_cache.1"}
    assert np.isfinite(run(folder, part, cut, True)).all()
    narrow = onnx.load_from_string(narrowed(data, 7))
    windows = [a.i for n in layers(narrow) for a in n.attribute if a.name == "local_window_size"]
    assert sorted(set(windows)) == [-1, 7]


@pytest.mark.parametrize("output", [4, 5])
def test_a_scale_pool_that_does_not_come_back_is_refused(bundles, output):
    import onnx_ir as ir

    model = onnx.load(bundles("qwen3") / PATHS["int8_per_token_head"], load_external_data=False)
    detach_bodies(model)
    require_structure(ir.from_proto(model), 2)
    nodes = layers(model)
    nodes[0].output[output], nodes[1].output[output] = (
        nodes[1].output[output],
        nodes[0].output[output],
    )
    with pytest.raises(UnsupportedModel, match=r"_scale_out.0' does not come from its layer"):
        require_structure(ir.from_proto(model), 2)
