"""`ortloom collect-env`: a text report about the machine and the installation.

Every line is gathered on its own and a failure becomes the line's text, so the report never fails.
Sections and layout are those of the field; ONNX Runtime stands in the place of PyTorch.
"""

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ortloom import __version__

Row = tuple[str, str]

LABEL_WIDTH = 29
RULE = "=" * 30
PREFIXES = ("VLLM_", "VT_", "ORTLOOM_", "ORT_", "OMP_", "CUDA_", "NVIDIA_", "XDG_CACHE_HOME")
SECRET_WORDS = ("key", "token", "secret", "password")
SERVING = (
    *("numpy", "onnxruntime", "onnxruntime-gpu", "safetensors", "tokenizers", "jinja2"),
    *("sanic", "prometheus_client", "msgspec", "pyzmq", "llguidance", "pyyaml"),
)
EXPORT = ("torch", "transformers", "onnx", "onnxscript", "onnx-ir", "gguf", "huggingface_hub")


def run(tokens: list[str]) -> int:
    """Print the report; always 0."""
    argparse.ArgumentParser(prog="ortloom collect-env", description=__doc__).parse_args(tokens)
    print(report())
    return 0


def report() -> str:
    """The whole report."""
    sections: tuple[tuple[str, Callable[[], Iterator[Row]]], ...] = (
        ("System Info", _system),
        ("ONNX Runtime Info", _onnxruntime),
        ("Python Environment", _python),
        ("CUDA / GPU Info", _gpu),
        ("CPU Info", _cpu),
        ("Versions of relevant libraries", _libraries),
        ("vLLM Info", _ortloom),
        ("Environment Variables", _variables),
    )
    lines: list[str] = []
    for title, rows in sections:
        lines += [RULE, f"{title:^30}".rstrip(), RULE]
        try:
            for label, text in rows():
                lines.append(f"{label:<{LABEL_WIDTH}}: {text}")
        except Exception as error:
            # a report about a broken machine must not break on it
            lines.append(f"{'Not available':<{LABEL_WIDTH}}: {type(error).__name__}: {error}")
        lines.append("")
    return "\n".join(lines)


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return "not found"
    return (done.stdout.strip().splitlines() or ["no answer"])[0]


def _system() -> Iterator[Row]:
    yield "OS", _os_name()
    yield "GCC version", _first_line("gcc", "--version")
    yield "Clang version", _first_line("clang", "--version")
    yield "CMake version", _first_line("cmake", "--version")
    yield "Libc version", "-".join(platform.libc_ver()) or "unknown"


def _os_name() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name} ({platform.machine()})"


def _onnxruntime() -> Iterator[Row]:
    import onnxruntime

    yield "ONNX Runtime version", onnxruntime.__version__
    yield "Available providers", ", ".join(onnxruntime.get_available_providers())
    yield "Build", " ".join(onnxruntime.get_build_info().split())


def _python() -> Iterator[Row]:
    yield "Python version", " ".join(sys.version.split())
    yield "Python platform", platform.platform()


def _gpu() -> Iterator[Row]:
    query = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    yield "GPU", _first_line(*query)
    yield "CUDA libraries", "present" if Path("/usr/local/cuda").exists() else "not found"


def _cpu() -> Iterator[Row]:
    yield "CPU", _cpu_model()
    yield "Logical CPUs", str(os.cpu_count())
    yield "CPUs this process may use", str(len(os.sched_getaffinity(0)))
    quota = Path("/sys/fs/cgroup/cpu.max")
    yield "cgroup CPU quota", quota.read_text().strip() if quota.exists() else "none"
    limit = Path("/sys/fs/cgroup/memory.max")
    yield "cgroup memory limit", limit.read_text().strip() if limit.exists() else "none"
    yield "Memory", _memory()


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "CPU part")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _memory() -> str:
    wanted = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            wanted[name] = int(value.split()[0]) // 1024
    return f"{wanted.get('MemTotal')} MiB, available {wanted.get('MemAvailable')} MiB"


def _libraries() -> Iterator[Row]:
    for name in SERVING:
        yield name, _version(name)
    for name in EXPORT:
        yield name, _version(name)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _ortloom() -> Iterator[Row]:
    yield "ortloom version", __version__
    yield from _guarded("Op library", _op_library)
    yield from _guarded("Providers", _providers)
    missing = [name for name in ("torch", "transformers", "onnx") if find_spec(name) is None]
    yield "Export extra", f"not installed ({', '.join(missing)})" if missing else "installed"


def _guarded(label: str, rows: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    try:
        yield from rows()
    except Exception as error:
        yield label, f"not available: {error}"


def _op_library() -> Iterator[Row]:
    from ortloom.kernels.isa import isa_report
    from ortloom.kernels.library import library_path

    yield "Op library", str(library_path())
    report = isa_report()
    for tier in report.tiers:
        yield f"ISA tier {tier.name}", tier.state
    if report.error is not None:
        yield "ISA tier", report.error
    yield "ISA tier covers", "ortloom's own ops; ONNX Runtime picks its own kernels"


def _providers() -> Iterator[Row]:
    from ortloom.runtime.providers.select import all_providers

    chosen = False
    for provider in all_providers():
        reason = provider.available(None)
        if reason is not None:
            text = f"no: {reason}"
        elif chosen:
            text = "can run, but another comes first"
        else:
            chosen, text = True, f"selected ({provider.detail()})"
        yield f"Provider {provider.name}", text


def _variables() -> Iterator[Row]:
    for name in sorted(os.environ):
        if not name.startswith(PREFIXES):
            continue
        if any(word in name.lower() for word in SECRET_WORDS):
            continue
        value = os.environ[name]
        if any(word in value.lower() for word in SECRET_WORDS):
            continue
        yield name, value
