"""The plan of an export: sizes, memory and disk, from the config alone and without torch."""

import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ortloom.errors import InsufficientResources
from ortloom.exporter.architectures import (
    attention_window,
    head_size,
    integer,
    kv_heads,
    parameter_shapes,
    require_supported,
    tied,
)
from ortloom.exporter.form_choice import choose_form
from ortloom.exporter.open_config import read_source_config
from ortloom.exporter.options import ExportOptions, Storage
from ortloom.exporter.sources.checkpoint import Checkpoint
from ortloom.exporter.sources.open_source import open_source
from ortloom.models.weight_file import WEIGHT_ALIGNMENT

BASE_MEMORY = 900 * 1024 * 1024
"""Bytes: importing torch and transformers, tracing and one weight chunk (measured: 0.55 GB)."""

BYTES_PER_LAYER = 6 * 1024 * 1024
"""Bytes of graph objects while translating one layer (measured: under 4 MiB)."""

SMALL_FILES = 32 * 1024 * 1024
"""Bytes kept free for graphs, tokenizer and report."""


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an export would do. Sizes in bytes; windows in tokens."""

    source: str
    architecture: str
    layers: int
    parameters: int
    quant: str | None
    dtype: str
    kv_heads: int
    head_dim: int
    window: int | None
    kv_bytes_per_token: int
    weight_bytes: dict[str, int]  # by target; targets that share a file share its size
    disk_bytes: int
    memory_bytes: int
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The plan as text."""
        text = [
            f"source          {self.source}",
            f"architecture    {self.architecture}, {self.layers} layers, "
            f"{self.parameters / 1e6:.1f} M parameters",
            f"quantisation    {self.quant or 'none'} (other matrices {self.dtype})",
            f"KV cache        {self.kv_heads} heads of {self.head_dim}, "
            f"{self.kv_bytes_per_token} bytes per token"
            + ("" if self.window is None else f", window {self.window}"),
        ]
        for target, size in self.weight_bytes.items():
            text.append(f"weights {target:<8}{size / 1e6:.1f} MB")
        text.append(f"disk needed     {self.disk_bytes / 1e6:.1f} MB")
        text.append(f"memory needed   {self.memory_bytes / 1e6:.0f} MB")
        return text + [f"warning         {w}" for w in self.warnings]


def _aligned(size: int) -> int:
    return -(-size // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for dim in shape:
        total *= dim
    return total


def weight_bytes(
    config: dict[str, Any], storage: Storage, checkpoint: Checkpoint | None = None
) -> int:
    """Size of weights/model.bin; `checkpoint` is needed where matrices keep their own blocks."""
    sizes: Counter[str] = Counter()
    linear_head = tied(config)
    # A norm between the projections and the attention keeps them apart.
    joined_qkv = config.get("model_type") != "olmoe"
    for name, shape in parameter_shapes(config).items():
        # Matrices that some graph reads as one lie side by side and are padded together.
        place = re.sub(r"\.[qkv]_proj\.", ".qkv.", name) if joined_qkv else name
        place = re.sub(r"\.(gate|up)_proj\.", ".gate_up.", place)
        form = choose_form(
            name,
            shape,
            read_as_linear=linear_head or "embed_tokens" not in name,
            storage=storage,
            checkpoint=checkpoint,
        )
        if form is None:
            sizes[place] += _elements(shape) * 4
            continue
        for suffix, size in form.sizes(shape).items():
            sizes[f"{place}.{suffix}"] += size
    total = WEIGHT_ALIGNMENT + sum(_aligned(size) for size in sizes.values())
    table = integer(config, "max_position_embeddings") * (head_size(config) // 2) * 4
    return total + 2 * _aligned(table)


def _blocks_of(options: ExportOptions) -> Checkpoint | None:
    """The source where the size depends on its own blocks."""
    return open_source(options.source, options.variation) if options.quant == "keep" else None


def plan(options: ExportOptions) -> ExportPlan:
    """Plan an export; reads the config of the source, and its tensor directory with `keep`.

    Raises:
        SourceInvalid: no source, or a config that cannot be read.
        UnsupportedModel: the architecture or a feature is not supported.
    """
    name, config, warnings = read_source_config(options.source, options.variation)
    architecture = require_supported(config)
    shapes = parameter_shapes(config)
    size = weight_bytes(config, options.storage, _blocks_of(options))
    layers = integer(config, "num_hidden_layers")
    keys, head = kv_heads(config), head_size(config)
    memory = BASE_MEMORY + layers * BYTES_PER_LAYER
    if options.check:
        memory += 4 * sum(_elements(s) for s in shapes.values()) + 2 * size
    window = attention_window(config)
    return ExportPlan(
        source=name,
        architecture=architecture,
        layers=layers,
        parameters=sum(_elements(s) for s in shapes.values()),
        quant=options.quant,
        dtype=options.dtype,
        kv_heads=keys,
        head_dim=head,
        window=window,
        kv_bytes_per_token=layers * keys * head * 2 * 4,
        weight_bytes={target: size for target in options.targets},
        disk_bytes=size + SMALL_FILES,
        memory_bytes=memory,
        warnings=tuple(warnings),
    )


def free_memory() -> int:
    """Bytes that can still be allocated: the least of the machine's and the cgroup's."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            most = int(Path(limit).read_text(encoding="ascii"))
            now = int(Path(used).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        free = min(free, max(0, most - now))
    return free


def require_resources(planned: ExportPlan, output: Path) -> None:
    """Check disk and memory before anything is written.

    Raises:
        InsufficientResources: not enough of one.
    """
    folder = output.absolute().parent
    while not folder.exists():
        folder = folder.parent
    disk, memory = shutil.disk_usage(folder).free, free_memory()
    if disk < planned.disk_bytes:
        raise InsufficientResources(
            f"the bundle needs {planned.disk_bytes / 1e6:.0f} MB of disk, '{folder}' has "
            f"{disk / 1e6:.0f} MB free"
        )
    if memory < planned.memory_bytes:
        raise InsufficientResources(
            f"the export needs about {planned.memory_bytes / 1e6:.0f} MB of memory, "
            f"{memory / 1e6:.0f} MB are available"
        )
