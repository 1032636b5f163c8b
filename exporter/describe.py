"""Facts for the manifest: architecture, KV groups, graphs, source files."""

from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

from ortloom.errors import UnsupportedModel
from ortloom.exporter.architectures import rope_parameters
from ortloom.exporter.attention import AttentionCall
from ortloom.exporter.rewrites.kv_cache import KVCacheForm
from ortloom.exporter.sources.checkpoint import Checkpoint
from ortloom.kernels.contract import HEAD_MAJOR_LAYOUT
from ortloom.models.bundle_files import hash_file
from ortloom.models.manifest import (
    Architecture,
    FileEntry,
    Graph,
    GraphIO,
    KVGroup,
    RopeFacts,
    Source,
    TensorSpec,
)

DTYPES = {
    "FLOAT": "float32",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "INT8": "int8",
    "INT64": "int64",
    "INT32": "int32",
}


def _ids(value: object) -> tuple[int, ...]:
    if isinstance(value, list):
        return tuple(int(v) for v in value)
    return () if value is None else (int(value),)  # type: ignore[call-overload]


def describe_architecture(
    config: dict[str, Any], class_name: str, calls: tuple[AttentionCall, ...], parameters: int,
    tied: bool,
) -> Architecture:  # fmt: skip
    """Architecture facts; head counts come from the traced calls."""
    rope = rope_parameters(config)
    factor = rope.get("factor")
    original = rope.get("original_max_position_embeddings")
    bos, eos, pad = (_ids(config.get(f"{name}_token_id")) for name in ("bos", "eos", "pad"))
    return Architecture(
        class_name=class_name,
        model_type=str(config["model_type"]),
        num_layers=len(calls),
        hidden_size=int(config["hidden_size"]),
        num_heads=max(call.num_heads for call in calls),
        vocab_size=int(config["vocab_size"]),
        max_position_embeddings=int(config["max_position_embeddings"]),
        num_parameters=parameters,
        tied_embeddings=tied,
        rope=RopeFacts(
            type=str(rope["rope_type"]),
            theta=float(rope["rope_theta"]),
            factor=None if factor is None else float(factor),
            original_max_position_embeddings=None if original is None else int(original),
        ),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
        pad_token_id=pad[0] if pad else None,
    )


def describe_kv_groups(calls: tuple[AttentionCall, ...]) -> tuple[KVGroup, ...]:
    """Layers with equal KV geometry, in order of their first layer."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for call in calls:
        key = (call.kv_heads, call.head_dim_k, call.head_dim_v, call.window, call.sinks)
        groups.setdefault((*key, call.softcap), []).append(call.layer)
    return tuple(
        KVGroup(
            id=number,
            kind="full" if key[3] is None else "sliding",
            layers=tuple(layers),
            kv_heads=key[0],
            head_dim_k=key[1],
            head_dim_v=key[2],
            window=key[3],
            sinks=key[4],
            softcap=key[5],
        )
        for number, (key, layers) in enumerate(groups.items())
    )


def _spec(value: ir.Value) -> TensorSpec:
    if value.dtype is None or value.shape is None:
        raise UnsupportedModel(f"graph value '{value.name}' has no type or shape")
    shape = tuple(d if isinstance(d, int) else str(d.value) for d in value.shape)
    return TensorSpec(name=str(value.name), dtype=DTYPES[value.dtype.name], shape=shape)


def describe_graph(
    model: ir.Model,
    variant: Any,
    path: Path,
    root: Path,
    layers: int,
    ops: tuple[tuple[str, int], ...],
    kv_cache: KVCacheForm | None = None,
) -> Graph:
    """The manifest entry of a written graph; `ops` is its histogram, `kv_cache` None the contract's
    own."""
    entry = FileEntry(
        path=path.relative_to(root).as_posix(), size=path.stat().st_size, sha256=hash_file(path)
    )

    def pools(name: str) -> tuple[str, ...]:
        return tuple(f"{name}.{i}" for i in range(layers))

    io = GraphIO(
        k_cache=pools("k_cache"),
        v_cache=pools("v_cache"),
        k_cache_out=pools("k_cache_out"),
        v_cache_out=pools("v_cache_out"),
    )
    if kv_cache is not None and kv_cache.pools == "int8":
        io = msgspec.structs.replace(
            io,
            k_scale=pools("k_scale"),
            v_scale=pools("v_scale"),
            k_scale_out=pools("k_scale_out"),
            v_scale_out=pools("v_scale_out"),
        )
    kind: dict[str, Any] = {}
    if kv_cache is not None:
        kind = {"kv_cache_dtype": kv_cache.name, "kv_layout": HEAD_MAJOR_LAYOUT}
    imports = sorted((d or "ai.onnx", v) for d, v in model.graph.opset_imports.items())
    return Graph(
        variant=variant,
        file=entry,
        io=io,
        inputs=tuple(_spec(v) for v in model.graph.inputs),
        outputs=tuple(_spec(v) for v in model.graph.outputs),
        opset_imports=tuple(imports),
        ops=ops,
        **kind,
    )


def describe_source(checkpoint: Checkpoint, hub_id: str | None, revision: str | None) -> Source:
    """Where the weights came from, with the hash of every file."""
    files = tuple(
        FileEntry(path=p.name, size=p.stat().st_size, sha256=hash_file(p))
        for p in checkpoint.files()
    )
    return Source(
        name=checkpoint.name,
        format=checkpoint.format,
        hub_id=hub_id,
        revision=revision,
        files=files,
    )
