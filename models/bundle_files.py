"""Files of a bundle: inside its folder, with the size and contents that the manifest says."""

import hashlib
from pathlib import Path

from ortloom.errors import ManifestError
from ortloom.models.graph_entry import FileEntry


def inside(folder: Path, path: str) -> Path:
    """`folder / path`, refusing paths that leave the folder.

    Raises:
        ManifestError: absolute path, `..`, a link to the outside, or links in a circle.
    """
    if path.startswith("/") or "\\" in path or ".." in path.split("/"):
        raise ManifestError(f"'{path}' points outside the bundle")
    full = folder / path
    try:
        within = full.resolve().is_relative_to(folder.resolve())
    except (RuntimeError, OSError):  # RuntimeError up to Python 3.12
        raise ManifestError(f"'{path}' is a link that leads nowhere") from None
    if not within:
        raise ManifestError(f"'{path}' points outside the bundle")
    return full


def hash_file(path: Path) -> str:
    """sha256 of a file's contents, as hex.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sized(folder: Path, entry: FileEntry) -> Path:
    """The path of a file that has the size it should have.

    Raises:
        ManifestError: it is missing, or has another size.
    """
    full = inside(folder, entry.path)
    try:
        size = full.stat().st_size
    except OSError:
        raise ManifestError(f"'{entry.path}' is missing from the bundle") from None
    if size != entry.size:
        raise ManifestError(f"'{entry.path}' has {size} bytes, the manifest says {entry.size}")
    return full


def check_contents(folder: Path, entry: FileEntry) -> None:
    """Hash a file.

    Raises:
        ManifestError: it is missing or was changed.
    """
    if hash_file(sized(folder, entry)) != entry.sha256:
        raise ManifestError(f"'{entry.path}' was changed after export (sha256 differs)")
