"""The op library with a line changed, for showing that a suite notices."""

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CSRC = Path(__file__).resolve().parents[2] / "kernels" / "csrc"
TIER_SOURCE = re.compile(r"_(avx|sse2|neon|dotprod|i8mm)")


class MutantCompiler:
    """Builds the library from its sources with the portable tier alone, one line changed."""

    FLAGS = ("-std=c++17", "-fPIC", "-ffp-contract=off", "-pthread")
    BODIES = {
        "attention_body.h": "attention_portable",
        "linear_prepare.h": "linear_portable",
        "packed_experts.cc": "packed_experts",
    }

    def __init__(self, folder):
        self._folder = folder
        shutil.copytree(CSRC, folder, dirs_exist_ok=True)
        sources = [
            path for path in sorted(folder.glob("*.cc")) if not TIER_SOURCE.search(path.stem)
        ]
        with ThreadPoolExecutor(2) as pool:
            compiled = pool.map(
                lambda path: self._compile(path.with_suffix(".o"), "-c", path), sources
            )
        self._objects = dict(zip((path.stem for path in sources), compiled, strict=True))

    def _compile(self, output, *arguments):
        command = [os.environ.get("CXX", "g++"), *self.FLAGS, "-o", output, *arguments]
        subprocess.run([str(part) for part in command], check=True, timeout=300)
        return output

    def __call__(self, name, body, *replacements):
        header = self._folder / body
        text = changed_text = header.read_text()
        for old, new in zip(replacements[::2], replacements[1::2], strict=True):
            assert changed_text.count(old) == 1
            changed_text = changed_text.replace(old, new)
        header.write_text(changed_text)
        changed = self.BODIES.get(body, Path(body).stem)
        rest = [path for stem, path in self._objects.items() if stem != changed]
        library = self._folder / f"lib{name}.so"
        self._compile(library, "-O1", "-shared", self._folder / f"{changed}.cc", *rest)
        header.write_text(text)
        return library
