"""Settings of the command line that the model runner reads, each seen to change what it does."""

import json
import shutil
import sys
import types

import msgspec
import numpy as np
import pytest

from ortloom.config import StructuredOutputsConfig
from ortloom.models.manifest import MANIFEST_NAME, Manifest
from ortloom.runtime import machine, model_runner
from ortloom.runtime.model_runner import ModelRunner
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.runtime.structured_output import GrammarCompiler


def changed(config, part, **fields):
    """The configuration with other members of one part."""
    return msgspec.structs.replace(
        config, **{part: msgspec.structs.replace(getattr(config, part), **fields)}
    )


def test_block_size(runner, make_config):
    """--block-size"""
    assert runner.block_size == 16
    wide = ModelRunner.load(make_config(block_size=32))
    assert wide.block_size == 32
    assert wide.kv_cache_bytes == 2 * runner.kv_cache_bytes  # as many blocks, twice as large


def test_the_pool_is_sized_by_count_bytes_or_share(runner, make_config, monkeypatch):
    """--num-gpu-blocks-override (num_blocks), kv_cache_memory_bytes, --gpu-memory-utilization
    (memory_fraction)"""
    assert runner.num_blocks == 64
    block = runner.kv_cache_bytes // 65  # block 0 belongs to nobody
    assert ModelRunner.load(make_config(num_blocks=40)).num_blocks == 40
    sized = make_config(num_blocks=None, kv_cache_memory_bytes=30 * block + 1)
    assert ModelRunner.load(sized).num_blocks == 30
    provider = "ortloom.runtime.providers.cpu.CpuProvider.free_memory"
    monkeypatch.setattr(provider, lambda self: 1000 * block)
    monkeypatch.setattr(model_runner, "activation_bytes", lambda run, tokens: 0)
    half, tenth = (
        ModelRunner.load(make_config(num_blocks=None, memory_fraction=share)).num_blocks
        for share in (0.5, 0.1)
    )
    assert 450 <= half <= 500
    assert 50 <= tenth <= 100


def test_the_context(runner, make_config):
    """--max-model-len"""
    assert (
        ModelRunner.load(make_config(max_model_len=48)).max_model_len == 48 < (runner.max_model_len)
    )


def test_threads_and_processors_left_free(make_config, monkeypatch):
    """--threads, VLLM_CPU_NUM_OF_RESERVED_CPU (reserved_cpus)"""
    monkeypatch.setattr(machine, "default_threads", lambda: 3)
    for fields, threads in (
        ({"threads": 0}, 3),
        ({"threads": 0, "reserved_cpus": 1}, 2),
        ({"threads": 0, "reserved_cpus": 9}, 1),
        ({"threads": 1, "reserved_cpus": 1}, 1),
    ):
        loaded = ModelRunner.load(changed(make_config(), "provider", **fields))
        assert loaded.provider_report.detail.endswith(f", {threads} threads"), fields


def test_processors_and_memory_are_bound_before_anything_is_loaded(make_config, monkeypatch):
    """--cpu-affinity and VLLM_CPU_OMP_THREADS_BIND (cpu_affinity), --numa-bind (numa_node)"""
    asked = []
    monkeypatch.setattr(machine, "keep_to", lambda cpus: asked.append(tuple(cpus)))

    def bind(node):
        asked.append(node)
        return "no such node"

    monkeypatch.setattr(model_runner, "bind_memory", bind)
    config = changed(make_config(), "provider", cpu_affinity=(0,), numa_node=3)
    loaded = ModelRunner.load(config)
    assert asked == [(0,), 3]
    assert any("--numa-bind: memory is not bound to a node" in line for line in loaded.notices)


def test_the_window_may_end_the_context(bundle, make_config, tmp_path):
    """--disable-sliding-window (disable_sliding_window)"""
    manifest = Manifest.load(bundle)
    groups = tuple(msgspec.structs.replace(group, window=40) for group in manifest.kv_groups)
    windowed = msgspec.structs.replace(manifest, kv_groups=groups).sealed()
    folder = tmp_path / "windowed"
    shutil.copytree(bundle, folder)
    (folder / MANIFEST_NAME).write_bytes(windowed.to_bytes())
    before = changed(make_config(), "model", bundle=str(folder))
    after = changed(before, "model", disable_sliding_window=True)
    lengths = [ModelRunner.load(config).max_model_len for config in (before, after)]
    assert lengths == [manifest.architecture.max_position_embeddings, 40]


class OnlySeven:
    """A user's logits processor."""

    def __init__(self, vocab_size):
        pass

    def new_request(self, params):
        def change(output, row):
            row[:7] = row[8:] = -np.inf

        return change


def test_processors_of_users_change_what_is_drawn(driver, make_config, monkeypatch):
    """--logits-processors (logits_processors)"""
    monkeypatch.setitem(sys.modules, "user_side", types.SimpleNamespace(OnlySeven=OnlySeven))
    changed_runner = ModelRunner.load(make_config(logits_processors=("user_side:OnlySeven",)))
    drawn = []
    for each in (driver, type(driver)(changed_runner)):
        request = each.request([5, 6, 9])
        each.generate(request, 2)
        drawn.append(request.output_token_ids)
    assert drawn[0] != drawn[1] == [7, 7]


@pytest.fixture(scope="module")
def tokenizer_file(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("tok") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize(
    ("switch", "text"),
    [
        ("disable_any_whitespace", '{ "a" : 1 }'),
        ("disable_additional_properties", '{"a":1,"b":2}'),
    ],
)
def test_switches_of_constraints_hold_for_every_request(tokenizer, tokenizer_file, switch, text):
    """--structured-outputs-config"""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    constraint = StructuredOutput("json", json.dumps(schema))
    taken = []
    for options in (StructuredOutputsConfig(), StructuredOutputsConfig(**{switch: True})):
        matcher = GrammarCompiler(tokenizer_file, 264, [0], options=options).compile(constraint)
        taken.append(all(matcher.consume_token(token) for token in tokenizer.encode(text).ids))
    assert taken == [True, False]
