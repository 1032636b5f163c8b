"""A Hugging Face folder: config.json, one or more safetensors files, tokenizer files."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

from ortloom.errors import SourceInvalid
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.sources.checkpoint import Blocks, FloatRows, TensorInfo
from ortloom.exporter.sources.safetensors_file import SafetensorsFile
from ortloom.kernels.packed_contract import Format

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
OTHERS = ("config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
          "tokenizer.model")  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        SourceInvalid: missing, unreadable, not JSON or not an object.
    """
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise SourceInvalid(f"'{path.name}' is missing from '{path.parent.name}'") from None
    except OSError as error:
        raise SourceInvalid(f"cannot read '{path.name}': {error.strerror}") from None
    except ValueError as error:
        raise SourceInvalid(f"'{path.name}' is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise SourceInvalid(f"'{path.name}' is not a JSON object")
    return data


def _inside(folder: Path, name: object) -> Path:
    """The file `name` of a folder; the name is checked before anything is opened.

    A link may leave the folder only the way the Hugging Face cache lays out its snapshots:
    `snapshots/<revision>/x -> ../../blobs/<hash>`.

    Raises:
        SourceInvalid: absolute, with `..`, or a link to elsewhere.
    """
    if not isinstance(name, str) or not name:
        raise SourceInvalid(f"{INDEX} names a file that is not a string: {name!r}")
    if name.startswith(("/", "~")) or "\\" in name or ".." in name.split("/") or ":" in name:
        raise SourceInvalid(f"{INDEX} names '{name}', which lies outside the model folder")
    root, target = folder.resolve(), (folder / name).resolve()
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    if not target.is_relative_to(root) and not (blobs and target.parent == blobs):
        raise SourceInvalid(f"'{name}' is a link that leaves the model folder")
    if target.exists() and not target.is_file():
        raise SourceInvalid(f"'{name}' is not a regular file")
    return folder / name


class FolderFiles:
    """The files of a Hugging Face folder beside its weights.

    Args:
        folder: the model folder.
        config: used in place of config.json.

    Raises:
        SourceInvalid: config.json is missing or cannot be read.
    """

    def __init__(self, folder: Path, config: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.name = folder.resolve().name
        self.warnings: list[str] = []
        self.tensors: dict[str, TensorInfo] = {}
        self._config = read_json(folder / "config.json") if config is None else config

    def config(self) -> dict[str, Any]:
        """A copy of the config."""
        copy: dict[str, Any] = json.loads(json.dumps(self._config))
        return copy

    def small_files(self) -> list[Path]:
        """Config and tokenizer files that exist."""
        return [p for p in (self.folder / name for name in (*COPIED, *OTHERS)) if p.exists()]

    def tokenizer_files(self, folder: Path) -> None:
        """See `Checkpoint.tokenizer_files`; a slow tokenizer is converted by transformers."""
        for name in COPIED:
            if (self.folder / name).exists():
                shutil.copyfile(_inside(self.folder, name), folder / name)
        if (folder / "tokenizer.json").exists():
            return
        from transformers import AutoTokenizer

        try:
            AutoTokenizer.from_pretrained(self.folder).save_pretrained(folder)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SourceInvalid(
                f"'{self.folder.name}' has no tokenizer.json and its tokenizer cannot be "
                f"converted: {reason}"
            ) from error
        if not (folder / "tokenizer.json").exists():
            raise SourceInvalid(f"'{self.folder.name}' has no tokenizer.json")


class HfFolder(FolderFiles):
    """See `Checkpoint`.

    Args:
        folder: the model folder.
        weights: the folder of the weight files where that is another one.
        config: used in place of config.json.

    Raises:
        SourceInvalid: a file is missing, corrupt, unsafe or contradicts the index.
    """

    format: Literal["safetensors", "gguf", "dummy"] = "safetensors"
    quantised = False

    def __init__(
        self, folder: Path, weights: Path | None = None, config: dict[str, Any] | None = None
    ) -> None:
        super().__init__(folder, config)
        self._weights = folder if weights is None else weights
        if self._config.get("quantization_config") is not None:
            method = self._config["quantization_config"]
            kind = method.get("quant_method", "?") if isinstance(method, dict) else "?"
            raise SourceInvalid(
                f"the checkpoint is quantised ({kind}); only F32, F16 and BF16 safetensors and "
                "GGUF files are supported"
            )
        self._weight_files = self._open_weights()
        self._where: dict[str, SafetensorsFile] = {}
        for file in self._weight_files:
            for name, info in file.tensors.items():
                if name in self._where:
                    raise SourceInvalid(
                        f"tensor '{name}' is in two files: '{self._where[name].path.name}' and "
                        f"'{file.path.name}'"
                    )
                self._where[name] = file
                self.tensors[name] = info
        self._check_index()

    def _open_weights(self) -> list[SafetensorsFile]:
        self._weight_map: dict[str, Any] | None = None
        index = self._weights / INDEX
        if not index.exists():
            single = _inside(self._weights, SINGLE)
            if not single.exists():
                found = sorted(p.name for p in self._weights.glob("*.safetensors"))
                hint = f" (found {', '.join(found[:3])})" if found else ""
                raise SourceInvalid(
                    f"'{self._weights.name}' has neither {SINGLE} nor {INDEX}{hint}"
                )
            return [SafetensorsFile(single)]
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise SourceInvalid(f"{INDEX} has no weight_map")
        self._weight_map = weight_map
        paths = [
            _inside(self._weights, name) for name in sorted(set(map(str, weight_map.values())))
        ]
        for path in paths:
            if not path.exists():
                raise SourceInvalid(f"shard '{path.name}' named by {INDEX} is missing")
        return [SafetensorsFile(path) for path in paths]

    def _check_index(self) -> None:
        if self._weight_map is None:
            return
        for tensor, shard in sorted(self._weight_map.items()):
            file = self._where.get(tensor)
            if file is None or file.path != self._weights / str(shard):
                raise SourceInvalid(
                    f"{INDEX} names tensor '{tensor}' in '{shard}', it is not there"
                )
        extra = sorted(set(self.tensors) - set(self._weight_map))
        if extra:
            self.warnings.append(
                f"{len(extra)} tensor(s) in the shards are not named by {INDEX}: {extra[0]} ..."
            )

    def rows(self, name: str, start: int, stop: int) -> FloatRows:
        """See `Checkpoint.rows`."""
        return self._where[name].rows(name, start, stop)

    def block_form(self, name: str) -> PackedForm | None:
        """See `Checkpoint.block_form`: 16-bit floats keep their type."""
        kept: dict[str, Format] = {"F16": "f16", "BF16": "bf16"}
        format = kept.get(self.tensors[name].dtype)
        return None if format is None else PackedForm(format, native=True)

    def block_rows(self, name: str, start: int, stop: int) -> Blocks:
        """See `Checkpoint.block_rows`."""
        raise SourceInvalid(f"tensor '{name}' is not stored in blocks")

    def files(self) -> list[Path]:
        """Weight files, index, config and tokenizer files."""
        index = self._weights / INDEX
        weights = [*([index] if index.exists() else []), *(f.path for f in self._weight_files)]
        return sorted([*self.small_files(), *weights])
