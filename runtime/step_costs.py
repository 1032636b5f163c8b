"""What a step costs by arithmetic alone: operations and bytes moved (`--enable-mfu-metrics`).

They are estimates from the model's shape, not measurements; divided by what a machine can do, and
by time, they say how much of it is used. Counted are: two operations for each weight a token meets
and each pair of query and key channel; the weights once a step, the keys and values each request
sees, and those it adds. Activations, which stay in caches, are not.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from ortloom.models.manifest import KVGroup, Manifest
from ortloom.runtime.scheduler_output import SchedulerOutput


class StepCosts:
    """Sums over all steps.

    Args:
        manifest: shapes.
        active: share of all parameters but embeddings that one token meets (below 1 with experts).
        weight_bytes: all weights of the graph variant.
        kv_bytes_per_token: of all layers.

    Attributes:
        flops: floating point or integer operations.
        read_bytes: bytes read.
        write_bytes: bytes written.
    """

    def __init__(
        self, manifest: Manifest, active: float, weight_bytes: int, kv_bytes_per_token: float
    ) -> None:
        shape = manifest.architecture
        table = shape.vocab_size * shape.hidden_size
        self._head = table
        embeddings = table if shape.tied_embeddings else 2 * table
        self._met = active * max(0, shape.num_parameters - embeddings)
        self._active = active
        self._weight_bytes = weight_bytes
        self._groups = manifest.kv_groups
        self._heads = shape.num_heads
        width = sum(_width(group) for group in self._groups) or 1
        self._kv_bytes = [kv_bytes_per_token * _width(group) / width for group in self._groups]
        self.flops = 0.0
        self.read_bytes = 0.0
        self.write_bytes = 0.0

    def note(self, plan: SchedulerOutput) -> None:
        """Add one step."""
        tokens = plan.num_tokens
        sampled = sum(item.samples for item in plan.scheduled)
        self.flops += 2 * tokens * self._met + 2 * sampled * self._head
        met = 1.0 if self._active == 1.0 else min(1.0, tokens * self._active)
        self.read_bytes += met * self._weight_bytes
        for group, size in zip(self._groups, self._kv_bytes, strict=True):
            pairs = sum(seen_pairs(i.start, i.num_tokens, group.window) for i in plan.scheduled)
            channels = group.head_dim_k + group.head_dim_v
            self.flops += 2 * pairs * self._heads * channels * len(group.layers)
            self.read_bytes += size * sum(
                _in_sight(i.start, i.num_tokens, group.window) for i in plan.scheduled
            )
            self.write_bytes += size * tokens


def _width(group: KVGroup) -> int:
    return len(group.layers) * group.kv_heads * (group.head_dim_k + group.head_dim_v)


def seen_pairs(start: int, count: int, window: int | None) -> int:
    """Pairs of a token of `start .. start + count` and one that it sees, itself included."""
    if window is None or start + count <= window:
        return count * start + count * (count + 1) // 2
    narrow = max(0, window - start)  # tokens that still see everything
    return narrow * start + narrow * (narrow + 1) // 2 + (count - narrow) * window


def _in_sight(start: int, count: int, window: int | None) -> int:
    """Tokens of which keys and values are read."""
    return start + count if window is None else min(start + count, window + count - 1)


def step_costs(bundle: Path, variant: str, kv_bytes_per_token: float) -> StepCosts:
    """The costs of a bundle's model.

    Raises:
        ManifestError: the bundle cannot be used.
    """
    manifest = Manifest.load(bundle)
    weight_bytes = manifest.weight_bytes(variant)
    return StepCosts(manifest, active_share(bundle, manifest), weight_bytes, kv_bytes_per_token)


def active_share(bundle: Path, manifest: Manifest) -> float:
    """The share of the parameters, without embeddings, that one token meets."""
    shape = manifest.architecture
    try:
        config = json.loads((bundle / "config.json").read_bytes())
        experts = _first(config, ("num_local_experts", "num_experts", "n_routed_experts"))
        chosen = _first(config, ("num_experts_per_tok",))
        inner = _first(config, ("moe_intermediate_size", "intermediate_size"))
    except (OSError, ValueError, LookupError, AttributeError):
        return 1.0
    table = shape.vocab_size * shape.hidden_size
    rest = shape.num_parameters - (table if shape.tied_embeddings else 2 * table)
    unmet = shape.num_layers * (experts - chosen) * 3 * shape.hidden_size * inner
    return 1.0 if not 0 < unmet < rest else 1.0 - unmet / rest


def _first(config: dict[str, object], names: Sequence[str]) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    raise LookupError(names[0])
