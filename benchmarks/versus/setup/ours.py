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
        process = worker(sys.executable, "ortloom_worker", bundle, threads)
        engines.append(Engine(OURS, precision, label, process, note=note))
        server = (
            sys.executable, "-m", "ortloom", "serve", str(bundle), "--host", "127.0.0.1",
            "--port", "{port}", "--threads", str(threads), "--served-model-name", "m",
            "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "32",
            "--kv-cache-memory-bytes", str(KV_BYTES), "--no-enable-prefix-caching",
        )  # fmt: skip
        engines.append(Engine(OURS, precision, label, server, "http", note, scores=False))
    return engines
