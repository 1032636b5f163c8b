"""A tiny Qwen3-MoE, exported by the command line with its parity check and served.

Greedy ids equal those of transformers (tiny_mixture.py), in process and over HTTP, alone and
together, with the op library and without it.
"""

import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ortloom.models.manifest import Manifest
from ortloom.runtime.llm import LLM
from ortloom.runtime.sampling_params import SamplingParams

served = sys.modules["ortloom_test_served"]

SCRIPT = Path(__file__).with_name("tiny_mixture.py")
BUILD = Path(__file__).resolve().parents[2] / "build"
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def checkpoint():
    """The checkpoint and golden.json, made once for each version of the script."""
    key = hashlib.sha256(SCRIPT.read_bytes()).hexdigest()[:16]
    folder = BUILD / "mixture" / key
    if not (folder / "golden.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder)]
        subprocess.run(command, check=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def rows(checkpoint):
    return json.loads((checkpoint / "golden.json").read_text())["rows"]


@pytest.fixture(scope="module")
def mixture(checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("mixture") / "bundle"
    done = served.run_cli("export", str(checkpoint), "-o", str(out), "--check")
    assert done.returncode == 0, done.stderr
    return out


def greedy():
    return SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS)


def tokens_of(results):
    return [list(result.outputs[0].token_ids) for result in results]


def test_the_bundle_holds_experts_and_passed_its_check(mixture):
    report = json.loads((mixture / "report.json").read_text())
    assert report["checked"]
    assert set(report["parity"]["targets"]) == {"cpu", "plain"}
    for name in ("contract", "cpu", "plain"):
        ops = dict(Manifest.load(mixture).graph(name).ops)
        assert ops["ortloom::PackedExpertsFloatFloat"] == ops["ortloom::ExpertRouting"] == 2


@pytest.mark.parametrize(("provider", "threads"), [("cpu", 1), ("cpu", 2), ("plain", 1)])
def test_in_process(mixture, rows, provider, threads):
    prompts, wanted = [r["prompt_ids"] for r in rows], [r["output_ids"] for r in rows]
    with LLM(mixture, num_blocks=128, provider=provider, threads=threads) as llm:
        assert tokens_of(llm.generate(prompts, greedy())) == wanted
        llm.reset_prefix_cache()
        alone = [tokens_of(llm.generate([prompt], greedy()))[0] for prompt in prompts]
    assert alone == wanted


def test_over_http(mixture, rows):
    def ask(row):
        body = {"temperature": 0, "max_tokens": NEW_TOKENS, "return_token_ids": True}
        if row["kind"] == "chat":
            body["messages"] = [{"role": "user", "content": row["text"]}]
            reply = server.client.post("/v1/chat/completions", json=body)
        else:
            reply = server.client.post("/v1/completions", json={"prompt": row["text"], **body})
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        choice = answer["choices"][0]
        prompt = answer.get("prompt_token_ids") or choice.get("prompt_token_ids")
        return prompt, choice["token_ids"]

    wanted = [(row["prompt_ids"], row["output_ids"]) for row in rows]
    flags = ["--max-model-len", "256", "--num-gpu-blocks-override", "128"]
    with served.Served(mixture, *flags) as server:
        assert [ask(row) for row in rows] == wanted
        with ThreadPoolExecutor(len(rows)) as threads:
            assert list(threads.map(ask, rows)) == wanted
