"""ortloom: one bundle a precision, exported from the same file."""

import sys

from benchmarks.versus.engines import OURS, Engine, Precision, worker
from benchmarks.versus.memory_plan import expected_bytes
from benchmarks.versus.models import Model
from benchmarks.versus.roofline import Shape
from benchmarks.versus.setup.files import checkpoint
from benchmarks.versus.setup.steps import command, say

KEPT = "q4_1-keep"
"""Only of a model that comes as a GGUF file."""
BUNDLES: tuple[tuple[Precision, str, tuple[str, ...], str], ...] = (
    ("int4", "int4", ("--quant", "int4"), ""),
    ("int4", KEPT, ("--quant", "keep"), "the file's own values"),
    ("int8", "int8", ("--quant", "int8"), ""),
    ("bf16", "bf16", ("--dtype", "bf16"), "fp32 arithmetic"),
    ("fp32", "fp32", (), ""),
)
KV_CACHES: dict[Precision, tuple[str, ...]] = {
    "int4": ("float16", "float32"),
    "int8": ("float16",),
    "bf16": ("float16",),
    "fp32": ("float32", "float16"),
}
"""Of each precision; a row whose KV cache is not the first one's says so in its name."""
KV_TOKENS = 32 * 288
"""Room for the 32 streams of 128 + 128 tokens that a case has at most."""
LEAST_KV_BYTES = 512 << 20
MAX_MODEL_LEN = 1280


def prepare(
    model: Model, precisions: tuple[Precision, ...], threads: int, again: bool
) -> list[Engine]:
    """Exports the bundles that are missing, or all of them `again`; worker and server for each."""
    shape = Shape.load(checkpoint(model))
    home, source = model.place(OURS), model.source
    engines = []
    for precision, label, flags, note in BUNDLES:
        if precision not in precisions or (label == KEPT and source != model.gguf):
            continue
        bundle = home / label
        if again or not (bundle / "manifest.json").exists():
            say(f"exporting {bundle}")
            parts = [sys.executable, "-m", "ortloom", "export", source, "-o", bundle, "--force"]
            command([*parts, "--targets", "cpu", *flags], home / "export.log")
        for kv_cache in KV_CACHES[precision]:
            row = label if kv_cache == KV_CACHES[precision][0] else f"{label} kv-{kv_cache}"
            said = ", ".join(part for part in (note, f"{kv_cache} KV cache") if part)
            kv_bytes = kv_cache_bytes(shape, kv_cache)
            arguments = (bundle, threads, kv_cache, kv_bytes)
            process = worker(sys.executable, "ortloom_worker", *arguments)
            memory = expected_bytes(bundle)
            engines.append(Engine(OURS, precision, row, process, note=said, memory=memory))
            server = (
                sys.executable, "-m", "ortloom", "serve", str(bundle), "--host", "127.0.0.1",
                "--port", "{port}", "--threads", str(threads), "--served-model-name", "m",
                "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "32",
                "--kv-cache-memory-bytes", str(kv_bytes), "--no-enable-prefix-caching",
                "--kv-cache-dtype", kv_cache,
            )  # fmt: skip
            engines.append(
                Engine(OURS, precision, row, server, "http", said, scores=False, memory=memory)
            )
    return engines


def kv_cache_bytes(shape: Shape, element: str) -> int:
    """Memory for the KV cache of KV_TOKENS tokens; for a small model more."""
    size = {"float16": 2, "float32": 4}[element]
    return max(LEAST_KV_BYTES, size * shape.kv_elements(KV_TOKENS))
