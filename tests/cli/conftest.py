import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def ortloom(tmp_path):
    """Run `python -m ortloom ...` as a user would; HOME and the cache are the test's own."""

    def run(*arguments, env=None, timeout=120, cwd=None):
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "VT_"))}
        environ |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        environ |= env or {}
        return subprocess.run(
            [sys.executable, "-m", "ortloom", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environ,
            timeout=timeout,
            cwd=cwd,
        )

    return run


def _load(name):
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"ortloom_test_cli_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def load():
    """Loads a helper module beside the tests by its name."""
    return _load


@pytest.fixture(scope="session")
def tiny():
    """The module that writes tiny checkpoints."""
    return _load("tiny_checkpoint")


@pytest.fixture
def checkpoint(tiny, tmp_path):
    """A fresh tiny checkpoint."""
    return tiny.write(tmp_path / "model")
