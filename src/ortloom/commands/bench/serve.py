"""`ortloom bench serve [options]`."""

import os
import resource
from collections import Counter
from pathlib import Path

import msgspec

from ortloom.bench import event_loop
from ortloom.bench.arrivals import arrival_times
from ortloom.bench.dataset import FROM_FILES, Vocabulary, build_workload
from ortloom.bench.generation import Record, Target
from ortloom.bench.http_client import HttpClient
from ortloom.bench.serving_metrics import ServingMetrics, measure
from ortloom.bench.serving_report import Setup, file_name, result, table
from ortloom.bench.serving_run import Load, Outcome, first_model, listed_model, run_load
from ortloom.commands.bench.options import Options, make_folder, read_options, write_json
from ortloom.commands.bench.serve_options import ServeRun, serve_run
from ortloom.errors import BenchmarkFailed
from ortloom.logs import say
from ortloom.models.chat_template import ChatTemplate
from ortloom.models.tokenizer import Tokenizer

_ABOUT = "Load a running server with requests and report throughput and latencies."
_USAGE = "usage: ortloom bench serve [options]"
_SHOWN_ERRORS = 3


class _Model(msgspec.Struct, frozen=True):
    """`id` names the model in the report, `asked` in the requests; `tokenizer` is its folder."""

    id: str
    asked: str
    tokenizer: Path | None


def run(tokens: list[str]) -> int:
    """Run the command; 1 when no request succeeded.

    Raises:
        ConfigError: a flag is wrong.
        BenchmarkFailed: the server cannot be reached, or the test request failed.
    """
    options = read_options("serve", tokens, _ABOUT, _USAGE)
    if options is None:
        return 0
    plan = serve_run(options, os.environ)
    for line in plan.warnings:
        say(f"warning: {line}")
    if plan.save or plan.append:
        make_folder(_result_folder(options))  # now, not after a long load
    _allow_many_connections()
    return event_loop.run(_measure(plan, options))


async def _measure(plan: ServeRun, options: Options) -> int:
    client = HttpClient(plan.base_url, plan.headers, plan.verify)
    try:
        model = await _model(client, plan)
        say(f"server {plan.base_url}{plan.endpoint}, model {model.asked}")
        vocabulary = _vocabulary(model, plan)
        say("preparing the prompts")
        workload = build_workload(plan.dataset, vocabulary)
        target = _target(plan, model)
        arrivals = arrival_times(
            len(workload.samples),
            plan.request_rate,
            plan.burstiness,
            plan.dataset.seed,
            plan.ramp_up,
        )
        load = Load(
            arrivals=arrivals,
            max_concurrency=plan.max_concurrency,
            num_warmups=plan.num_warmups,
            pick=plan.pick,
            seed=plan.dataset.seed,
            profile=plan.profile,
            hide_progress=plan.hide_progress,
        )
        outcome = await run_load(
            client, target, workload, load, vocabulary.tokenizer, plan.wait_seconds
        )
    finally:
        client.close()
    metrics = measure(outcome.records, outcome.duration, plan.percentiles, plan.goals)
    setup = _setup(plan, model, len(outcome.records))
    print(table(setup, metrics, plan.shown, outcome.speculation), flush=True)
    _say_failures(outcome.records)
    _save(options, plan, setup, metrics, outcome)
    return 0 if metrics.completed else 1


async def _model(client: HttpClient, plan: ServeRun) -> _Model:
    """The model's names and tokenizer, asking the server for what no flag says."""
    folder = plan.tokenizer or _tokenizer_folder(plan.model)
    name = plan.served_name or plan.model
    if name is None:
        card = await first_model(client, plan.wait_seconds)
        return _Model(card.id, card.id, folder or _tokenizer_folder(card.root))
    if folder is None and not plan.skip_tokenizer:
        found = await listed_model(client, name, plan.wait_seconds)
        folder = None if found is None else _tokenizer_folder(found.root)
    return _Model(plan.model or name, name, folder)


def _tokenizer_folder(text: str | None) -> Path | None:
    folder = None if text is None else Path(text).expanduser()
    return folder if folder is not None and (folder / "tokenizer.json").is_file() else None


def _vocabulary(model: _Model, plan: ServeRun) -> Vocabulary:
    if plan.skip_tokenizer or model.tokenizer is None:
        return Vocabulary()
    tokenizer = Tokenizer.load(model.tokenizer)
    reads_texts = plan.dataset.name in FROM_FILES
    template = ChatTemplate.load(model.tokenizer, tokenizer) if reads_texts else None
    return Vocabulary(tokenizer, template)


def _target(plan: ServeRun, model: _Model) -> Target:
    return Target(
        api=plan.api,
        path=plan.endpoint,
        models=plan.adapters or (model.asked,),
        ignore_eos=plan.ignore_eos,
        logprobs=plan.logprobs,
        fields=plan.fields,
        request_id_prefix=plan.request_id_prefix,
    )


def _setup(plan: ServeRun, model: _Model, count: int) -> Setup:
    ramp = plan.ramp_up
    return Setup(
        date=plan.date,
        backend=plan.backend,
        label=plan.label,
        model_id=model.id,
        tokenizer_id=None if model.tokenizer is None else str(model.tokenizer),
        num_prompts=count,
        metadata=plan.metadata,
        request_rate=plan.request_rate,
        burstiness=plan.burstiness,
        max_concurrency=plan.max_concurrency,
        ramp_up={}
        if ramp is None
        else {
            "ramp_up_strategy": ramp.strategy,
            "ramp_up_start_rps": ramp.start,
            "ramp_up_end_rps": ramp.end,
        },
    )


def _say_failures(records: list[Record]) -> None:
    errors = Counter(record.error for record in records if not record.success)
    if not errors:
        return
    say(f"{errors.total()} of {len(records)} requests failed:")
    for text, times in errors.most_common(_SHOWN_ERRORS):
        say(f"  {times} x {text}")
    if len(errors) > _SHOWN_ERRORS:
        say(f"  and {len(errors) - _SHOWN_ERRORS} other errors")


def _save(
    options: Options, plan: ServeRun, setup: Setup, metrics: ServingMetrics, outcome: Outcome
) -> None:
    if not (plan.save or plan.append):
        return
    details = outcome.records if plan.detailed else None
    tree = result(setup, metrics, plan.shown, outcome.speculation, details)
    name = options.text("--result-filename") or file_name(setup)
    path = _result_folder(options) / name
    write_json(path, tree, append=plan.append)
    say(f"result written to {path}")


def _result_folder(options: Options) -> Path:
    return Path(options.text("--result-dir") or "").expanduser()


def _allow_many_connections() -> None:
    """Every request in flight is an open file: take as many as this user may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            raise BenchmarkFailed(f"the limit of open files cannot be raised: {error}") from None
