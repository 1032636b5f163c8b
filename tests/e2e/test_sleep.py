"""A sleeping engine gives its memory back to the system, and answers the same after it woke."""

import sys
from pathlib import Path

served = sys.modules["ortloom_test_served"]

ASKED = {"prompt": "The sea is", "max_tokens": 8, "temperature": 0}
MIB = 2**20


def resident(pid):
    """Bytes of a process in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise LookupError(pid)


def test_memory_falls_and_comes_back(demo_bundle):
    flags = ("--enable-sleep-mode", "--num-gpu-blocks-override", "256")
    environment = {"VLLM_SERVER_DEV_MODE": "1"}
    with served.Served(demo_bundle, *flags, env=environment) as server:
        client = server.client
        pid = server.pid_of("ortloom.runtime.engine_process")
        before = client.post("/v1/completions", json=ASKED).json()["choices"][0]["text"]
        awake = resident(pid)
        weights = sum(p.stat().st_size for p in Path(demo_bundle).glob("weights/*.bin"))
        for level in (1, 2):
            assert client.post(f"/sleep?level={level}").status_code == 200
            asleep = resident(pid)
            assert awake - asleep > 300 * MIB, (level, awake // MIB, asleep // MIB, weights // MIB)
            assert client.get("/is_sleeping").json() == {"is_sleeping": True}
            assert client.post("/wake_up").status_code == 200
            after = client.post("/v1/completions", json=ASKED).json()["choices"][0]["text"]
            assert after == before
            assert resident(pid) > asleep + 200 * MIB
