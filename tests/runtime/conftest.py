"""Makes the helper modules of this folder importable by its tests (tests are no package)."""

import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture
def address(tmp_path):
    """A free ZeroMQ address."""
    return f"ipc://{tmp_path}/engine"
