"""The package is importable under one name only, and its public face is what `__all__` says."""

import importlib.util
from pathlib import Path

import pytest

import ortloom

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["exporter", "runtime", "server", "kernels", "models"])
def test_root_folders_are_reached_only_through_the_package(name):
    assert importlib.util.find_spec(f"ortloom.{name}") is not None
    link = ROOT / "src" / "ortloom" / name
    assert link.is_symlink()
    assert not Path(link.readlink()).is_absolute()


def test_public_names_are_sorted():
    assert sorted(ortloom.__all__) == ortloom.__all__


def test_importing_the_package_is_cheap():
    import subprocess
    import sys

    heavy = ("numpy", "torch", "onnxruntime", "sanic")
    code = f"import ortloom, sys; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
