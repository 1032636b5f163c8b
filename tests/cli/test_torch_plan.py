import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def torch_plan():
    spec = importlib.util.spec_from_file_location("torch_plan", ROOT / "tools" / "torch_plan.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entry(folder, name, size):
    file = folder / f"{name}.whl"
    file.write_bytes(b"x" * size)
    return {
        "metadata": {"name": name, "version": "1"},
        "download_info": {"url": file.as_uri()},
    }


def test_a_cuda_build_is_described_with_its_size(torch_plan, tmp_path):
    entries = [entry(tmp_path, "torch", 90_000_000), entry(tmp_path, "nvidia-cublas", 30_000_000)]
    text = torch_plan.describe(entries)
    assert "2 packages, 0.1 GB (nvidia-cublas 1)" in text
    assert "TORCH_INDEX" in text


def test_an_unknown_size_is_said(torch_plan, tmp_path):
    gone = entry(tmp_path, "triton", 1)
    (tmp_path / "triton.whl").unlink()
    assert "at least 0.0 GB" in torch_plan.describe([gone])


def test_a_cpu_build_is_quiet(torch_plan, tmp_path):
    assert torch_plan.describe([entry(tmp_path, "torch", 10)]) is None
    assert torch_plan.describe([]) is None
