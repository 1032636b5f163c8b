"""A GGUF file: metadata, and tensors dequantised to exactly the values they stand for."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ortloom.errors import SourceInvalid, UnsupportedModel
from ortloom.exporter.gguf_blocks import BLOCK_TYPES, block_rows
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.sources.checkpoint import Blocks, FloatRows, TensorInfo
from ortloom.exporter.sources.gguf_config import (
    PERMUTED,
    generation_config,
    parameter_name,
    read_config,
)
from ortloom.exporter.sources.gguf_container import GgufContainer, StoredGguf
from ortloom.exporter.sources.gguf_experts import expert_matrices
from ortloom.kernels.packed_contract import Format

READABLE = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"})
FLOATS = frozenset({"F32", "F16", "BF16"})


def _values(rows: np.ndarray[Any, Any], kind: str) -> FloatRows:
    """fp32 values [n, width] of stored rows [n, bytes]."""
    if kind == "F32":
        return np.ascontiguousarray(rows).view("<f4").astype(np.float32, copy=False)
    if kind == "F16":
        return np.ascontiguousarray(rows).view("<f2").astype(np.float32)
    if kind == "BF16":
        wide = np.ascontiguousarray(rows).view("<u2").astype(np.uint32)
        return np.left_shift(wide, 16, out=wide).view(np.float32)
    from gguf import GGMLQuantizationType, quants

    values = quants.dequantize(np.ascontiguousarray(rows), GGMLQuantizationType[kind])
    return np.ascontiguousarray(values, dtype=np.float32)


def native_form(kind: str) -> PackedForm | None:
    """The stored form that keeps a type's values; None = fp32."""
    if kind in BLOCK_TYPES:
        facts = BLOCK_TYPES[kind]
        return PackedForm(
            facts.format, facts.block_size, facts.scale_type, facts.has_mins, native=True
        )
    floats: dict[str, Format] = {"F16": "f16", "BF16": "bf16"}
    return PackedForm(floats[kind], native=True) if kind in floats else None


class GgufFile:
    """See `Checkpoint`.

    Raises:
        SourceInvalid: not a GGUF file, corrupt or truncated.
        UnsupportedModel: an architecture or tensor type that is not supported.
    """

    format: Literal["safetensors", "gguf", "dummy"] = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.warnings: list[str] = []
        self._container = GgufContainer(path)
        self._fields = self._container.fields
        stored = self._container.tensors
        self._config = read_config(self._fields, set(stored))
        self._stored: dict[str, StoredGguf] = {}
        self.tensors: dict[str, TensorInfo] = {}
        for name, tensor in stored.items():
            ours = parameter_name(name)
            places = {ours: tensor} if ours is not None else expert_matrices(name, tensor)
            if not places:
                self.warnings.append(f"tensor '{name}' has no counterpart and is left out")
                continue
            if tensor.kind not in READABLE:
                raise UnsupportedModel(
                    f"tensor '{name}' is stored as {tensor.kind} (supported: "
                    f"{', '.join(sorted(READABLE))})"
                )
            for parameter, place in places.items():
                if parameter in self._stored:
                    raise SourceInvalid(f"tensor '{name}' is also stored under another name")
                self._stored[parameter] = place
                self.tensors[parameter] = TensorInfo(place.shape, place.kind)
        self.quantised = any(t.dtype not in FLOATS for t in self.tensors.values())

    def config(self) -> dict[str, Any]:
        """See `Checkpoint.config`."""
        copy: dict[str, Any] = json.loads(json.dumps(self._config))
        return copy

    def rows(self, name: str, start: int, stop: int) -> FloatRows:
        """See `Checkpoint.rows`; exact: every stored block is expanded as its format says."""
        tensor = self._stored[name]
        if len(tensor.shape) == 1:
            table = self._table(tensor)
            whole: FloatRows = _values(table, tensor.kind).reshape(-1)[start:stop]
            return whole
        rows = _values(self._raw_rows(name, start, stop), tensor.kind)
        return rows.reshape(stop - start, *tensor.shape[1:])

    def block_form(self, name: str) -> PackedForm | None:
        """See `Checkpoint.block_form`."""
        return native_form(self._stored[name].kind)

    def block_rows(self, name: str, start: int, stop: int) -> Blocks:
        """See `Checkpoint.block_rows`."""
        found = block_rows(self._raw_rows(name, start, stop), self._stored[name].kind)
        return Blocks(found.codes, found.scales, found.mins)

    def _table(self, tensor: StoredGguf) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The stored bytes, a line for each index of the first axis."""
        raw = np.frombuffer(self._container.data, np.uint8, tensor.length, tensor.start)
        return raw.reshape(-1, tensor.row_bytes)

    def _raw_rows(self, name: str, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Stored bytes [n, row bytes] of Hugging Face rows start .. stop."""
        tensor = self._stored[name]
        heads = self._heads(name)
        wanted: Any = slice(start, stop)
        if heads is not None:
            wanted = self._stored_rows(np.arange(start, stop), tensor.shape[0] // heads)
        rows: np.ndarray[Any, np.dtype[np.uint8]] = self._table(tensor)[wanted]
        return rows

    def _heads(self, name: str) -> int | None:
        """Head count of a tensor whose rows are stored in interleaved rotary order."""
        if self._config["model_type"] not in PERMUTED:
            return None
        if ".q_proj." in name:
            return int(self._config["num_attention_heads"])
        if ".k_proj." in name:
            return int(self._config["num_key_value_heads"])
        return None

    @staticmethod
    def _stored_rows(rows: np.ndarray[Any, Any], head: int) -> np.ndarray[Any, Any]:
        """Stored row of each Hugging Face row: (half, pair) of a head is stored as (pair, half)."""
        inside = rows % head
        half, pair = inside // (head // 2), inside % (head // 2)
        stored: np.ndarray[Any, Any] = rows - inside + pair * 2 + half
        return stored

    def files(self) -> list[Path]:
        """The file itself."""
        return [self.path]

    def tokenizer_files(self, folder: Path) -> None:
        """See `Checkpoint.tokenizer_files`; transformers converts the tokenizer."""
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        # transformers reads no olmoe file: what there is of it besides the tokenizer stops
        # AutoTokenizer, which wants the config first.
        reader = PreTrainedTokenizerFast if self._config["model_type"] == "olmoe" else AutoTokenizer
        try:
            tokenizer = reader.from_pretrained(self.path.resolve().parent, gguf_file=self.path.name)
            tokenizer.save_pretrained(folder)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SourceInvalid(
                f"the tokenizer in '{self.path.name}' cannot be converted: {reason}"
            ) from error
        if not (folder / "tokenizer.json").exists():
            raise SourceInvalid(f"the tokenizer in '{self.path.name}' has no fast form")
        template = self._fields.get("tokenizer.chat_template")
        if isinstance(template, str) and not (folder / "chat_template.jinja").exists():
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        ids = json.dumps(generation_config(self._fields), indent=2, sort_keys=True)
        (folder / "generation_config.json").write_text(ids + "\n", encoding="utf-8")
