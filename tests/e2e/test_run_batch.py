"""`ortloom run-batch` with a real model: its answers are those of `ortloom serve`."""

import json
import sys

served = sys.modules["ortloom_test_served"]

LIMITS = ["--max-model-len", "256", "--num-gpu-blocks-override", "64", "--seed", "3"]


def test_a_batch_answers_what_the_server_answers(demo_bundle_int4, tmp_path):
    bodies = [
        {"prompt": "The capital of France is", "max_tokens": 6, "temperature": 0},
        {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 1, "seed": 7},
    ]
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body}
        for n, body in enumerate(bodies)
    ]
    (tmp_path / "in").write_text("\n".join(map(json.dumps, lines)))
    done = served.run_cli(
        *("run-batch", "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")),
        *(str(demo_bundle_int4), *LIMITS),
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    results = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    texts = [result["response"]["body"]["choices"][0]["text"] for result in results]
    assert "Paris" in texts[0]
    with served.Served(demo_bundle_int4, *LIMITS) as server:
        for body, text in zip(bodies, texts, strict=True):
            reply = server.client.post("/v1/completions", json=body)
            assert reply.json()["choices"][0]["text"] == text
