"""Factors between gains and columns: the model stays the same, and int8 follows fp32 closer."""

import io
import json

import numpy as np
import pytest
import torch

from ortloom.errors import SourceInvalid
from ortloom.exporter import graph_build
from ortloom.exporter.architectures import parameter_shapes, tied
from ortloom.exporter.balance import LIMIT, factors_of
from ortloom.exporter.exact_product import exponential, product
from ortloom.exporter.graph_build import build_contract
from ortloom.exporter.options import Storage
from ortloom.exporter.progress import LineProgress
from ortloom.exporter.sources.open_source import open_source
from ortloom.exporter.typical_inputs import TOKENS, typical_inputs
from ortloom.exporter.verify import schedule
from ortloom.exporter.verify.check import check_tokens
from ortloom.exporter.verify.figures import compare
from ortloom.exporter.verify.reference import load_model, model_logits
from ortloom.exporter.verify.session import GraphRunner
from ortloom.exporter.weights import row_chunks
from ortloom.models.manifest import Manifest

FAMILIES = ("llama", "mistral", "mixtral", "olmoe", "qwen2", "qwen3", "qwen3-moe-mixed", "smollm3")
LIKE_OTHERS = ("mistral", "mixtral", "olmoe", "qwen3")
"""Families whose graphs differ little from another's: left to the full tests."""


def built(folder, quant):
    source = open_source(str(folder))
    return build_contract(
        source.config(), Storage(quant=quant), source, LineProgress(io.StringIO())
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.full if n in LIKE_OTHERS else ()) for n in FAMILIES],
)
def test_the_model_stays_the_same(name, checkpoints):
    """In fp32, with the values that int8 rounds: every norm before linears has given factors."""
    folder = checkpoints(name)
    found = built(folder, "int8")
    config = open_source(str(folder)).config()
    assert found.parameters == parameter_shapes(config)  # the estimate trusts them
    assert found.balanced == 2 * config["num_hidden_layers"] + (not tied(config))
    for name, factor in found.source.factors.items():
        assert factor.dtype == np.float32
        assert factor.std() > 0.01, name
    model = load_model(folder, {})
    ids = np.random.default_rng(1).integers(0, config["vocab_size"], (2, 40)).tolist()
    wanted = np.concatenate(model_logits(model, ids))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for start, stop in row_chunks(tuple(parameter.shape)):
                if parameter.ndim == 3:
                    rows = np.stack(
                        [
                            found.source.expert_rows(name, e, 0, parameter.shape[1])
                            for e in range(start, stop)
                        ]
                    )
                else:
                    rows = found.source.rows(name, start, stop)
                parameter[start:stop].copy_(torch.from_numpy(np.array(rows)))
    figures = compare(np.concatenate(model_logits(model, ids)), wanted)
    assert 0 < figures.relative < 2e-5


def test_kept_values_are_left_alone(checkpoints):
    """Of fp32 and int4 the next test says the same."""
    assert built(checkpoints("qwen2"), "keep").source.factors == {}


def test_the_report_counts_the_norms(bundles):
    counts = {
        quant: json.loads((bundles("qwen2", quant) / "report.json").read_text())["balanced_norms"]
        for quant in (None, "int4", "int8")
    }
    layers = Manifest.load(bundles("qwen2")).architecture.num_layers
    assert counts == {None: 0, "int4": 0, "int8": 2 * layers + 1}


@pytest.mark.parametrize("name", FAMILIES)
def test_estimates_are_exact_where_attention_is_even(name, tiny, tmp_path):
    """Queries of zero make attention the mean that the estimate takes it for."""
    config = tiny.family_config(name, sliding_window=None, use_sliding_window=False)
    if "layer_types" in config:
        config["layer_types"] = ["full_attention"] * len(config["layer_types"])
    tensors = tiny.random_tensors(config)
    for key in tensors:
        if "q_proj" in key:
            tensors[key][:] = 0
    folder = tiny.write_checkpoint(tmp_path / "m", config, tensors)
    ids = [(i * 0x9E3779B1 >> 5) % config["vocab_size"] for i in range(TOKENS)]
    model, seen = load_model(folder, {}), {}
    for key, module in model.named_modules():
        if key.endswith(("layernorm", "model.norm")):
            module.register_forward_hook(
                lambda _, __, out, key=key: seen.update({key + ".weight": out[0].numpy()})
            )
    model_logits(model, [ids])
    found = dict(typical_inputs(open_source(str(folder)), config))
    assert found.keys() == seen.keys()
    for key, sizes in found.items():
        wanted = np.sqrt((seen[key].astype(np.float64) ** 2).mean(axis=0))
        np.testing.assert_allclose(sizes, wanted, rtol=1e-3, err_msg=key)


def test_outliers_cost_less(tiny, tmp_path, monkeypatch):
    """A few channels thirty times as large: without factors the others of their group suffer."""
    config = tiny.family_config("qwen2")
    tensors = tiny.random_tensors(config)
    readers = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    for name, values in tensors.items():
        if name.endswith("layernorm.weight"):
            values[7::32] *= 30
        elif name.endswith(tuple(f"{reader}.weight" for reader in readers)):
            values[:, 7::32] /= 30
    source = tiny.write_checkpoint(tmp_path / "m", config, tensors)
    tiny.run_export(source, tmp_path / "int8", quant="int8")
    monkeypatch.setattr(graph_build, "BALANCED", frozenset())
    tiny.run_export(source, tmp_path / "plain", quant="int8")
    tokens = check_tokens(tmp_path / "int8", config["vocab_size"])
    wanted = np.concatenate(model_logits(load_model(source, {}), tokens))
    kl = {}
    for name in ("int8", "plain"):
        manifest = Manifest.load(tmp_path / name)
        graph = manifest.graph("cpu")
        data = (tmp_path / name / graph.file.path).read_bytes()
        run = GraphRunner(data, tmp_path / name, graph, manifest.kv_groups)
        found = run.run(schedule.steps(tokens))
        rows = [found[s, p] for s in (0, 1) for p in range(schedule.LENGTHS[s])]
        kl[name] = compare(np.stack(rows), wanted).kl
    assert 0 < kl["int8"] < kl["plain"] / 3


def test_what_has_no_size_gives_no_factors():
    ones = np.ones(32)
    assert factors_of(ones, np.zeros(32)) is None
    assert factors_of(np.zeros(32), ones) is None
    assert factors_of(np.full(32, np.nan), ones) is None
    assert factors_of(ones, np.full(32, np.inf)) is None


def test_factors_are_bounded_and_keep_the_size_of_the_matrix():
    channels, columns = np.ones(64), np.ones(64)
    channels[3], channels[9], columns[5] = 50.0, 0.0, 0.0
    found = factors_of(channels, columns)
    assert found.dtype == np.float32
    assert (found[3] > 6 * found[0], found[9] < found[0], found[5] > found[0]) == (True,) * 3
    np.testing.assert_allclose((columns * found.astype(np.float64) ** 2).sum(), 63, rtol=1e-5)
    steep = factors_of(np.where(np.arange(64) == 0, 1e9, 1), np.where(np.arange(64) == 1, 1e9, 1))
    assert 1 / LIMIT <= steep.min() <= steep.max() <= LIMIT


def test_products_do_not_depend_on_the_order_of_the_sums():
    generator = np.random.default_rng(3)
    weight = generator.standard_normal((50, 4096)).astype(np.float32)
    weight[3] = 0
    inputs = generator.standard_normal((4096, 7)) * 10.0 ** generator.integers(-3, 4, (4096, 1))
    found = product(lambda a, b: weight[a:b], (50, 4096), inputs)
    np.testing.assert_allclose(found, weight @ inputs, atol=1e-4 * np.abs(found).max())
    order = generator.permutation(4096)
    moved = np.ascontiguousarray(weight[:, order])
    again = product(lambda a, b: moved[a:b], (50, 4096), inputs[order])
    np.testing.assert_array_equal(found, again)
    assert not np.array_equal(weight @ inputs, moved @ inputs[order])


def test_a_weight_that_is_no_number_is_refused():
    weight = np.full((2, 32), np.nan, np.float32)
    with pytest.raises(ValueError, match="not a finite number"):
        product(lambda a, b: weight[a:b], (2, 32), np.ones((32, 1)))


def test_the_exponential_function():
    values = np.linspace(-400, 400, 10_001)
    np.testing.assert_allclose(exponential(values), np.exp(values), rtol=1e-12)
    assert np.isfinite(exponential(np.array([-1e9, 1e9]))).all()


@pytest.mark.parametrize("role", ["self_attn.q_proj", "mlp.down_proj"])
def test_a_source_with_a_value_that_is_no_number_is_refused_by_name(role, tiny, tmp_path):
    """Whether the estimate reads the matrix or only the rounding does; no bundle is left."""
    config = tiny.family_config("qwen2")
    tensors = tiny.random_tensors(config)
    name = f"model.layers.1.{role}.weight"
    tensors[name].reshape(-1)[5] = np.nan
    source = tiny.write_checkpoint(tmp_path / "m", config, tensors)
    with pytest.raises(SourceInvalid, match=rf"{name}.*not a finite number"):
        tiny.run_export(source, tmp_path / "bundle", quant="int8")
    assert not (tmp_path / "bundle").exists()
