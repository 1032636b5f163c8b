"""Schemathesis finds no server error and no false statement in the server's own document.

    ORTLOOM_SCHEMATHESIS_EXAMPLES=700   random cases an operation; the next line adds to them
    ORTLOOM_SCHEMATHESIS_COVERAGE=1     cases of every boundary of every field, about 7 500
    ORTLOOM_SCHEMATHESIS_SEED=2         other random cases

The default is meant to take about a minute on two idle processors.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

served = sys.modules["ortloom_test_served"]

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = Path(__file__).resolve().parent / "clients"
EXAMPLES = os.environ.get("ORTLOOM_SCHEMATHESIS_EXAMPLES", "20")
COVERAGE = os.environ.get("ORTLOOM_SCHEMATHESIS_COVERAGE", "0") == "1"
SEED = os.environ.get("ORTLOOM_SCHEMATHESIS_SEED", "1")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
FLAGS = ("--served-model-name", "m", "--max-model-len", "256", "--enable-scale-out")
FLAGS += ("--enable-tokenizer-info-endpoint", "--max-logprobs", "30")
ENVIRONMENT = {"VT_SERVER_MAX_NEW_TOKENS": "4"}

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def schemathesis():
    """The program, in a venv of its own that is kept in build/."""
    wanted = CLIENTS / "schemathesis.txt"
    version = re.search(r"^schemathesis==(\S+)", wanted.read_text(), re.MULTILINE)[1]
    folder = ROOT / "build" / f"schemathesis-{version}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [folder / "bin" / "python", "-m", "pip", "install", "-q", "-r", wanted]
        subprocess.run([*install, "--disable-pip-version-check"], check=True)
        (folder / "complete").touch()
    return folder / "bin" / "schemathesis"


def test_no_case_breaks_the_server(schemathesis, demo_bundle_int8, tmp_path):
    with served.Served(demo_bundle_int8, *FLAGS, env=ENVIRONMENT) as server:
        done = subprocess.run(
            [
                *(schemathesis, "run", f"{server.url}/openapi.json", "--no-color"),
                *("--checks", ",".join(CHECKS), "--max-examples", EXAMPLES, "--seed", SEED),
                *("--phases", "coverage,fuzzing" if COVERAGE else "fuzzing"),
                *(
                    "--continue-on-failure",
                    "--no-shrink",
                    "--warnings",
                    "off",
                    "--request-timeout",
                    "120",
                ),
                *("--suppress-health-check", "all", "--generation-database", "none"),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={
                **os.environ,
                "SCHEMATHESIS_HOOKS": "schemathesis_hooks",
                "PYTHONPATH": str(CLIENTS),
            },
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        cases = int(re.search(r"(\d+) generated", done.stdout)[1])
        print(f"{cases} cases")
        assert cases > 10 * int(EXAMPLES)
        answered = server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
        assert answered.status_code == 200
        text = server.text()
        assert "Traceback" not in text
        generated = re.findall(r'"POST /v1/(?:chat/)?completions" 200 ', text)
        assert len(generated) > int(EXAMPLES) / 4  # the cases get as far as the model
