"""Flags about devices, processors and NUMA, and our own options as one JSON object."""

import os
import threading
from pathlib import Path

import pytest

from ortloom.commands.serve import make_plan
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table
from ortloom.runtime import numa

CPUS = sorted(os.sched_getaffinity(0))


def plan(*tokens, env=None):
    return make_plan(["m", *tokens], read_environment(env or {}), flag_table())[1]


def provider(*tokens, env=None):
    return plan(*tokens, env=env).config.provider


def test_a_device_names_the_provider():
    assert provider("--device", "cpu").provider == "cpu"
    assert provider("--device", "cuda").provider == "cuda"
    assert provider("--device", "cpu", "--provider", "cpu").provider == "cpu"
    assert provider().provider == "auto"
    with pytest.raises(ConfigError, match="contradicts --provider plain"):
        provider("--device", "cpu", "--provider", "plain")


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A machine of two nodes; all processors of this process are on the second."""
    folder = tmp_path / "sys/devices/system/node"
    for node, cpus in ((0, "4000-4001"), (1, ",".join(map(str, CPUS)))):
        (folder / f"node{node}").mkdir(parents=True)
        (folder / f"node{node}" / "cpulist").write_text(cpus + "\n")
    found = numa.node_processors(tmp_path)
    best = numa.best_node(tmp_path)
    monkeypatch.setattr("ortloom.commands.provider_options.node_processors", lambda: found)
    monkeypatch.setattr("ortloom.commands.provider_options.best_node", lambda: best)
    return tmp_path


def test_numa_binds_processors_and_memory(nodes):
    bound = provider("--numa-bind")
    assert (bound.numa_node, bound.cpu_affinity) == (1, tuple(CPUS))
    one = provider("--numa-bind", "--numa-bind-nodes", "1", "--numa-bind-cpus", str(CPUS[0]))
    assert (one.numa_node, one.cpu_affinity) == (1, (CPUS[0],))
    assert provider().numa_node is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--numa-bind-nodes 0", "needs --numa-bind"),
        ("--numa-bind-cpus 0", "needs --numa-bind"),
        ("--numa-bind --numa-bind-nodes 7", r"no node 7 \(nodes: 0, 1\)"),
        ("--numa-bind --numa-bind-nodes 0", "node 0 has no processor to use"),
        ("--numa-bind --numa-bind-nodes 0 1", "takes one value"),
        ("--numa-bind --cpu-affinity 0", "cannot be combined with --numa-bind"),
        ("--numa-bind --numa-bind-cpus 4095", "not one this process may use"),
    ],
)
def test_numa_bindings_that_cannot_be(nodes, line, text):
    with pytest.raises(ConfigError, match=text) as caught:
        plan(*line.split())
    assert caught.value.exit_code == 2


def test_memory_is_bound_by_the_kernel_or_the_reason_is_told():
    found = []

    def bind():  # the policy is the thread's
        reason = numa.bind_memory(0)
        found.append((reason, Path("/proc/thread-self/numa_maps").read_text()[:200]))

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    ((reason, policy),) = found
    assert ("bind:0" in policy) == (reason is None)
    assert numa.bind_memory(-1) is not None
    assert numa.bind_memory(1000) is not None


def test_the_environment_names_processors():
    first = str(CPUS[0])
    assert provider(env={"VLLM_CPU_OMP_THREADS_BIND": first}).cpu_affinity == (CPUS[0],)
    assert provider(env={"VLLM_CPU_OMP_THREADS_BIND": "auto"}).cpu_affinity == ()
    assert provider(env={"VLLM_CPU_NUM_OF_RESERVED_CPU": "1"}).reserved_cpus == 1
    several = plan(env={"VLLM_CPU_OMP_THREADS_BIND": f"{first}|4000"})
    assert several.config.provider.cpu_affinity == (CPUS[0],)
    assert "takes the first list" in several.notices[0]


def test_our_own_options_come_as_one_object():
    tokens = ["--additional-config", '{"threads": 3, "provider": "plain", "verify": true}']
    got = plan(*tokens)
    assert (got.config.provider.threads, got.config.provider.provider) == (3, "plain")
    assert got.config.model.verify
    dotted = plan("--additional-config.bundle_cache=/tmp/b", "--additional-config.quant=int8")
    assert (dotted.quant, str(dotted.bundle_cache)) == ("int8", "/tmp/b")
    assert provider(*tokens, "--threads", "1").threads == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('{"port": 1}', "unknown member 'port'"),
        ('{"threads": "x"}', "invalid integer"),
        ('{"threads": [1]}', "takes a string or a number"),
        ('{"verify": 1}', "must be true or false"),
        ("[1]", "must be a JSON object"),
    ],
)
def test_members_that_are_not_ours(value, text):
    with pytest.raises(ConfigError, match=text):
        plan("--additional-config", value)


def test_a_trace_is_allowed_by_its_flag():
    assert plan("--enable-trace-replay").config.model.enable_trace_replay
    assert not plan().config.model.enable_trace_replay
