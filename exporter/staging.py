"""The output folder appears whole or not at all."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ortloom.errors import OutputExists
from ortloom.exporter.interrupts import Interrupts
from ortloom.models.manifest import MANIFEST_NAME


def require_free(output: Path, force: bool) -> None:
    """Check that `output` may be written.

    Raises:
        OutputExists: it exists and may not be replaced.
    """
    if not output.exists() and not output.is_symlink():
        return
    if output.is_dir() and not any(output.iterdir()):
        return
    if not force:
        raise OutputExists(f"'{output}' exists; use --force to replace it")
    if not (output / MANIFEST_NAME).is_file():
        raise OutputExists(f"'{output}' exists and is not a bundle; --force replaces bundles only")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_tree(root: Path) -> None:
    for folder, _, files in os.walk(root):
        for name in files:
            _sync(Path(folder) / name)
        _sync(Path(folder))


@contextmanager
def staged(output: Path, force: bool) -> Iterator[Path]:
    """A folder beside `output` that takes its place when the block ends well.

    On any error, an interrupt included, it is removed and `output` stays as it was.

    Raises:
        OutputExists: `output` exists and may not be replaced.
    """
    require_free(output, force)
    output.parent.mkdir(parents=True, exist_ok=True)
    token = uuid.uuid4().hex[:8]
    work = output.with_name(f"{output.name}.tmp-{token}")
    work.mkdir()
    with Interrupts() as interrupts:
        try:
            yield work
            _sync_tree(work)
            interrupts.check()
            require_free(output, force)
            old: Path | None = None
            if output.exists():
                old = output.with_name(f"{output.name}.old-{token}")
                output.rename(old)
            try:
                work.rename(output)
            except OSError:
                if old is not None:
                    old.rename(output)
                raise
            _sync(output.parent)
            if old is not None:
                shutil.rmtree(old)
        finally:
            if work.exists():
                shutil.rmtree(work, ignore_errors=True)
