"""ortloom beside other engines: same machine, same model file, same prompts, turn by turn.

    python -m benchmarks.versus [--model demo|llama-1b] [--peers llama.cpp,...] [--rounds 5]

Sets up what is missing below build/peers and build/versus, prints Markdown tables and writes a JSON
record. vLLM is measured only where --peers names it: see docs/versus.md.
"""

import argparse
import dataclasses
import fnmatch
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.versus.agreement import Judge, text_ids
from benchmarks.versus.cases import CASES, Case
from benchmarks.versus.engines import (
    BUILD,
    OURS,
    PEER_NAMES,
    PEERS,
    PRECISIONS,
    ROOT,
    Drive,
    Engine,
    Precision,
)
from benchmarks.versus.measure import Field
from benchmarks.versus.memory_plan import fit_together
from benchmarks.versus.models import MODEL_NAMES, Model, find
from benchmarks.versus.process import Worker
from benchmarks.versus.report import Section
from benchmarks.versus.roofline import Machine, Shape, bound
from benchmarks.versus.setup import genai, llama_cpp, openvino, ours, transformers, vllm
from benchmarks.versus.setup.files import checkpoint
from benchmarks.versus.setup.steps import SetupFailed, say

DEFAULT_PEERS = "llama.cpp,genai,openvino,transformers"
PREPARE = {
    "llama.cpp": llama_cpp.prepare,
    "genai": genai.prepare,
    "openvino": openvino.prepare,
    "transformers": transformers.prepare,
    "vllm": vllm.prepare,
}
DRIVES: tuple[Drive, ...] = ("process", "http")
LOADS = ("auto", "together", "turn")
SMOKE_PROMPT, SMOKE_NEW = 16, 4


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # fmt: off
    add = parser.add_argument
    add("--model", default="demo", choices=MODEL_NAMES, help="llama-1b: the shape of Llama 3.2 1B "
        "with random weights")
    add("--peers", default=DEFAULT_PEERS, help=f"of {','.join(PEER_NAMES)}; empty for none")
    add("--precisions", default=",".join(PRECISIONS))
    add("--cases", default=",".join(CASES))
    add("--drive", default=",".join(DRIVES), help="process, http or both")
    add("--engines", default="*", help="only rows whose name fits one of these patterns, for "
        "example 'ortloom*,*Q4_0*'")
    add("--rounds", type=int, default=5)
    add("--threads", type=int, default=2, help="of every engine")
    add("--seed", type=int, default=1, help="of the prompts")
    add("--load", choices=LOADS, default="auto", help="keep the engines of a table "
        "loaded together, or load each for its turn only; auto: together where memory holds all")
    add("--json", type=Path, metavar="FILE", help="default build/versus/versus.json; of llama-1b "
        "build/versus/llama-1b.json")
    add("--export", action="store_true", help="export ortloom's bundles again")
    add("--setup-only", action="store_true", help="set up, measure nothing")
    add("--no-agreement", dest="agreement", action="store_false")
    add("--smoke", action="store_true", help="tiny counts: shows that all works, measures nothing")
    # fmt: on
    options = parser.parse_args()
    for name, known in (
        ("peers", PEER_NAMES),
        ("precisions", PRECISIONS),
        ("cases", tuple(CASES)),
        ("drive", DRIVES),
    ):
        chosen = tuple(part for part in getattr(options, name).split(",") if part)
        unknown = [part for part in chosen if part not in known]
        if unknown:
            parser.error(f"--{name}: unknown '{unknown[0]}'; known are {', '.join(known)}")
        setattr(options, name, chosen)
    if options.json is None:
        file = "versus.json" if options.model == "demo" else f"{options.model}.json"
        options.json = BUILD / "versus" / file
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    return options


def prepare(options: argparse.Namespace, model: Model) -> list[Engine]:
    """All engines that were asked for; a peer that cannot be set up is left out, and said so."""
    precisions: tuple[Precision, ...] = options.precisions
    engines = ours.prepare(model, precisions, options.threads, options.export)
    for peer in options.peers:
        try:
            engines += PREPARE[peer](model, precisions, options.threads)
        except SetupFailed as error:
            say(f"{peer} is left out: {error}")
    patterns = options.engines.split(",")
    return [e for e in engines if any(fnmatch.fnmatch(e.name, p) for p in patterns)]


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    """The cases asked for, in their own order."""
    cases = [case for name, case in CASES.items() if name in options.cases]
    if not options.smoke:
        return cases
    return [
        dataclasses.replace(
            case, prompt=min(case.prompt, SMOKE_PROMPT), new=min(case.new, SMOKE_NEW), repeats=1
        )
        for case in cases
    ]


def make_judge(options: argparse.Namespace, model: Model) -> Judge | None:
    """The fixed text with the logits of transformers in fp32; None where there is no point."""
    if not (options.agreement and model.trained):
        return None
    cache = PEERS / "agreement"
    cache.mkdir(parents=True, exist_ok=True)
    judge = Judge(text_ids(checkpoint(model)), cache)
    if not judge.ready():
        say("computing the reference's logits (transformers, fp32)")
        with Worker(transformers.reference(model, options.threads), cache) as worker:
            worker.score(judge.ids, judge.path)
        judge.keep()
    return judge


def bounds(
    machine: Machine, model: Model, precision: Precision, cases: list[Case], engines: list[Engine]
) -> dict[str, float]:
    """Of each case, from the weights that ortloom's bundle reads; empty without a bundle."""
    from ortloom.models.manifest import Manifest

    label = next((e.label for e in engines if e.ours and e.precision == precision), None)
    if label is None:
        return {}
    shape = Shape.load(checkpoint(model))
    weights = Manifest.load(model.place(OURS) / label).weight_bytes("cpu")
    return {
        case.name: bound(machine, shape, case, precision, weights)
        for case in cases
        if case.generates and case.more_is_better
    }


def load_together(options: argparse.Namespace, group: list[Engine]) -> bool:
    """Whether the engines of a table stay loaded beside each other."""
    if options.load != "auto":
        return bool(options.load == "together")
    from ortloom.runtime.machine import memory_left

    free = memory_left()
    fits = fit_together(group, free)
    if not fits:
        needed = sum(engine.memory for engine in group)
        say(f"{needed / 1e9:.0f} GB for all engines, {free / 1e9:.0f} GB free: one at a time")
    return fits


def machine_facts() -> dict[str, Any]:
    """What the figures were measured on."""
    text = Path("/proc/cpuinfo").read_text()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return {
        "cpu": names[0] if names else platform.processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "load_at_start": os.getloadavg()[0],
        "commit": commit.stdout.strip(),
    }


def main() -> int:
    options = parse()
    # engines are in sessions of their own and would outlive a run that ends without a clean-up
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    from ortloom.demo import fetch

    begin = time.time()
    gguf = fetch(BUILD / "demo").resolve()
    model = find(options.model, gguf)
    engines = prepare(options, model)
    cases = chosen_cases(options)
    if options.setup_only:
        for engine in engines:
            print(f"{engine.precision}  {engine.name}")
        return 0
    judge = make_judge(options, model)
    machine = Machine.measure(options.threads)
    record: dict[str, Any] = {"machine": machine_facts(), "model": model.name}
    record |= {"rounds": options.rounds, "smoke": options.smoke}
    sections: list[dict[str, Any]] = []
    failed = False
    for drive in options.drive:
        for precision in options.precisions:
            group = [e for e in engines if e.precision == precision and e.drive == drive]
            if not group:
                continue
            say(f"{precision}, {drive}: {len(group)} engines")
            logs = BUILD / "versus" / "logs" / model.name / f"{drive}-{precision}"
            field = Field(group, cases, logs, load_together(options, group))
            field.run(options.rounds, options.seed, judge)
            machine = machine.best_with(Machine.measure(options.threads))
            limits = {} if options.smoke else bounds(machine, model, precision, cases, engines)
            section = Section(
                precision, drive, field.records, limits, model.trained, field.together
            )
            print("\n".join([f"Roofline, {machine}", "", *section.lines(cases)]), flush=True)
            failed = failed or any(r.failure for r in field.records)
            sections.append(section.to_json(cases))
            record |= {"roofline": dataclasses.asdict(machine), "sections": sections}
            record["seconds"] = time.time() - begin
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(record, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
