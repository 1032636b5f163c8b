"""Checks between flags; they run before any single value is judged.

Each check names both flags. Flags whose work is not in this build take part too, so that a wrong
combination is reported as such.
"""

from collections.abc import Callable, Iterator

from ortloom.commands.arguments import Arguments
from ortloom.commands.metrics_options import metrics_contradictions
from ortloom.commands.tls_options import tls_contradictions
from ortloom.commands.trace_options import trace_contradictions
from ortloom.errors import ConfigError


def check_contradictions(args: Arguments) -> None:
    """Run all checks.

    Raises:
        ConfigError: the first combination that cannot be.
    """
    for check in _CHECKS:
        for message in check(args):
            raise ConfigError(message)


def _number(args: Arguments, name: str) -> float | None:
    value = args.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _tools(args: Arguments) -> Iterator[str]:
    if args.get("--enable-auto-tool-choice") and args.get("--tool-call-parser") in (None, "none"):
        yield "--enable-auto-tool-choice needs --tool-call-parser"


def _logs(args: Arguments) -> Iterator[str]:
    if args.get("--enable-log-outputs") and not args.get("--enable-log-requests"):
        yield "--enable-log-outputs needs --enable-log-requests"
    if args.get("--enable-log-requests") and args.get("--disable-log-requests"):
        yield "--enable-log-requests contradicts --disable-log-requests"
    yield from metrics_contradictions(args)
    yield from trace_contradictions(args)
    if args.get("--enable-per-request-metrics") and args.get("--disable-log-stats"):
        yield "--enable-per-request-metrics contradicts --disable-log-stats"


def _sampling_mask(args: Arguments) -> Iterator[str]:
    if not args.get("--return-sampling-mask"):
        return
    if args.get("--logprobs-mode") != "processed_logprobs":
        yield "--return-sampling-mask needs --logprobs-mode processed_logprobs"
    for other in ("--speculative-config", "--spec-method", "--spec-model"):
        if args.get(other) is not None:
            yield f"--return-sampling-mask cannot be combined with speculative decoding ({other})"
    if args.get("--diffusion-config") is not None:
        yield "--return-sampling-mask cannot be combined with --diffusion-config"
    if args.get("--logits-processors"):
        yield "--return-sampling-mask cannot be combined with --logits-processors"


def _speculation(args: Arguments) -> Iterator[str]:
    asked = args.get("--per-request-spec-decode-metrics")
    given = any(
        args.get(name) is not None
        for name in ("--speculative-config", "--spec-method", "--spec-model")
    )
    if asked not in (None, "none") and not given:
        yield "--per-request-spec-decode-metrics needs --speculative-config"


def _processes(args: Arguments) -> Iterator[str]:
    count = _number(args, "--api-server-count")
    if count is not None and count > 0 and args.get("--headless"):
        yield "--api-server-count cannot be combined with --headless"
    if count is not None and count > 1 and args.get("--disable-frontend-multiprocessing"):
        yield "--api-server-count cannot be combined with --disable-frontend-multiprocessing"
    modes = [
        name
        for name in (
            "--data-parallel-hybrid-lb",
            "--data-parallel-external-lb",
            "--data-parallel-multi-port-external-lb",
        )
        if args.get(name)
    ]
    if len(modes) > 1:
        yield f"only one balancing mode may be selected, got {' and '.join(modes)}"


def _adapters(args: Arguments) -> Iterator[str]:
    in_memory, in_batch = _number(args, "--max-cpu-loras"), _number(args, "--max-loras")
    if in_memory is not None and in_memory < (1 if in_batch is None else in_batch):
        yield f"--max-cpu-loras ({in_memory:g}) must be at least --max-loras ({in_batch or 1:g})"
    if args.get("--lora-modules") and not args.get("--enable-lora"):
        yield "--lora-modules needs --enable-lora"


def _steps(args: Arguments) -> Iterator[str]:
    seqs, active = _number(args, "--max-num-seqs"), _number(args, "--max-num-active-seqs")
    budget, context = _number(args, "--max-num-batched-tokens"), _number(args, "--max-model-len")
    if active is not None and active > (256 if seqs is None else seqs):
        yield f"--max-num-active-seqs ({active:g}) must be at most --max-num-seqs ({seqs or 256:g})"
    if budget is not None and seqs is not None and budget < seqs:
        yield f"--max-num-batched-tokens ({budget:g}) must be at least --max-num-seqs ({seqs:g})"
    scheduled = _number(args, "--max-num-scheduled-tokens")
    if budget is not None and scheduled is not None and scheduled > budget:
        yield (
            f"--max-num-scheduled-tokens ({scheduled:g}) must be at most "
            f"--max-num-batched-tokens ({budget:g})"
        )
    partial = _number(args, "--max-num-partial-prefills")
    long = _number(args, "--max-long-partial-prefills")
    if long is not None and long > (1 if partial is None else partial):
        yield (
            f"--max-long-partial-prefills ({long:g}) must be at most "
            f"--max-num-partial-prefills ({partial or 1:g})"
        )
    chunked = args.get("--enable-chunked-prefill")
    if chunked is False and budget is not None and context is not None and budget < context:
        yield (
            f"--max-num-batched-tokens ({budget:g}) must be at least --max-model-len "
            f"({context:g}) with --no-enable-chunked-prefill"
        )


def _same_thing(args: Arguments) -> Iterator[str]:
    for one, other, unset in (
        ("--num-gpu-blocks-override", "--num-blocks", 0),
        ("--kv-cache-memory-bytes", "--kv-cache-memory", 0),
        ("--quant", "--quantization", None),
        ("--enable-prefix-caching", "--enable-radix-attention", None),
    ):
        left, right = args.get(one), args.get(other)
        if None not in (left, right) and unset not in (left, right) and left != right:
            yield f"{one} and {other} are the same setting and differ ({left} and {right})"
    provider, required = args.get("--provider"), args.get("--require-provider")
    if provider not in (None, "auto") and required is not None and provider != required:
        yield f"--provider {provider} contradicts --require-provider {required}"
    if args.get("--enable-sliding-window") and args.get("--disable-sliding-window"):
        yield "--enable-sliding-window contradicts --disable-sliding-window"


def _transport(args: Arguments) -> Iterator[str]:
    yield from tls_contradictions(args)
    if args.get("--fingerprint-mode") == "custom" and args.get("--fingerprint-value") is None:
        yield "--fingerprint-mode custom needs --fingerprint-value"


_CHECKS: tuple[Callable[[Arguments], Iterator[str]], ...] = (
    _tools,
    _logs,
    _sampling_mask,
    _speculation,
    _processes,
    _adapters,
    _steps,
    _same_thing,
    _transport,
)
