"""Say what installing torch would fetch before it is fetched.

Asks pip for its plan (`--dry-run --report`) and prints it when it holds a CUDA build; quiet for a
CPU build and where the wanted version is installed already. Only the standard library is used,
because nothing else is installed at that point.

    python tools/torch_plan.py REQUIREMENT [pip options ...]
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from typing import Any

CUDA_NAMES = ("nvidia-", "cuda-", "triton")


def plan(arguments: list[str]) -> list[dict[str, Any]]:
    """The distributions pip would install, empty if pip cannot say."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-"]
    command += ["--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return []
    install: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return install


def size(entry: Mapping[str, Any]) -> int | None:
    """Bytes of one download, asked with a HEAD request; None if the server does not say."""
    request = urllib.request.Request(entry["download_info"]["url"], method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            length = answer.headers.get("Content-Length")
    except OSError:
        return None
    return int(length) if length else None


def describe(entries: list[dict[str, Any]]) -> str | None:
    """The text for a plan with a CUDA build, None for any other plan."""
    names = [f"{e['metadata']['name']} {e['metadata']['version']}" for e in entries]
    cuda = [name for name in names if name.startswith(CUDA_NAMES)]
    if not cuda:
        return None
    sizes = [size(entry) for entry in entries]
    known = sum(length for length in sizes if length is not None)
    total = f"{known / 1e9:.1f} GB" if all(sizes) else f"at least {known / 1e9:.1f} GB"
    return (
        f"torch comes as a CUDA build from this index: {len(entries)} packages, {total} "
        f"({', '.join(cuda)}).\n"
        "It is used for exporting only and needs no GPU. For the CPU build, stop now and run make "
        "again with TORCH_INDEX set to the address of PyTorch's CPU index."
    )


def main() -> int:
    """Print the description, if there is one."""
    text = describe(plan(sys.argv[1:]))
    if text is not None:
        print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
