"""How many KV blocks fit, and the context length that follows.

Precedence: an explicit number of blocks, explicit bytes, a fraction of the memory left, and by
default the lesser of 40 % of it and what max_num_seqs full contexts need. The memory left is
counted after the weights are loaded and after setting aside what a step's activations take, which
a profile run measures. The null block comes on top of the budget.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ortloom.errors import ConfigError
from ortloom.kernels.contract import BLOCK_SIZE_MULTIPLE, MAX_BLOCK_SIZE, MIN_BLOCK_SIZE
from ortloom.runtime import machine

DEFAULT_FRACTION = 0.4

PROFILE_TOKENS = 32
"""Tokens of the profile run; activations grow linearly with the tokens of a step."""

ALLOCATOR_REST = 1 << 20
"""Bytes the profile run may take out of what ONNX Runtime's allocator kept of the step before it:
its least extension."""


@dataclass(frozen=True, slots=True)
class KVDemand:
    """What the model and the flags ask for.

    `block_bytes` is one block over all layers. `model_max_len` is the model's own limit in tokens;
    `asked_max_len` the flag (None = not given, -1 = fit on purpose).
    """

    block_size: int
    block_bytes: int
    model_max_len: int
    asked_max_len: int | None
    max_num_seqs: int
    num_blocks: int | None = None
    memory_bytes: int | None = None
    memory_fraction: float | None = None


@dataclass(frozen=True, slots=True)
class KVPlan:
    """The result. `num_blocks` are usable ones; `source` names what decided."""

    num_blocks: int
    max_model_len: int
    source: str
    notices: tuple[str, ...] = ()


def check_block_size(block_size: int) -> None:
    """Raises ConfigError unless the block size is one every backend takes."""
    inside = MIN_BLOCK_SIZE <= block_size <= MAX_BLOCK_SIZE
    if not inside or block_size % BLOCK_SIZE_MULTIPLE:
        raise ConfigError(
            f"--block-size must be a multiple of {BLOCK_SIZE_MULTIPLE} from {MIN_BLOCK_SIZE} to "
            f"{MAX_BLOCK_SIZE}, got {block_size}"
        )


def activation_bytes(run: Callable[[int], None], step_tokens: int) -> int:
    """Measured memory of the activations of a step of `step_tokens` tokens.

    A step must have been run before: its memory is then that of the library, of what it allocates
    once and of the pages of the weights, none of which grows with the tokens.

    Args:
        run: runs the graph over a prompt of that many tokens.
        step_tokens: the most tokens one graph call gets.

    Returns:
        Bytes; the growth during a run of PROFILE_TOKENS, scaled up, a quarter on top.
    """
    machine.reset_peak()
    before = machine.resident_bytes()
    run(PROFILE_TOKENS)
    grown = ALLOCATOR_REST + max(0, machine.peak_bytes() - before)
    return int(grown / PROFILE_TOKENS * step_tokens * 1.25)


def plan_kv(demand: KVDemand, memory_left: int, activations: int) -> KVPlan:
    """Decide the pool and the context length.

    Args:
        demand: model facts and flags.
        memory_left: bytes the machine leaves, weights already loaded.
        activations: bytes to set aside for a step.

    Raises:
        ConfigError: the budget is below one block, is more than the machine has, or an explicit
            context does not fit; the text names the sizes and the flags to change.
    """
    check_block_size(demand.block_size)
    wanted_len = _wanted_len(demand)
    spare = max(0, memory_left - activations)
    budget, source = _budget(demand, wanted_len, spare)
    num_blocks = budget // demand.block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"the KV cache budget of {_mib(budget)} ({source}) is below one block of "
            f"{_mib(demand.block_bytes)} ({demand.block_size} tokens); {_FLAGS}"
        )
    needed = num_blocks * demand.block_bytes
    if needed > memory_left:
        raise ConfigError(
            f"a KV cache of {num_blocks} blocks ({source}) needs {_mib(needed)}, this machine "
            f"leaves {_mib(memory_left)}; {_FLAGS}"
        )
    return _fit(demand, wanted_len, num_blocks, source)


_FLAGS = (
    "raise or lower it with --num-gpu-blocks-override, --kv-cache-memory-bytes or "
    "--gpu-memory-utilization, or change --block-size"
)


def _wanted_len(demand: KVDemand) -> int:
    asked = demand.asked_max_len
    if asked is None or asked == -1:
        return demand.model_max_len
    if asked < 1:
        raise ConfigError(f"--max-model-len must be -1, auto or at least 1, got {asked}")
    if asked > demand.model_max_len:
        raise ConfigError(
            f"--max-model-len {asked} is above the model's own limit of {demand.model_max_len}"
        )
    return asked


def _budget(demand: KVDemand, wanted_len: int, spare: int) -> tuple[int, str]:
    if demand.num_blocks is not None:
        blocks = demand.num_blocks
        return blocks * demand.block_bytes, f"--num-gpu-blocks-override {blocks}"
    if demand.memory_bytes is not None:
        return demand.memory_bytes, f"--kv-cache-memory-bytes {demand.memory_bytes}"
    if demand.memory_fraction is not None:
        fraction = demand.memory_fraction
        if not 0 < fraction <= 1:
            raise ConfigError(f"--gpu-memory-utilization must be in (0, 1], got {fraction}")
        return int(spare * fraction), f"--gpu-memory-utilization {fraction} of {_mib(spare)} left"
    per_sequence = -(-wanted_len // demand.block_size)
    full = demand.max_num_seqs * per_sequence * demand.block_bytes
    share = int(spare * DEFAULT_FRACTION)
    if full <= share:
        return full, f"{demand.max_num_seqs} sequences of {wanted_len} tokens"
    return share, f"{DEFAULT_FRACTION:.0%} of {_mib(spare)} left"


def _fit(demand: KVDemand, wanted_len: int, num_blocks: int, source: str) -> KVPlan:
    capacity = num_blocks * demand.block_size
    if wanted_len <= capacity:
        return KVPlan(num_blocks, wanted_len, source)
    needed = -(-wanted_len // demand.block_size)
    if demand.asked_max_len is not None and demand.asked_max_len != -1:
        raise ConfigError(
            f"--max-model-len {wanted_len} needs {needed} KV blocks "
            f"({_mib(needed * demand.block_bytes)}) for one sequence, but the cache has "
            f"{num_blocks} ({_mib(num_blocks * demand.block_bytes)}, {source}): lower "
            f"--max-model-len to {capacity}, or raise --num-gpu-blocks-override, "
            "--kv-cache-memory-bytes or --gpu-memory-utilization"
        )
    notice = (
        f"the context is fitted down from {wanted_len} to {capacity} tokens: the KV cache has "
        f"{num_blocks} blocks of {demand.block_size} ({source})"
    )
    return KVPlan(num_blocks, capacity, source, (notice,))


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
