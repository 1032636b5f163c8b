"""Where a batch is read from and written to: local files, or http(s) URLs."""

import errno
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from ortloom.batch.lines import BatchFailed

_SECONDS = 300.0


def is_url(place: str) -> bool:
    """Whether a place is a URL."""
    return place.startswith(("http://", "https://"))


def read_place(place: str) -> str:
    """The text of a file, or what GET gives.

    Raises:
        BatchFailed: it cannot be read, or is not UTF-8.
    """
    try:
        if not is_url(place):
            return Path(place).read_text(encoding="utf-8")
        with urllib.request.urlopen(place, timeout=_SECONDS) as reply:
            data: bytes = reply.read()
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BatchFailed(f"cannot read '{place}': {_reason(error)}") from None


def check_writable(place: str, tmp_dir: str | None) -> None:
    """Find out before the work whether the results can be kept.

    Raises:
        BatchFailed: a folder is missing or not ours to write to.
    """
    folders = [tmp_dir] if tmp_dir is not None else []
    if not is_url(place):
        folders.append(str(Path(place).absolute().parent))
        if Path(place).is_dir():
            raise BatchFailed(f"cannot write '{place}': it is a folder")
    for folder in folders:
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
            raise BatchFailed(f"cannot write to the folder '{folder}'")


def write_place(place: str, lines: Iterable[bytes], tmp_dir: str | None) -> None:
    """Write results so that whoever looks finds none or all of them.

    Args:
        place: file, or URL that gets one PUT.
        lines: without line ends.
        tmp_dir: folder of the file until it is complete; None = beside the target.

    Raises:
        BatchFailed: it cannot be written; the results then stay where the message says.
    """
    folder = tmp_dir or (None if is_url(place) else str(Path(place).absolute().parent))
    descriptor, name = tempfile.mkstemp(prefix="ortloom-batch-", suffix=".jsonl", dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        for line in lines:
            file.write(line + b"\n")
    try:
        if is_url(place):
            _put(place, name)
        else:
            _move(name, place)
    except OSError as error:
        raise BatchFailed(
            f"cannot write '{place}': {_reason(error)}; the results are in '{name}'"
        ) from None


def _move(name: str, place: str) -> None:
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(name, 0o666 & ~mask)
    try:
        os.replace(name, place)
    except OSError as error:
        if error.errno != errno.EXDEV:  # the folder for unfinished results is on another disk
            raise
        beside = f"{place}.part"
        Path(beside).write_bytes(Path(name).read_bytes())
        os.replace(beside, place)
        os.unlink(name)


def _put(url: str, name: str) -> None:
    with open(name, "rb") as file:
        headers = {
            "Content-Length": str(os.path.getsize(name)),
            "Content-Type": "application/jsonl",
        }
        request = urllib.request.Request(url, data=file, headers=headers, method="PUT")
        with urllib.request.urlopen(request, timeout=_SECONDS):
            pass
    os.unlink(name)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
