"""The oldest ONNX Runtime that pyproject.toml allows serves the exported bundle, op and body."""

import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

served = sys.modules["ortloom_test_served"]

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.full


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.fixture(scope="module")
def floor(native_wheel):
    """(version, python) of a serving install at the floor; the venv is kept under build/."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = project["optional-dependencies"]["cpu"]
    version = re.fullmatch(r"onnxruntime>=([\d.]+)", requirement).group(1) + ".0"
    folder = ROOT / "build" / f"serve-ort-{version}"
    python = folder / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
    serving = [name for name in project["dependencies"]]
    run(python, "-m", "pip", "install", "-q", f"onnxruntime=={version}", *serving)
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", native_wheel)
    return version, python


@pytest.mark.parametrize("env", [{}, {"ORTLOOM_NO_OPS": "1"}], ids=["op", "body"])
def test_floor_serves_the_golden_rows(demo_bundle, golden, floor, env):
    version, python = floor
    with (
        served.Served(demo_bundle, env=env, python=python) as server,
        ThreadPoolExecutor(len(golden)) as threads,
    ):
        info = server.client.get("/server_info", params={"config_format": "json"}).json()
        assert info["system_env"]["onnxruntime"] == version
        assert info["engine"]["provider"]["name"] == ("plain" if env else "cpu")

        def ask(row):
            body = {
                "messages": [{"role": "user", "content": row["question"]}],
                "temperature": 0,
                "max_tokens": 64,
                "return_token_ids": True,
            }
            return server.client.post("/v1/chat/completions", json=body).json()

        for row, answer in zip(golden, threads.map(ask, golden), strict=True):
            assert answer["choices"][0]["token_ids"] == row["output_ids"]


def test_floor_serves_int4(demo_bundle_int4, floor):
    with served.Served(demo_bundle_int4, python=floor[1]) as server:
        body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
        assert server.client.post("/v1/completions", json=body).status_code == 200
