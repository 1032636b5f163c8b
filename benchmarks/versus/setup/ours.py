"""ortloom: one bundle a precision, exported from the same file."""

import sys
from pathlib import Path

from benchmarks.versus.engines import BUILD, OURS, Engine, Precision, worker
from benchmarks.versus.setup.steps import command, say

HOME = BUILD / "versus"
BUNDLES: tuple[tuple[Precision, str, tuple[str, ...], str], ...] = (
    ("int4", "int4", ("--quant", "int4"), ""),
    ("int4", "q4_1-keep", ("--quant", "keep"), "the file's own values"),
    ("int8", "int8", ("--quant", "int8"), ""),
    ("bf16", "bf16", ("--dtype", "bf16"), "fp32 arithmetic"),
    ("fp32", "fp32", (), ""),
)
KV_CACHES: dict[Precision, tuple[str, ...]] = {
    "int4": ("float16", "float32"),
    "int8": ("float16",),
    "bf16": ("float16",),
    "fp32": ("float32",),
}
"""Of each precision; a row whose KV cache is not the first one's says so in its name."""
KV_BYTES = 512 << 20
MAX_MODEL_LEN = 1280


def prepare(
    gguf: Path, precisions: tuple[Precision, ...], threads: int, again: bool
) -> list[Engine]:
    """Exports the bundles that are missing, or all of them `again`; worker and server for each."""
    engines = []
    for precision, label, flags, note in BUNDLES:
        if precision not in precisions:
            continue
        bundle = HOME / label
        if again or not (bundle / "manifest.json").exists():
            say(f"exporting {bundle}")
            parts = [sys.executable, "-m", "ortloom", "export", gguf, "-o", bundle, "--force"]
            command([*parts, "--targets", "cpu", *flags], HOME / "export.log")
        for kv_cache in KV_CACHES[precision]:
            row = label if kv_cache == KV_CACHES[precision][0] else f"{label} kv-{kv_cache}"
            said = ", ".join(part for part in (note, f"{kv_cache} KV cache") if part)
            process = worker(sys.executable, "ortloom_worker", bundle, threads, kv_cache)
            engines.append(Engine(OURS, precision, row, process, note=said))
            server = (
                sys.executable, "-m", "ortloom", "serve", str(bundle), "--host", "127.0.0.1",
                "--port", "{port}", "--threads", str(threads), "--served-model-name", "m",
                "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "32",
                "--kv-cache-memory-bytes", str(KV_BYTES), "--no-enable-prefix-caching",
                "--kv-cache-dtype", kv_cache,
            )  # fmt: skip
            engines.append(Engine(OURS, precision, row, server, "http", said, scores=False))
    return engines
