"""The bundle's manifest: written by the exporter, read by the engine and the fronts.

The manifest is canonical JSON (sorted keys, two-space indent, trailing newline, no time stamps, no
absolute paths), so equal inputs give equal bytes. `Manifest.load` checks the sha256 of every small
file (graphs, tokenizer, template) and the exact size and header of every weight file;
`Manifest.verify_weights` hashes weight contents as well.

This module does not know torch, ONNX or ONNX Runtime.
"""

import hashlib
import json
from pathlib import Path
from typing import Literal

import msgspec

from ortloom.errors import ManifestError
from ortloom.models.bundle_files import check_contents
from ortloom.models.graph_entry import FileEntry as FileEntry
from ortloom.models.graph_entry import Graph as Graph
from ortloom.models.graph_entry import GraphIO as GraphIO
from ortloom.models.graph_entry import TensorSpec as TensorSpec
from ortloom.models.graph_entry import drop_later_defaults
from ortloom.models.weight_file import WeightFile, check_header
from ortloom.models.weight_forms import Dtypes, Quantization

SCHEMA_VERSION = 1
"""Bundles of another schema version are refused."""

OP_CONTRACT_VERSION = 1
"""Version of the `ortloom` op set the graphs were written against."""

MANIFEST_NAME = "manifest.json"


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the weights come from. `name` is a folder or file base name, never an absolute path."""

    name: str
    format: Literal["safetensors", "gguf", "dummy"]
    hub_id: str | None = None
    revision: str | None = None
    files: tuple[FileEntry, ...] = ()


class RopeFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rotary embedding facts as the config states them."""

    type: str = "default"
    theta: float = 10000.0
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    mrope_sections: tuple[int, ...] = ()


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Architecture facts read from the config and from the traced calls.

    `vocab_size` is the number of logits columns; `num_parameters` counts tied tensors once.
    `bos_token_id`, `eos_token_ids`, `pad_token_id` come from config.json alone (primary ids);
    generation_config.json keeps the secondary ones.
    """

    class_name: str
    model_type: str
    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    max_position_embeddings: int
    num_parameters: int
    tied_embeddings: bool
    rope: RopeFacts = RopeFacts()
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None


class KVGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers that share one KV geometry; read out of the traced attention calls.

    A pool of a layer has shape [num_blocks, block_size, kv_heads, head_dim] and element type
    `dtype`. `window` is the number of tokens a token sees, itself included (token i sees j iff
    i - j < window); None = full attention.
    """

    id: int
    kind: Literal[
        "full", "sliding", "chunked", "mla_latent", "linear_state", "conv_state", "cross"
    ] = "full"
    layers: tuple[int, ...]
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    window: int | None = None
    sinks: bool = False
    softcap: float = 0.0
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    kv_layout: Literal["NB,BS,H,D"] = "NB,BS,H,D"
    shares_with: int | None = None


class TokenizerFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokenizer and template files in the bundle; None where the source has none."""

    tokenizer: FileEntry | None = None
    tokenizer_config: FileEntry | None = None
    chat_template: FileEntry | None = None
    generation_config: FileEntry | None = None
    config: FileEntry | None = None


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hardware-specific engine built later from this bundle (outside the artefact id)."""

    provider: str
    device: str
    key: str
    files: tuple[FileEntry, ...] = ()


class Producer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tool versions that decide the bytes."""

    name: str = "ortloom"
    version: str
    packages: tuple[tuple[str, str], ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """manifest.json."""

    schema_version: int = SCHEMA_VERSION
    op_contract_version: int = OP_CONTRACT_VERSION
    producer: Producer
    source: Source
    task: Literal["generate", "embed", "classify", "rerank", "transcribe"] = "generate"
    architecture: Architecture
    dtypes: Dtypes = Dtypes()
    quantization: Quantization = Quantization()
    targets: tuple[str, ...] = ("cpu", "plain")
    graphs: tuple[Graph, ...]
    kv_groups: tuple[KVGroup, ...]
    weights: tuple[WeightFile, ...]
    tokenizer: TokenizerFiles = TokenizerFiles()
    engines: tuple[Engine, ...] = ()
    artefact_id: str = ""  # sha256 of the manifest with this field empty and engines left out

    def graph(self, variant: str, kv_cache_dtype: str = "float32") -> Graph:
        """The graph of a variant whose pools hold `kv_cache_dtype`.

        Raises:
            ManifestError: the bundle has no such variant, or not with such pools.
        """
        cache_dtypes = self.kv_cache_dtypes(variant)
        if kv_cache_dtype in cache_dtypes:
            found = (g for g in self.graphs if g.variant == variant)
            return next(g for g in found if g.kv_cache_dtype == kv_cache_dtype)
        if cache_dtypes:
            raise ManifestError(
                f"the bundle has no graph for target '{variant}' with a KV cache of "
                f"{kv_cache_dtype} (it has: {', '.join(cache_dtypes)})"
            )
        have = ", ".join(dict.fromkeys(g.variant for g in self.graphs))
        raise ManifestError(f"the bundle has no graph for target '{variant}' (it has: {have})")

    def kv_cache_dtypes(self, variant: str) -> tuple[str, ...]:
        """What the pools of a variant's graphs can hold, in the bundle's order."""
        return tuple(g.kv_cache_dtype for g in self.graphs if g.variant == variant)

    def bytes_per_token(self) -> int:
        """Bytes of KV cache one token needs over all layers, in the pools of the contract graph."""
        size = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
        total = 0
        for group in self.kv_groups:
            if group.shares_with is None:
                width = group.kv_heads * (group.head_dim_k + group.head_dim_v)
                total += len(group.layers) * width * size[group.dtype]
        return total

    def weight_bytes(self, variant: str) -> int:
        """Bytes of weights that a variant maps (tied tensors are stored once)."""
        return sum(w.file.size for w in self.weights if variant in w.variants)

    def small_files(self) -> tuple[FileEntry, ...]:
        """Files whose contents are hashed on every load."""
        t = self.tokenizer
        rest = (t.tokenizer, t.tokenizer_config, t.chat_template, t.generation_config, t.config)
        return tuple(g.file for g in self.graphs) + tuple(f for f in rest if f is not None)

    def to_bytes(self) -> bytes:
        """Canonical JSON bytes."""
        tree = msgspec.to_builtins(self)
        for graph in tree["graphs"]:
            drop_later_defaults(graph)
        return (json.dumps(tree, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()

    def sealed(self) -> "Manifest":
        """A copy whose `artefact_id` is the hash of its own contents."""
        bare = msgspec.structs.replace(self, artefact_id="", engines=())
        digest = hashlib.sha256(bare.to_bytes()).hexdigest()
        return msgspec.structs.replace(self, artefact_id=digest)

    def is_sealed_in(self, data: bytes) -> bool:
        """Whether the bytes this was read from show that it is unchanged: those of `to_bytes`, as
        an export leaves them. Writing them anew takes longer than reading them."""
        if self.engines:
            return False
        named = b'"artefact_id": "%s"' % self.artefact_id.encode()
        bare = data.replace(named, b'"artefact_id": ""', 1)
        return hashlib.sha256(bare).hexdigest() == self.artefact_id

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Parse a manifest.

        Raises:
            ManifestError: not JSON, another schema version, or a field that does not fit.
        """
        try:
            head = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ManifestError(f"{MANIFEST_NAME} is not valid JSON: {error}") from None
        if not isinstance(head, dict):
            raise ManifestError(f"{MANIFEST_NAME} is not a JSON object")
        version = head.get("schema_version")
        if version != SCHEMA_VERSION:
            raise ManifestError(
                f"the bundle has manifest schema version {version!r}; this ortloom reads version "
                f"{SCHEMA_VERSION}: export it again"
            )
        try:
            manifest = msgspec.convert(head, cls)
        except msgspec.ValidationError as error:
            raise ManifestError(f"{MANIFEST_NAME} does not fit its schema: {error}") from None
        if manifest.op_contract_version != OP_CONTRACT_VERSION:
            raise ManifestError(
                f"the bundle was written for op contract {manifest.op_contract_version}; this "
                f"ortloom has {OP_CONTRACT_VERSION}: export it again"
            )
        if (
            not manifest.is_sealed_in(data)
            and manifest.sealed().artefact_id != manifest.artefact_id
        ):
            raise ManifestError(f"{MANIFEST_NAME} was changed after export (artefact id differs)")
        return manifest

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Read and check a bundle folder.

        Raises:
            ManifestError: no manifest, unreadable, another version, or a changed or missing file.
        """
        if not folder.is_dir():
            raise ManifestError(f"bundle folder '{folder}' does not exist")
        try:
            data = (folder / MANIFEST_NAME).read_bytes()
        except FileNotFoundError:
            raise ManifestError(f"'{folder}' is not a bundle: it has no {MANIFEST_NAME}") from None
        except OSError as error:
            raise ManifestError(f"cannot read {MANIFEST_NAME}: {error.strerror}") from None
        manifest = cls.from_bytes(data)
        for entry in manifest.small_files():
            check_contents(folder, entry)
        for weight in manifest.weights:
            check_header(folder, weight)
        return manifest

    def verify_weights(self, folder: Path) -> None:
        """Hash the contents of all weight files.

        Raises:
            ManifestError: a weight file's contents differ from the manifest.
        """
        for weight in self.weights:
            check_contents(folder, weight.file)
