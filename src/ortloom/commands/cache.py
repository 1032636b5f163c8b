"""`ortloom cache list | prune | clear`: the bundles that `ortloom serve` exported."""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from ortloom.checkpoint_cache import CheckpointCache
from ortloom.environment import cache_root
from ortloom.errors import ConfigError
from ortloom.models.weight_forms import quant_name


def run(tokens: list[str]) -> int:
    """Run the command.

    Raises:
        ConfigError: something in the cache cannot be removed.
    """
    parser = argparse.ArgumentParser(prog="ortloom cache", description=__doc__)
    parser.add_argument("--bundle-cache", type=Path, help="the cache folder")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print every bundle: key, size, source")
    prune = commands.add_parser("prune", help="remove what interrupted exports left behind")
    prune.add_argument(
        "--older-than", type=float, metavar="DAYS", help="and bundles exported before that"
    )
    commands.add_parser("clear", help="remove every bundle")
    options = parser.parse_args(tokens)
    cache = CheckpointCache(options.bundle_cache or cache_root())
    if options.command == "list":
        return _list(cache)
    doomed = list(cache.leftovers())
    if options.command == "clear":
        doomed += cache.entries()
    elif options.older_than is not None:
        limit = time.time() - options.older_than * 86400
        doomed += [path for path in cache.entries() if path.stat().st_mtime < limit]
    return _remove(doomed)


def _list(cache: CheckpointCache) -> int:
    for path in cache.entries():
        name, form = _describe(path)
        print(f"{path.name[:12]}  {_human(_size(path)):>9}  {form:<8}  {name}")
    leftovers = list(cache.leftovers())
    if leftovers:
        print(f"{len(leftovers)} unfinished (ortloom cache prune removes them)", file=sys.stderr)
    return 0


def _remove(paths: list[Path]) -> int:
    freed = 0
    for path in paths:
        freed += _size(path)
        try:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            raise ConfigError(f"cannot remove '{path}': {error.strerror}") from None
    print(f"removed {len(paths)} ({_human(freed)})")
    return 0


def _describe(bundle: Path) -> tuple[str, str]:
    try:
        manifest = json.loads((bundle / "manifest.json").read_bytes())
        quant = quant_name(manifest["quantization"]["method"], manifest["quantization"]["bits"])
        return manifest["source"]["name"], quant or manifest["dtypes"]["weights"]
    except (OSError, ValueError, KeyError, TypeError):
        return "(manifest cannot be read)", "?"


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _human(size: int) -> str:
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
