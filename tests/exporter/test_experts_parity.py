"""The parity check of mixtures of experts: rounding may move tokens at near ties, nothing else."""

import hashlib
import shutil
import sys

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from ortloom.errors import ParityFailed
from ortloom.exporter.options import ExportOptions
from ortloom.exporter.progress import LineProgress
from ortloom.exporter.sources.open_source import open_source
from ortloom.exporter.verify.check import check_bundle
from ortloom.exporter.verify.figures import KEPT_LIMITS, ROUNDED_LIMITS
from ortloom.exporter.verify.routing import EXACT, ROUNDED, require_routing, verdict
from ortloom.exporter.verify.stored_weights import StoredWeights
from ortloom.models.manifest import Manifest

FAMILIES = ("mixtral", "olmoe", "qwen3-moe")


@pytest.fixture
def check(checkpoints):
    def report(name, folder):
        options = ExportOptions(source=str(checkpoints(name)), output="unused")
        return check_bundle(folder, options, LineProgress(sys.stderr))["parity"]["targets"]

    return report


@pytest.mark.parametrize("quant", ["int4", "int8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_rounded_experts_pass_by_their_own_values(name, quant, bundles, check):
    for target in check(name, bundles(name, quant)).values():
        assert target["against_stored_weights"]["cosine"] >= KEPT_LIMITS[0]
        assert target["routing"]["largest_gap"] <= ROUNDED.gap
        assert target["routing"]["moved"] <= target["routing_of_the_source"]["moved"] + 0.05
        assert target["against_transformers"]["cosine"] >= ROUNDED_LIMITS[int(quant[3:])][0]
        assert "with_its_own_routing" in target


def test_experts_in_fp32_choose_as_transformers_does(bundles, check):
    for target in check("mixtral", bundles("mixtral")).values():
        assert target["routing"] == {"largest_gap": 0, "moved": 0}
        assert target["with_its_own_routing"] == target["against_transformers"]
        assert "against_stored_weights" not in target


def test_another_weighting_of_the_experts_is_found(bundles, check, tmp_path):
    """The graph chooses the same experts, and the logits are not what its weights give."""
    folder = tmp_path / "changed"
    shutil.copytree(bundles("olmoe"), folder)
    manifest, graphs = Manifest.load(folder), []
    for graph in manifest.graphs:
        path = folder / graph.file.path
        model = onnx.load(path, load_external_data=False)
        for node in model.graph.node:
            for attribute in node.attribute:
                if node.op_type == "ExpertRouting" and attribute.name == "normalize":
                    attribute.i = 1 - attribute.i
        data = model.SerializeToString()
        path.write_bytes(data)
        file = replace(graph.file, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        graphs.append(replace(graph, file=file))
    changed = replace(manifest, graphs=tuple(graphs)).sealed()
    (folder / "manifest.json").write_bytes(changed.to_bytes())
    with pytest.raises(ParityFailed, match="against transformers: logits differ by"):
        check("olmoe", folder)


def gain_before(name):
    """The gain of the norm whose output a matrix reads."""
    if name == "lm_head.weight":
        return "model.norm.weight"
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        return name.split("self_attn")[0] + "input_layernorm.weight"
    if name.endswith(("mlp.gate.weight", "gate_up_proj")):
        return name.split("mlp")[0] + "post_attention_layernorm.weight"
    return None


@pytest.mark.parametrize("quant", [None, "int8", "int4"])
def test_stored_values_are_those_of_the_source(quant, bundles, checkpoints):
    """As near as rounding leaves them, every parameter of the model."""
    source, stored = (
        open_source(str(checkpoints("mixtral"))),
        StoredWeights(bundles("mixtral", quant)),
    )
    allowed = {None: 0, "int8": 0.01, "int4": 0.12}[quant]
    for name, info in source.tensors.items():
        wanted = source.rows(name, 0, info.shape[0])
        found = stored.values(name, info.shape)
        gain = gain_before(name) if quant == "int8" else None
        if gain is not None:  # factors moved here from there
            left = stored.values(gain, (info.shape[-1],)) / source.rows(gain, 0, info.shape[-1])
            found = found * left
        elif quant == "int8" and "norm" in name:
            assert not np.array_equal(found, wanted), name
            continue
        assert np.linalg.norm(found - wanted) <= allowed * np.linalg.norm(wanted), name
    with pytest.raises(ParityFailed, match=r"do not hold 'model\.nothing'"):
        stored.values("model.nothing", (4, 4))


# ---- choices ----------------------------------------------------------------------------------

LOGITS = np.array([[0.0, 1.0, 2.0, 2.01], [4.0, 3.99, 0.0, 1.0]])


def judged(*ids):
    return verdict({3: [LOGITS]}, {3: [np.array(ids)]})


def test_the_best_experts_in_any_order_have_no_gap():
    assert judged([3, 2], [0, 1]) == judged([2, 3], [1, 0])
    assert (judged([3, 2], [0, 1]).gap, judged([3, 2], [0, 1]).moved) == (0, 0)


def test_a_near_tie_is_a_small_gap():
    found = judged([2], [0])
    assert found.gap == pytest.approx(0.01 / np.mean([2.01, 4.0]))
    assert found.moved == 0.5
    require_routing(verdict({0: [np.tile(LOGITS, (9, 1))]}, {0: [np.array([[3], [0]] * 8 + [
        [2], [0]])]}), True, "graph")  # fmt: skip
    with pytest.raises(ParityFailed, match="below the ones to choose"):
        require_routing(found, False, "graph")
    with pytest.raises(ParityFailed, match=r"50\.0% of the tokens' choices"):
        require_routing(found, True, "graph")


@pytest.mark.parametrize("ids", [([1, 2], [0, 1]), ([3, 0], [0, 1]), ([3, 2], [0, 3])])
def test_another_choice_is_a_large_gap(ids):
    assert judged(*ids).gap > ROUNDED.gap > EXACT.gap
    with pytest.raises(ParityFailed, match="below the ones to choose"):
        require_routing(judged(*ids), True, "graph")


@pytest.mark.parametrize("ids", [([3, 3], [0, 1]), ([3, 4], [0, 1]), ([3, -1], [0, 1])])
def test_experts_named_twice_or_not_there_are_no_choice(ids):
    assert judged(*ids).gap == float("inf")
