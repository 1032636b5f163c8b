"""`ortloom export SOURCE -o DIR`: a checkpoint becomes a bundle.

Standard output carries the result path alone (with --dry-run: the plan); progress goes to standard
error, as bars on a terminal, plain lines elsewhere, JSON lines with --json.
"""

import argparse
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from ortloom.checkpoint_cache import require_export_extra
from ortloom.commands.export_check import check_existing
from ortloom.errors import ConfigError
from ortloom.exporter.source_variation import SourceVariation

if TYPE_CHECKING:
    from ortloom.exporter.options import Dtype, ExportOptions

TARGETS = ("cpu", "plain")
LATER_TARGETS = ("cuda", "tensorrt")


DTYPES: dict[str, "Dtype"] = {
    "fp32": "fp32",
    "float32": "fp32",
    "fp16": "fp16",
    "float16": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
}
"""Names of `--dtype` → the type they mean."""


def build_parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="ortloom export",
        description="Turn a Hugging Face folder or a .gguf file into a bundle.",
        epilog="exit codes: 0 done, 1 internal error or missing extra, 2 usage, 3 source invalid, "
        "4 unsupported model, 5 parity failed, 6 not enough disk or memory, 7 output exists, "
        "8 existing output is stale or changed, 130 interrupted",
    )
    parser.add_argument("source", help="checkpoint folder or .gguf file")
    parser.add_argument("-o", "--output", metavar="DIR", help="bundle folder to make")
    parser.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        default="fp32",
        help="element type of weight matrices that are not quantised (default fp32); activations "
        "are fp32",
    )
    parser.add_argument(
        "--quant",
        choices=("int8", "int4", "keep"),
        help="int8, int4: round weight matrices; keep: every matrix in the source's own blocks and "
        "element type, with its own values (GGUF)",
    )
    parser.add_argument(
        "--lm-head-quant",
        choices=("int8", "int4"),
        help="the output layer and the embedding table with --quant int4 (default int8: at 4 bits "
        "they are read faster and cost accuracy, since their error goes straight into the logits)",
    )
    parser.add_argument(
        "--targets",
        default=",".join(TARGETS),
        help=f"graph variants, comma-separated (default {','.join(TARGETS)})",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare the bundle with transformers before it is finished; on an output that "
        "exists, check that it is intact and made from this source",
    )
    parser.add_argument(
        "--check-layers", type=int, metavar="N", help="layers --check builds (default: all)"
    )
    parser.add_argument(
        "--load-format",
        choices=("auto", "dummy"),
        default="auto",
        help="dummy: random weights; the source needs its config and tokenizer only",
    )
    parser.add_argument(
        "--model-weights", metavar="DIR", help="read the weight files of another folder"
    )
    parser.add_argument(
        "--hf-config-path", metavar="PATH", help="a config.json, or a folder with one, to use"
    )
    parser.add_argument(
        "--hf-overrides", metavar="JSON", default="{}", help="members of the config to replace"
    )
    parser.add_argument(
        "--no-progress-bar", action="store_true", help="plain lines, on a terminal too"
    )
    parser.add_argument("--hub-id", help="recorded as the origin of the source")
    parser.add_argument("--revision", help="recorded with --hub-id")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan and sizes, write nothing"
    )
    parser.add_argument("--json", action="store_true", help="progress and plan as JSON")
    parser.add_argument("--force", action="store_true", help="replace an output that exists")
    parser.add_argument("--log-level", default="info", help="debug shows tracebacks")
    return parser


def run(tokens: list[str]) -> int:
    """Run the command.

    Raises:
        ConfigError: wrong arguments.
        ExportError: see its subclasses; the output path is as it was.
    """
    args = build_parser().parse_args(tokens)
    targets = _targets(args.targets)
    output: str = args.output or ""
    if not output and not args.dry_run:
        raise ConfigError("the following arguments are required: -o/--output")
    if args.lm_head_quant is not None and args.quant != "int4":
        raise ConfigError("argument --lm-head-quant: it goes with --quant int4 only")
    variation = _variation(args)
    if args.check and variation != SourceVariation():
        raise ConfigError(
            "argument --check: it compares with the source as it is; it does not go with "
            "--load-format dummy, --model-weights, --hf-config-path or --hf-overrides"
        )
    if args.check and not args.force and not args.dry_run and _is_bundle(output):
        check_existing(
            Path(args.source),
            Path(output),
            args.quant,
            args.lm_head_quant,
            DTYPES[args.dtype],
            targets,
        )
        print(output)
        return 0
    if not args.dry_run:
        require_export_extra()
    from ortloom.exporter.options import ExportOptions

    options = ExportOptions(
        source=args.source,
        output=output,
        dtype=DTYPES[args.dtype],
        quant=args.quant,
        lm_head_quant=args.lm_head_quant or "int8",
        check=args.check,
        check_layers=args.check_layers,
        dry_run=args.dry_run,
        json=args.json,
        force=args.force,
        targets=targets,
        hub_id=args.hub_id,
        revision=args.revision,
        variation=variation,
        bars=not args.no_progress_bar,
    )
    if args.dry_run:
        return _plan(options)
    if args.log_level.lower() != "debug":
        logging.disable(
            logging.WARNING
        )  # the libraries' own remarks are not about the user's model
        warnings.simplefilter("ignore")
    return _export(options)


def _variation(args: argparse.Namespace) -> SourceVariation:
    try:
        overrides = json.loads(args.hf_overrides)
    except ValueError as error:
        raise ConfigError(f"argument --hf-overrides: not valid JSON: {error}") from None
    if not isinstance(overrides, dict):
        raise ConfigError("argument --hf-overrides: must be a JSON object")
    return SourceVariation(
        weights=args.model_weights,
        config=args.hf_config_path,
        overrides=overrides,
        dummy=args.load_format == "dummy",
    )


def _is_bundle(output: str) -> bool:
    return (Path(output).expanduser() / "manifest.json").is_file()


def _plan(options: "ExportOptions") -> int:
    from ortloom.exporter.plan import plan

    planned = plan(options)
    if options.json:
        print(json.dumps(msgspec.to_builtins(planned), sort_keys=True))
    else:
        print("\n".join(planned.lines()))
    return 0


def _export(options: "ExportOptions") -> int:
    # the model is local and complete: libraries must neither ask a hub nor chat
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unwinds, so nothing stays behind
    from ortloom.exporter.pipeline import export
    from ortloom.exporter.progress import progress_for

    with _own_stdout() as result:
        progress = progress_for(options.json, bars=options.bars)
        try:
            folder = export(options, progress)
        finally:
            progress.close()
        print(folder, file=result, flush=True)
    return 0


@contextmanager
def _own_stdout() -> Iterator[TextIO]:
    """The real standard output; meanwhile whatever else prints goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(kept, "w", closefd=False) as stream:
            yield stream
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _targets(text: str) -> tuple[str, ...]:
    targets = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for target in targets:
        if target in LATER_TARGETS:
            raise ConfigError(f"argument --targets: '{target}' is known, but not in this build yet")
        if target not in TARGETS:
            raise ConfigError(
                f"argument --targets: '{target}' is unknown (choose from {', '.join(TARGETS)})"
            )
    if not targets:
        raise ConfigError("argument --targets: name at least one target")
    return targets
