"""The identity of a checkpoint: which files belong to it and the hash over their contents.

Knows neither torch nor ONNX, so that the serving install can find an exported bundle by its
source. Only regular files inside the checkpoint are opened; the layout of the hub cache, where
snapshot files are links into `blobs`, is allowed.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from ortloom.errors import SourceInvalid

_SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".txt", ".tiktoken")
_GGUF_SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")

HashFile = Callable[[Path], str]


def is_checkpoint(path: Path) -> bool:
    """Whether a path looks like something `ortloom export` reads: a .gguf file, a folder with
    config.json, or a folder with one .gguf file."""
    if path.is_file():
        return _is_gguf(path)
    return path.is_dir() and ((path / "config.json").is_file() or _only_gguf(path) is not None)


def source_files(source: Path) -> tuple[Path, ...]:
    """The files of a checkpoint, sorted by name.

    Raises:
        SourceInvalid: no such source, an unreadable folder, or a file that is not a regular file
            inside it.
    """
    if source.is_file() and _is_gguf(source):
        return _gguf_files(source)
    if not source.is_dir():
        raise SourceInvalid(f"'{source}' is neither a checkpoint folder nor a .gguf file")
    try:
        names = sorted(os.listdir(source))
    except OSError as error:
        raise SourceInvalid(f"cannot read '{source}': {error.strerror}") from None
    single = _only_gguf(source)
    if single is not None and "config.json" not in names:
        return _gguf_files(single)
    files = [source / name for name in names if name.endswith(_SUFFIXES)]
    templates = source / "chat_templates"
    if templates.is_dir():
        files += sorted(path for path in templates.iterdir() if path.suffix == ".jinja")
    files = [path for path in files if not path.is_dir()]
    if not files:
        raise SourceInvalid(f"'{source}' holds no checkpoint files")
    roots = _allowed_roots(source)
    for path in files:
        _check_regular(path, roots)
    return tuple(files)


def source_key(
    source: Path, options: Mapping[str, str], version: str, hash_file: HashFile | None = None
) -> str:
    """sha256 over the file names and contents, the export options and the version of ortloom.

    Args:
        source: checkpoint folder or .gguf file.
        options: everything that changes the exported bytes.
        version: version of the exporter.
        hash_file: gives the sha256 of one file; lets a caller keep hashes it already knows.

    Raises:
        SourceInvalid: see `source_files`; also a file that cannot be read.
    """
    digest = hashlib.sha256()
    for path in source_files(source):
        try:
            content = (hash_file or file_sha256)(path)
        except OSError as error:
            raise SourceInvalid(f"cannot read '{path}': {error.strerror}") from None
        digest.update(f"file\0{path.name}\0{content}\n".encode())
    for name in sorted(options):
        digest.update(f"option\0{name}\0{options[name]}\n".encode())
    digest.update(f"version\0{version}\n".encode())
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 of a file's contents, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf"


def _only_gguf(folder: Path) -> Path | None:
    found = [path for path in sorted(folder.iterdir()) if _is_gguf(path)]
    return found[0] if len(found) == 1 else None


def _gguf_files(source: Path) -> tuple[Path, ...]:
    match = _GGUF_SHARD.fullmatch(source.name)
    files = [source]
    if match is not None:
        stem, count = match.groups()
        files = [
            source.with_name(f"{stem}-{index:05d}-of-{count}.gguf")
            for index in range(1, int(count) + 1)
        ]
    for path in files:
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise SourceInvalid(f"cannot read '{path}': {error.strerror}") from None
        if not stat.S_ISREG(mode):
            raise SourceInvalid(f"'{path}' is not a regular file")
    return tuple(files)


def _allowed_roots(source: Path) -> tuple[Path, ...]:
    real = source.resolve()
    if real.parent.name == "snapshots":  # hub cache: snapshots/<revision>/x -> ../../blobs/<hash>
        return (real, real.parent.parent / "blobs")
    return (real,)


def _check_regular(path: Path, roots: tuple[Path, ...]) -> None:
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError):
        raise SourceInvalid(f"'{path}' is a link to nothing") from None
    if not any(real.is_relative_to(root) for root in roots):
        raise SourceInvalid(f"'{path}' is a link to a file outside the checkpoint")
    if not stat.S_ISREG(mode):
        raise SourceInvalid(f"'{path}' is not a regular file")
