"""The provider's section of the configuration: device, threads, processors, NUMA."""

from typing import Any

from ortloom.commands.reader import Reader
from ortloom.config import ProviderConfig
from ortloom.environment import Environment
from ortloom.errors import ConfigError
from ortloom.runtime.machine import affinity, processors
from ortloom.runtime.numa import best_node, node_processors

MAX_THREADS = 256


def provider_config(read: Reader, env: Environment, notices: list[str]) -> ProviderConfig:
    """Build it; lines to print before start are added to `notices`.

    Raises:
        ConfigError: a processor or node that is not there, or settings that exclude each other.
    """
    node, cpus = _numa(read)
    asked = read.maybe("--cpu-affinity", str)
    if asked is not None:
        if node is not None:
            raise ConfigError("argument --cpu-affinity: cannot be combined with --numa-bind")
        cpus = _usable("--cpu-affinity", asked)
    elif node is None and env.cpu_bind is not None:
        first, bar, _ = env.cpu_bind.partition("|")
        if bar:
            notices.append(
                "VLLM_CPU_OMP_THREADS_BIND: there is one engine, which takes the first list"
            )
        cpus = _usable("VLLM_CPU_OMP_THREADS_BIND", first)
    return ProviderConfig(
        provider=_provider(read),
        require=read.maybe("--require-provider", str),
        threads=_threads(read),
        reserved_cpus=env.reserved_cpus or 0,
        cpu_affinity=cpus,
        numa_node=node,
    )


def _provider(read: Reader) -> Any:
    """A value of the field's literals: the flag table has them checked."""
    provider = read.word("--provider", "auto")
    device = read.maybe("--device", str)
    if device is None or device == "auto":
        return provider
    if provider not in ("auto", device):
        raise ConfigError(
            f"argument --device: '{device}' contradicts --provider {provider}; leave one out"
        )
    return device


def _threads(read: Reader) -> int:
    threads = read.whole("--threads", 0) or 0
    if threads > MAX_THREADS:
        raise ConfigError(f"argument --threads: {threads} is more than {MAX_THREADS}")
    return threads


def _usable(name: str, text: str) -> tuple[int, ...]:
    try:
        wanted = processors(text)
    except ValueError as error:
        raise ConfigError(f"argument {name}: {error}") from None
    foreign = sorted(wanted - affinity())
    if foreign:
        raise ConfigError(
            f"argument {name}: processor {foreign[0]} is not one this process may use"
        )
    return tuple(sorted(wanted))


def _numa(read: Reader) -> tuple[int | None, tuple[int, ...]]:
    """The node that memory comes from, and the processors; None and () without --numa-bind."""
    nodes = read.args.get("--numa-bind-nodes")
    lists = read.strings("--numa-bind-cpus")
    if not read.get("--numa-bind", bool, False):
        for name, given in (("--numa-bind-nodes", nodes), ("--numa-bind-cpus", lists)):
            if given:
                raise ConfigError(f"argument {name}: needs --numa-bind")
        return None, ()
    known = node_processors()
    if not known:
        raise ConfigError("argument --numa-bind: this system names no NUMA nodes")
    node = _one("--numa-bind-nodes", nodes) if isinstance(nodes, list) else best_node()
    if node not in known:
        shown = ", ".join(map(str, known))
        raise ConfigError(f"argument --numa-bind-nodes: no node {node} (nodes: {shown})")
    if lists:
        return node, _usable("--numa-bind-cpus", _one("--numa-bind-cpus", list(lists)))
    cpus = known[node] & affinity()
    if not cpus:
        raise ConfigError(f"argument --numa-bind: node {node} has no processor to use")
    return node, tuple(sorted(cpus))


def _one(name: str, values: list[Any]) -> Any:
    if len(values) != 1:
        raise ConfigError(f"argument {name}: there is one engine, so it takes one value")
    return values[0]
