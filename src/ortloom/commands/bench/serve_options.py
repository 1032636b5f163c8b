"""From the flags of `ortloom bench serve` to what is run."""

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ortloom.bench.arrivals import RampUp
from ortloom.bench.dataset import DatasetPlan
from ortloom.bench.generation import Api
from ortloom.bench.serving_metrics import GOALS, METRICS
from ortloom.commands.bench.dataset_options import dataset_plan
from ortloom.commands.bench.options import Options
from ortloom.errors import ConfigError

_APIS: dict[str, Api] = {"openai": "completions", "vllm": "completions", "openai-chat": "chat"}
_PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_SAMPLING = {
    "--temperature": "temperature",
    "--top-p": "top_p",
    "--top-k": "top_k",
    "--min-p": "min_p",
    "--frequency-penalty": "frequency_penalty",
    "--presence-penalty": "presence_penalty",
    "--repetition-penalty": "repetition_penalty",
}


class ServeRun(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the flags say. `request_rate` is in requests per second, inf = all at once;
    `goals` in milliseconds by metric; `fields` go into every request body."""

    base_url: str
    headers: Mapping[str, str]
    verify: bool
    backend: str
    api: Api
    endpoint: str
    model: str | None
    served_name: str | None
    adapters: tuple[str, ...]
    pick: Any  # the choices of --lora-assignment
    tokenizer: Path | None
    skip_tokenizer: bool
    wait_seconds: float
    profile: bool
    dataset: DatasetPlan
    request_rate: float
    burstiness: float
    ramp_up: RampUp | None
    max_concurrency: int | None
    num_warmups: int
    request_id_prefix: str
    hide_progress: bool
    ignore_eos: bool
    logprobs: int | None
    fields: Mapping[str, object]
    shown: tuple[str, ...]
    percentiles: tuple[float, ...]
    goals: Mapping[str, float]
    label: str
    date: str
    metadata: Mapping[str, str]
    save: bool
    append: bool
    detailed: bool
    warnings: tuple[str, ...]


def serve_run(options: Options, environ: Mapping[str, str]) -> ServeRun:
    """Check the flags.

    Args:
        options: the flags.
        environ: OPENAI_API_KEY, or else VLLM_API_KEY, is sent as bearer.

    Raises:
        ConfigError: a value is out of range, or flags contradict each other.
    """
    if options.args.positionals:
        raise ConfigError(f"unrecognized arguments: {' '.join(options.args.positionals)}")
    backend = options.word("--backend")
    api = _APIS.get(backend)
    if api is None:
        raise ConfigError(
            f"argument --backend: '{backend}' is known, but not in this build yet: embedding, "
            "scoring and media requests are not built"
        )
    tokenizer = options.text("--tokenizer")
    fields, warnings = _fields(options)
    ramp_up = _ramp_up(options)
    return ServeRun(
        base_url=_base_url(options),
        headers=_headers(options, environ),
        verify=not options.on("--insecure"),
        backend=backend,
        api=api,
        endpoint=_endpoint(options, api),
        model=options.text("--model"),
        served_name=options.text("--served-model-name"),
        adapters=options.strings("--lora-modules"),
        pick=options.word("--lora-assignment"),
        tokenizer=None if tokenizer is None else _folder(tokenizer),
        skip_tokenizer=options.on("--skip-tokenizer-init"),
        wait_seconds=float(options.count("--ready-check-timeout-sec", 0)),
        profile=options.on("--profile"),
        dataset=dataset_plan(options, chat=api == "chat"),
        request_rate=options.positive("--request-rate") or float("inf"),
        burstiness=_finite(options, "--burstiness") or 1.0,
        ramp_up=ramp_up,
        max_concurrency=options.whole("--max-concurrency", 1),
        num_warmups=options.count("--num-warmups", 0),
        request_id_prefix=options.text("--request-id-prefix") or f"bench-{uuid.uuid4().hex[:8]}-",
        hide_progress=options.on("--disable-tqdm"),
        ignore_eos=options.on("--ignore-eos"),
        logprobs=options.whole("--logprobs", 0),
        fields=fields,
        shown=_shown(options),
        percentiles=_percentiles(options),
        goals=_goals(options),
        label=options.text("--label") or backend,
        date=time.strftime("%Y%m%d-%H%M%S"),
        metadata=options.pairs("--metadata"),
        save=options.on("--save-result"),
        append=options.on("--append-result"),
        detailed=options.on("--save-detailed"),
        warnings=(*warnings, *_about_files(options)),
    )


def _base_url(options: Options) -> str:
    url = options.text("--base-url")
    if url is not None:
        return url.rstrip("/")
    host = options.word("--host")
    port = options.whole("--port", 1, 65535)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _endpoint(options: Options, api: Api) -> str:
    path = options.word("--endpoint") if options.given("--endpoint") else _PATHS[api]
    if not path.startswith("/"):
        path = "/" + path
    if api == "chat" and not path.endswith("chat/completions"):
        raise ConfigError(
            f"argument --endpoint: '{path}' is not the path of chat completions, which --backend "
            "openai-chat talks to"
        )
    return path


def _headers(options: Options, environ: Mapping[str, str]) -> dict[str, str]:
    key = environ.get("OPENAI_API_KEY") or environ.get("VLLM_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for name, value in options.pairs("--header").items():
        given = {old: text for old, text in headers.items() if old.lower() != name.lower()}
        headers = {**given, name: value}
    return headers


def _folder(text: str) -> Path:
    folder = Path(text).expanduser()
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(f"argument --tokenizer: '{text}' is no folder with a tokenizer.json")
    return folder


def _fields(options: Options) -> tuple[dict[str, object], list[str]]:
    fields: dict[str, object] = {}
    for flag, field in _SAMPLING.items():
        value = options.whole(flag, -1) if flag == "--top-k" else options.number(flag)
        if value is not None:
            fields[field] = value
    template = options.mapping("--chat-template-kwargs")
    if template:
        fields["chat_template_kwargs"] = template
    fields |= options.mapping("--extra-body")
    warnings = []
    if "temperature" not in fields:
        warnings.append(
            "--temperature is not given, so the server's own default holds, which may not be 0"
        )
    return fields, warnings


def _finite(options: Options, name: str) -> float | None:
    value = options.positive(name)
    if value == float("inf"):
        raise ConfigError(f"argument {name}: must be finite")
    return value


def _ramp_up(options: Options) -> RampUp | None:
    strategy: Any = options.text("--ramp-up-strategy")
    start, end = _finite(options, "--ramp-up-start-rps"), _finite(options, "--ramp-up-end-rps")
    if strategy is None:
        if start is not None or end is not None:
            raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
        return None
    if start is None or end is None:
        raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    if options.given("--request-rate"):
        raise ConfigError("--ramp-up-strategy contradicts --request-rate")
    if start > end:
        raise ConfigError(
            f"--ramp-up-start-rps ({start:g}) must be at most --ramp-up-end-rps ({end:g})"
        )
    return RampUp(strategy, start, end)


def _shown(options: Options) -> tuple[str, ...]:
    text = options.word("--percentile-metrics")
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in METRICS:
            raise ConfigError(
                f"argument --percentile-metrics: unknown metric '{name}' (choose from "
                f"{', '.join(METRICS)})"
            )
    return tuple(dict.fromkeys(names))


def _percentiles(options: Options) -> tuple[float, ...]:
    flag = "--metric-percentiles"
    try:
        values = [float(part) for part in options.word(flag).split(",") if part.strip()]
    except ValueError:
        raise ConfigError(
            f"argument {flag}: expected numbers with commas between, got '{options.word(flag)}'"
        ) from None
    if not values or not all(0 <= value <= 100 for value in values):
        raise ConfigError(f"argument {flag}: must be from 0 to 100, got '{options.word(flag)}'")
    return tuple(dict.fromkeys(values))


def _goals(options: Options) -> dict[str, float]:
    goals: dict[str, float] = {}
    for item in options.strings("--goodput"):
        name, _, limit = item.partition(":")
        if name not in GOALS:
            raise ConfigError(
                f"argument --goodput: expected NAME:MILLISECONDS with a name of "
                f"{', '.join(GOALS)}, got '{item}'"
            )
        try:
            goals[name] = float(limit)
        except ValueError:
            raise ConfigError(f"argument --goodput: invalid number: '{limit}'") from None
        if not goals[name] >= 0:
            raise ConfigError(f"argument --goodput: must be at least 0, got '{item}'")
    return goals


def _about_files(options: Options) -> list[str]:
    if options.on("--save-result") or options.on("--append-result"):
        return []
    names = ("--save-detailed", "--result-dir", "--result-filename")
    given = [name for name in names if options.given(name)]
    return [f"{name} does nothing without --save-result or --append-result" for name in given]
