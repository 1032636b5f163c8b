"""Every proven family: the bundle's graphs against transformers, through a serving schedule."""

import numpy as np
import onnx
import pytest

from ortloom.exporter.verify import schedule
from ortloom.exporter.verify.check import check_tokens
from ortloom.exporter.verify.figures import FP32_TOLERANCE, compare
from ortloom.exporter.verify.reference import load_model, model_logits
from ortloom.exporter.verify.session import GraphRunner
from ortloom.models.manifest import Manifest

DENSE = ("llama", "llama3-rope", "mistral", "qwen2", "qwen3", "smollm3")
FAMILIES = (*DENSE, "mixtral", "olmoe", "qwen3-moe-mixed")
CALLS = {"scheduled": schedule.steps, "one-shot": schedule.one_shot}


def both(found):
    rows = [found[s, p] for s in (0, 1) for p in range(schedule.LENGTHS[s])]
    return np.stack(rows)


def runner(folder, variant, **options):
    manifest = Manifest.load(folder)
    graph = manifest.graph(variant)
    data = (folder / graph.file.path).read_bytes()
    return GraphRunner(data, folder, graph, manifest.kv_groups, **options)


def attention_nodes(folder, variant="contract"):
    model = onnx.load(folder / "graphs" / f"{variant}.onnx", load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "PagedAttention":
            values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            yield values, list(node.input)


@pytest.fixture(scope="module")
def wanted(checkpoints, bundles):
    known = {}

    def logits(name):
        if name not in known:
            tokens = check_tokens(bundles(name), 320)
            model = load_model(checkpoints(name), {})
            known[name] = tokens, np.concatenate(model_logits(model, tokens))
        return known[name]

    return logits


@pytest.mark.parametrize("name", FAMILIES)
def test_every_graph_gives_the_logits_of_transformers(name, bundles, wanted):
    tokens, reference = wanted(name)
    for variant, library in (("cpu", True), ("cpu", False), ("plain", False), ("contract", True)):
        graph = runner(bundles(name), variant, use_library=library)
        figures = compare(both(graph.run(schedule.steps(tokens))), reference)
        assert figures.scale > 1, "the model must say something"
        assert figures.relative <= FP32_TOLERANCE, (variant, library, figures)


@pytest.mark.parametrize("name", FAMILIES)
def test_scheduling_never_changes_a_bit(name, bundles, wanted):
    tokens, _ = wanted(name)
    results = [
        both(runner(bundles(name), "cpu", threads=threads).run(calls(tokens)))
        for threads, calls in ((1, schedule.steps), (2, schedule.one_shot), (4, schedule.steps))
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_the_window_bites(bundles, wanted):
    """A token far outside every window does not reach the last logits of one windowed layer."""
    tokens, _ = wanted("mistral")
    changed = [list(t) for t in tokens]
    changed[0][0] = (changed[0][0] + 1) % 256
    graph = runner(bundles("mistral"), "cpu")
    one, other = (both(graph.run(schedule.one_shot(t))) for t in (tokens, changed))
    reach = 2 * (12 - 1)  # two layers, each carries a token 11 further
    assert not np.array_equal(one[reach], other[reach])
    np.testing.assert_array_equal(one[reach + 1 : 53], other[reach + 1 : 53])


def test_rotary_and_norms_live_in_the_attention_op(bundles):
    for name, rotary in (("llama", [1, 1]), ("qwen3", [1, 1]), ("smollm3", [1, 0, 1, 1])):
        nodes = list(attention_nodes(bundles(name)))
        assert [values["do_rotary"] for values, _ in nodes] == rotary
        for _, inputs in nodes:
            assert inputs[8:10] == ["rope.0.cos", "rope.0.sin"]  # one body, so all of them
            has_norm = len(inputs) > 13 and inputs[12].endswith("q_norm.weight")
            assert has_norm == (name == "qwen3")


def test_windows_come_from_the_traced_calls(bundles):
    windows = [v["local_window_size"] for v, _ in attention_nodes(bundles("qwen2"))]
    assert windows == [-1, 12, 12]
    groups = Manifest.load(bundles("qwen2")).kv_groups
    assert [(g.kind, g.layers, g.window) for g in groups] == [
        ("full", (0,), None),
        ("sliding", (1, 2), 12),
    ]


@pytest.mark.parametrize("name", DENSE)
def test_a_layer_costs_one_node(name, bundles):
    manifest = Manifest.load(bundles(name))
    layers = manifest.architecture.num_layers
    ops = dict(manifest.graph("cpu").ops)
    tied = manifest.architecture.tied_embeddings
    table = {"ortloom::PackedEmbeddingFloat": 1} if tied else {}
    assert ops == {
        "ai.onnx::Gather": 1 if tied else 2,
        "ortloom::PackedLinearFloat": 1,
        "ortloom::DecoderLayer": 1,  # the first has nothing to add in front of its norm
        "ortloom::DecoderLayer_2": layers - 1,
        "ortloom::SkipRMSNorm": 1,
        **table,
    }


def test_every_graph_carries_the_bodies_of_its_ops(bundles):
    for variant in ("contract", "cpu", "plain"):
        path = bundles("qwen2", "int4") / "graphs" / f"{variant}.onnx"
        model = onnx.load(path, load_external_data=False)
        assert {f.domain for f in model.functions} == {"ortloom"}
        assert not any(f.overload for f in model.functions)
        own = {n.op_type for n in model.graph.node if n.domain == "ortloom"}
        head = "PackedLinearSymmetric"
        parts = {"PagedAttention", "PackedLinearMinima", head}
        if variant == "cpu":  # the bodies of layers hold nodes of the parts
            assert own == {"DecoderLayer", "DecoderLayer_2", "SkipRMSNorm", head}
        else:
            assert own == parts
        assert {f.name for f in model.functions} == own | parts
        assert all(n.overload == "" for n in model.graph.node)
        assert max(o.version for o in model.opset_import if o.domain == "") <= 23
