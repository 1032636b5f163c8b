"""The arithmetic of a step's costs, against sums over single tokens."""

import json

import pytest

from ortloom.models.manifest import Architecture, KVGroup, Manifest, Producer, Source
from ortloom.runtime.request import Request
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.scheduler_output import ScheduledRequest, SchedulerOutput
from ortloom.runtime.step_costs import StepCosts, active_share, seen_pairs


@pytest.mark.parametrize("window", [None, 1, 4, 7])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 9), (3, 1), (3, 5), (6, 4), (20, 3)])
def test_pairs(start, count, window):
    tokens = range(start, start + count)
    expected = sum(min(t + 1, window or t + 1) for t in tokens)
    assert seen_pairs(start, count, window) == expected


def manifest(**shape):
    facts = {
        "class_name": "X",
        "model_type": "x",
        "num_layers": 2,
        "hidden_size": 8,
        "num_heads": 4,
        "vocab_size": 100,
        "max_position_embeddings": 64,
        "num_parameters": 100 * 8 + 5000,
        "tied_embeddings": True,
        **shape,
    }
    group = KVGroup(id=0, layers=(0, 1), kv_heads=2, head_dim_k=3, head_dim_v=5)
    return Manifest(
        producer=Producer(version="0"),
        source=Source(name="x", format="safetensors"),
        architecture=Architecture(**facts),
        graphs=(),
        kv_groups=(group,),
        weights=(),
    )


def test_one_step():
    costs = StepCosts(manifest(), 1.0, weight_bytes=7000, kv_bytes_per_token=10)
    request = Request("r", [1] * 20, SamplingParams(), 30)
    plan = SchedulerOutput(
        [
            ScheduledRequest(request, 0, 6, False, []),  # sees 1 + 2 + … + 6 = 21
            ScheduledRequest(request, 9, 1, True, []),  # sees 10
        ]
    )
    costs.note(plan)
    attention = 2 * (21 + 10) * 4 * (3 + 5) * 2
    assert costs.flops == 2 * 7 * 5000 + 2 * 1 * 800 + attention
    assert costs.read_bytes == 7000 + 10 * (6 + 10)
    assert costs.write_bytes == 10 * 7
    costs.note(plan)
    assert costs.write_bytes == 2 * 10 * 7


def test_a_token_meets_its_experts_only(tmp_path):
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size": 10}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    # 2 layers × 3 experts nobody chose × 3 matrices of 8 × 10, out of 5000
    assert active_share(tmp_path, manifest()) == 1 - 1440 / 5000
    (tmp_path / "config.json").write_text("{}")
    assert active_share(tmp_path, manifest()) == 1.0
    costs = StepCosts(manifest(), 0.25, weight_bytes=8000, kv_bytes_per_token=0)
    request = Request("r", [1] * 20, SamplingParams(), 30)
    costs.note(SchedulerOutput([ScheduledRequest(request, 0, 1, False, [])]))
    assert costs.read_bytes == 2000
    costs.note(SchedulerOutput([ScheduledRequest(request, 0, 9, False, [])]))
    assert costs.read_bytes == 2000 + 8000
