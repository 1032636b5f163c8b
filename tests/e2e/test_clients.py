"""Programs of others run unchanged: LangChain, LiteLLM, lm-evaluation-harness, GuideLLM."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

served = sys.modules["ortloom_test_served"]

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = Path(__file__).resolve().parent / "clients"
KEY = "sk-clients"
MODEL = "demo-model"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_API_KEY": KEY,
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
}
LIMIT = 600  # seconds a client may take on a busy machine

pytestmark = pytest.mark.full


def run(*command, **env):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def client_bin():
    """The bin folder of a venv with all clients over the packages of this one; kept in build/."""
    wanted = CLIENTS / "requirements.txt"
    key = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = ROOT / "build" / f"clients-{key}"
    stamp = folder / "complete"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        python = folder / "bin" / "python"
        run(
            *(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"),
            *("--no-compile", "--disable-pip-version-check", "-r", wanted),
        )
        ours = sysconfig.get_path("purelib")
        site = Path(
            run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        )
        (site / "development.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
        stamp.touch()
    return folder / "bin"


@pytest.fixture(scope="module")
def server(demo_bundle_int8):
    flags = ["--served-model-name", MODEL, "--api-key", KEY, "--max-model-len", "1024"]
    flags += ["--enable-prompt-tokens-details"]
    with served.Served(demo_bundle_int8, *flags) as running:
        running.client.headers["authorization"] = f"Bearer {KEY}"
        yield running


def asked(server, path, **fields):
    response = server.client.post(path, json={"model": MODEL, "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def script(client_bin, name, server, home):
    env = {**OFFLINE, "HOME": str(home)}
    out = run(client_bin / "python", CLIENTS / name, server.url, KEY, MODEL, **env)
    return json.loads(out.splitlines()[-1])


def test_langchain(client_bin, server, tmp_path):
    told = script(client_bin, "langchain_script.py", server, tmp_path)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    ours = asked(server, "/v1/chat/completions", messages=messages, max_tokens=24)
    text = ours["choices"][0]["message"]["content"]
    assert told["whole"] == told["streamed"] == told["batch"][0] == text
    assert told["batch"][1]
    assert told["finish"] == ours["choices"][0]["finish_reason"]
    for usage in (told["usage"], told["streamed_usage"]):
        assert usage["input_tokens"] == ours["usage"]["prompt_tokens"]
        assert usage["output_tokens"] == ours["usage"]["completion_tokens"]
    assert "".join(entry["token"] for entry in told["scored"]).startswith(text)
    assert all(len(entry["top_logprobs"]) == 2 for entry in told["scored"])
    assert set(told["answer"]) == {"city", "capital"}
    for calls in (told["forced"], told["named"]):
        (call,) = calls
        assert call["name"] == "get_weather"
        assert isinstance(call["args"]["city"], str)
    assert told["after"]
    plain = asked(server, "/v1/completions", prompt="The capital of France is", max_tokens=8)
    assert told["text"] == told["text_streamed"] == plain["choices"][0]["text"]


def test_litellm(client_bin, server, tmp_path):
    told = script(client_bin, "litellm_script.py", server, tmp_path)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ours = asked(server, "/v1/chat/completions", messages=messages, max_tokens=12)
    text = ours["choices"][0]["message"]["content"]
    assert told["whole"] == told["streamed"] == text
    assert told["message"] == told["message_streamed"] == text
    counts = [ours["usage"][name] for name in ("prompt_tokens", "completion_tokens")]
    assert told["usage"] == told["message_usage"] == counts
    assert told["message_finish"] == ours["choices"][0]["finish_reason"]
    assert told["call"]["name"] == "get_weather"
    assert isinstance(json.loads(told["call"]["arguments"])["city"], str)
    plain = asked(server, "/v1/completions", prompt="The capital of France is", max_tokens=8)
    assert told["completion"] == plain["choices"][0]["text"]
    assert told["refused"] == 404


def score(server, text, after):
    """(logprob of what follows the first `after` characters, whether it is the likeliest)."""
    reply = asked(server, "/v1/completions", prompt=text, max_tokens=1, prompt_logprobs=1)
    total, likeliest, seen = 0.0, True, 0
    tokens = server.client.post("/tokenize", json={"model": MODEL, "prompt": text}).json()["tokens"]
    for token, scored in zip(tokens, reply["choices"][0]["prompt_logprobs"], strict=True):
        if scored is not None and seen >= after:
            total += scored[str(token)]["logprob"]
            likeliest = likeliest and scored[str(token)]["rank"] == 1
        back = server.client.post("/detokenize", json={"model": MODEL, "tokens": [token]})
        seen += len(back.json()["prompt"])
    return total, likeliest


def test_lm_eval(client_bin, server, demo_bundle_int8, tmp_path):
    tasks = tmp_path / "tasks"
    shutil.copytree(CLIENTS / "lm_eval_tasks", tasks)
    for task in tasks.glob("*.yaml"):
        task.write_text(task.read_text().replace("DATA/", f"{tasks}/"))
    arguments = [
        f"model={MODEL}",
        f"base_url={server.url}/v1/completions",
        "tokenizer_backend=huggingface",
        f"tokenizer={demo_bundle_int8}",
        "num_concurrent=4",
        "max_length=1024",
    ]
    out = tmp_path / "out"
    run(
        *(client_bin / "lm-eval", "run", "--model", "local-completions"),
        *("--model_args", ",".join(arguments), "--tasks", "small_choice,small_words"),
        *("--include_path", tasks, "--output_path", out, "--log_samples"),
        **OFFLINE,
        HOME=str(tmp_path),
        HF_HOME=str(tmp_path / "hf"),
    )
    (results,) = out.rglob("results_*.json")
    told = json.loads(results.read_text())["results"]
    assert told["small_choice"]["acc,none"] >= 0.8
    assert 0 < told["small_words"]["bits_per_byte,none"] < 4
    (samples,) = out.rglob("samples_small_choice_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(rows) == 6
    row = rows[0]
    for choice, response in zip(row["doc"]["choices"], row["resps"], strict=True):
        question = row["doc"]["question"]
        value, likeliest = score(server, f"{question} {choice}", len(question))
        told_value, told_likeliest = response[0]
        assert float(told_value) == pytest.approx(value, abs=2e-3)
        assert str(told_likeliest) == str(likeliest)


def test_guidellm(client_bin, server, demo_bundle_int8, tmp_path):
    report = tmp_path / "report.json"
    before = server.metrics()["vllm:generation_tokens_total"]
    run(
        *(client_bin / "guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={server.url},model={MODEL},api_key={KEY}"),
        *("--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=4"),
        *("--tokenizer", f"kind=hf_auto,model={demo_bundle_int8}"),
        *("--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8"),
        *("--output", f"kind=json,path={report}"),
        **OFFLINE,
        HOME=str(tmp_path),
    )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    done = benchmark["requests"]["successful"]
    assert [request["output_tokens"] for request in done] == [8] * 4
    assert not benchmark["requests"]["errored"]
    assert server.metrics()["vllm:generation_tokens_total"] - before >= 4 * 8
