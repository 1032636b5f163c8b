"""Serving needs none of the export tools, even where they are installed."""

import os
import sys

served = sys.modules["ortloom_test_served"]

TOOLS = ["torch", "transformers", "onnx", "onnxscript", "onnx_ir", "optimum", "gguf", "accelerate"]


def test_serving_imports_no_export_tool(demo_bundle, tmp_path):
    """Stand-ins shadow the tools: importing one leaves a mark and fails."""
    mark = tmp_path / "imported"
    for name in TOOLS:
        code = f"open({str(mark)!r}, 'a').write({name!r} + '\\n')\nraise ImportError({name!r})\n"
        (tmp_path / f"{name}.py").write_text(code)
    with served.Served(demo_bundle, env={"PYTHONPATH": str(tmp_path)}) as server:
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "logprobs": True}
        schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
        for body in (chat, {**chat, "temperature": 0.7}, {**chat, "response_format": schema}):
            assert server.client.post("/v1/chat/completions", json=body).status_code == 200
        assert server.client.post("/tokenize", json={"prompt": "Hi"}).status_code == 200
        assert server.client.get("/server_info").status_code == 200
    assert not mark.exists(), mark.read_text()


def test_the_stand_ins_do_shadow(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('shadowed')\n")
    import subprocess

    command = [sys.executable, "-P", "-c", "import torch"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    assert "shadowed" in result.stderr


def test_the_engine_keeps_to_the_processors_it_was_given(demo_bundle_int4):
    cpu = max(os.sched_getaffinity(0))
    with served.Served(demo_bundle_int4, "--cpu-affinity", str(cpu)) as server:
        engine = server.pid_of("ortloom.runtime.engine_process")
        assert os.sched_getaffinity(engine) == {cpu}
        info = server.client.get("/server_info", params={"config_format": "json"}).json()
        assert "1 threads" in info["engine"]["provider"]["detail"]
