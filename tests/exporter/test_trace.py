"""The trace's guards (what must never pass silently) and the stamping of equal layers."""

import io
import json
from types import SimpleNamespace

import pytest
import torch

from ortloom.errors import UnsupportedModel
from ortloom.exporter import layer_kinds
from ortloom.exporter.architectures import parameter_shapes
from ortloom.exporter.attention import AttentionTracer, StepTensors
from ortloom.exporter.graph_build import build_contract, make_config
from ortloom.exporter.options import Storage
from ortloom.exporter.progress import LineProgress
from ortloom.exporter.sources.checkpoint import TensorInfo
from ortloom.exporter.structure import ALLOWED, require_structure
from ortloom.exporter.variants import derive, to_bytes
from ortloom.kernels.layer_contract import pool_slots


class Layer(torch.nn.Module):
    layer_idx = 0
    is_causal = True
    sliding_window = 7


@pytest.fixture
def tracer():
    made = AttentionTracer()
    none = torch.zeros(1, dtype=torch.int32)
    made.step = StepTensors(none, none, none, none, [torch.zeros(2, 16, 2, 64)] * 1,
                            [torch.zeros(2, 16, 2, 64)] * 1)  # fmt: skip
    return made


def call(tracer, module=None, mask=None, **keywords):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        query = torch.zeros(1, 4, 3, 64)
        key = torch.zeros(1, 2, 3, 64)
        tracer(module or Layer(), query, key, key, mask, **keywords)
    return tracer.calls()[0]


def test_a_window_passed_as_none_is_no_window(tracer):
    """Some architectures pass sliding_window=None on full layers that still have the attribute."""
    assert call(tracer, sliding_window=None).window is None


def test_a_window_not_passed_is_the_module_s(tracer):
    assert call(tracer).window == 7


def test_what_a_call_shows(tracer):
    seen = call(tracer, sliding_window=12, scaling=0.25, softcap=30.0, dropout=0.0)
    assert (seen.num_heads, seen.kv_heads, seen.head_dim_k) == (4, 2, 64)
    assert (seen.window, seen.scale, seen.softcap, seen.sinks) == (12, 0.25, 30.0, False)


def test_an_unknown_keyword_is_refused_by_name(tracer):
    with pytest.raises(UnsupportedModel, match="position_bias"):
        call(tracer, position_bias=torch.zeros(1))


def test_a_mask_is_refused(tracer):
    with pytest.raises(UnsupportedModel, match="mask"):
        call(tracer, mask=torch.zeros(1, 1, 3, 3))


def test_attention_that_is_not_causal_is_refused(tracer):
    module = Layer()
    module.is_causal = False
    with pytest.raises(UnsupportedModel, match="causal"):
        call(tracer, module)


def test_a_second_call_of_one_layer_is_refused(tracer):
    call(tracer)
    with pytest.raises(UnsupportedModel, match="twice"):
        call(tracer)


def build(config):
    """The graph alone: fp32 storage reads no values before weights are written."""
    tensors = {n: TensorInfo(s, "F32") for n, s in parameter_shapes(config).items()}
    source = SimpleNamespace(rows=None, block_rows=None, tensors=tensors, warnings=[])
    return build_contract(config, Storage(), source, LineProgress(io.StringIO()))


@pytest.fixture
def config(tiny):
    # five layers of two kinds, interleaved
    return tiny.family_config(
        "smollm3", num_hidden_layers=5, no_rope_layers=[1, 0, 1, 0, 1],
        layer_types=["full_attention"] * 5,
    )  # fmt: skip


def test_stamped_layers_are_the_traced_ones(config, monkeypatch):
    stamped = build(config)
    plan = layer_kinds.plan_layers(make_config(json.loads(json.dumps(config))))
    assert plan.traced == (0, 1, 2, 3)
    assert plan.model_of == (0, 1, 2, 3, 0)
    monkeypatch.setattr(layer_kinds, "COPIES", 99)
    whole = build(config)
    assert stamped.parameters == whole.parameters
    assert stamped.calls == whole.calls
    for variant in ("contract", "cpu"):
        one, other = (derive(b.model, variant) for b in (stamped, whole))
        require_structure(one, 5)
        left, right = (to_bytes(m) for m in (one, other))
        # the layouts differ in the order of tensors, so compare without offsets
        assert strip_offsets(left) == strip_offsets(right)


def strip_offsets(data):
    import onnx

    model = onnx.load_from_string(data)
    for tensor in model.graph.initializer:
        del tensor.external_data[:]
    return model.SerializeToString(deterministic=True)


def test_structure_is_checked(config):
    built = build({**config, "num_hidden_layers": 1, "no_rope_layers": [1],
                   "layer_types": ["full_attention"]})  # fmt: skip
    model = derive(built.model, "cpu")
    require_structure(model, 1)
    with pytest.raises(UnsupportedModel, match="1 attention ops for 2 layers"):
        require_structure(model, 2)
    node = next(n for n in model.graph if n.domain == "")
    kept, node.op_type = node.op_type, "Softplus"
    with pytest.raises(UnsupportedModel, match=r"ai\.onnx::Softplus"):
        require_structure(model, 1)
    node.op_type = kept
    attention = next(n for n in model.graph if pool_slots(n.op_type) is not None)
    places = pool_slots(attention.op_type).inputs
    attention.replace_input_with(places["key_cache"], attention.inputs[places["value_cache"]])
    with pytest.raises(UnsupportedModel, match="pool"):
        require_structure(model, 1)


def test_ops_measured_as_not_invariant_are_not_allowed():
    names = {op.rpartition(":")[2] for op in ALLOWED}
    assert not names & {"Cos", "Sin", "Softplus", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"}
