"""One export from source to finished bundle."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ortloom.errors import UnsupportedModel
from ortloom.exporter.architectures import require_supported
from ortloom.exporter.options import SUPPORTED_TARGETS, ExportOptions
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.packed_weights import DTYPES
from ortloom.exporter.parameters import EMBEDDING, HEAD, settle_ties
from ortloom.exporter.plan import ExportPlan, plan, require_resources
from ortloom.exporter.progress import Progress
from ortloom.exporter.quiet import quiet_libraries
from ortloom.exporter.sources.checkpoint import Checkpoint
from ortloom.exporter.sources.open_source import open_source
from ortloom.exporter.staging import require_free, staged
from ortloom.exporter.versions import producer
from ortloom.models.manifest import MANIFEST_NAME, Manifest, Source
from ortloom.models.weight_forms import WEIGHT_TYPES, Dtypes, Quantization

if TYPE_CHECKING:
    from ortloom.exporter.graph_build import ContractGraph

__all__ = ["ExportOptions", "ExportPlan", "export", "plan"]

PRIVATE_KEYS = ("_name_or_path", "auto_map", "quantization_config", "transformers_version")
"""Config keys that name paths, foreign code or what the bundle no longer is."""


def export(options: ExportOptions, progress: Progress) -> Path:
    """Export `options.source` to a bundle folder.

    Returns:
        The bundle folder.

    Raises:
        ExportError: see its subclasses; the output path is as it was before.
    """
    for target in options.targets:
        if target not in SUPPORTED_TARGETS:
            raise UnsupportedModel(
                f"target '{target}' is not supported (supported: {', '.join(SUPPORTED_TARGETS)})"
            )
    require_free(options.folder, options.force)
    planned = plan(options)
    require_resources(planned, options.folder)
    progress.phase("source")
    checkpoint = open_source(options.source, options.variation)
    config = settle_ties(checkpoint, checkpoint.config())
    class_name = require_supported(config)
    described = _hash_source(checkpoint, options)
    with staged(options.folder, options.force) as root:
        _write_bundle(root, options, progress, checkpoint, config, class_name, described)
        if options.check:
            _check(root, options, progress)
    for text in dict.fromkeys(checkpoint.warnings):
        progress.warn(text)
    return options.folder


def _hash_source(checkpoint: Checkpoint, options: ExportOptions) -> Source:
    from ortloom.exporter.describe import describe_source

    return describe_source(checkpoint, options.hub_id, options.revision)


def _write_bundle(
    root: Path,
    options: ExportOptions,
    progress: Progress,
    checkpoint: Checkpoint,
    config: dict[str, Any],
    class_name: str,
    source: Source,
) -> None:
    from ortloom.exporter import describe, tokenizer, variants
    from ortloom.exporter.graph_build import build_contract
    from ortloom.exporter.structure import require_structure

    progress.phase("tokenizer")
    with quiet_libraries():
        checkpoint.tokenizer_files(root)
    tokenizer.normalise_template(root)
    tokenizer.check_tokenizer(root, int(config["vocab_size"]), checkpoint.warnings)
    tokenizer.check_template(root)
    kept = {k: v for k, v in config.items() if k not in PRIVATE_KEYS}
    _write_json(root / "config.json", kept)

    built = build_contract(config, options.storage, checkpoint, progress)
    progress.phase("weights", built.layout.payload(), "B")
    names = ("contract", *options.targets)
    weights = built.layout.write(root, names, progress.advance)
    graphs = []
    for variant in names:
        for form in variants.KV_CACHES.get(variant, (None,)):
            model = variants.derive(built.model, variant, form)
            require_structure(model, len(built.calls))
            name = variant if form is None else variant + form.suffix
            path, ops = variants.write(model, root, name)
            described = describe.describe_graph(
                model, variant, path, root, len(built.calls), ops, form
            )
            graphs.append(described)

    manifest = Manifest(
        producer=producer(),
        source=source,
        architecture=describe.describe_architecture(
            config, class_name, built.calls, built.parameter_count(), bool(built.ties)
        ),
        quantization=_quantization(options, checkpoint, built),
        dtypes=Dtypes(weights=_weight_type(options, built)),
        targets=options.targets,
        graphs=tuple(graphs),
        kv_groups=describe.describe_kv_groups(built.calls),
        weights=(weights,),
        tokenizer=tokenizer.describe_tokenizer(root),
    ).sealed()
    (root / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    report = {
        "checked": False,
        "balanced_norms": built.balanced,
        "requantised": manifest.quantization.requantised,
        "ops": {Path(g.file.path).stem: dict(g.ops) for g in graphs},
        "warnings": list(dict.fromkeys(checkpoint.warnings)),
    }
    if checkpoint.quantised and options.quant is None:
        progress.note("the source is quantised: --quant keep stores its own, smaller blocks")
    if manifest.quantization.requantised:
        report["note"] = "re-quantised: the source was itself quantised"
        progress.note("re-quantised: the source was itself quantised and is rounded a second time")
    _write_json(root / "report.json", report)


def _weight_type(options: ExportOptions, built: "ContractGraph") -> str:
    """The type of matrices that are not codes; what was asked for where kept ones differ."""
    found = {DTYPES[form.format] for form in built.forms.values() if not form.quantised}
    return found.pop() if len(found) == 1 else WEIGHT_TYPES[options.dtype]


def _quantization(
    options: ExportOptions, checkpoint: Checkpoint, built: "ContractGraph"
) -> Quantization:
    forms = [form for form in built.forms.values() if form.quantised]
    native = options.quant == "keep"
    if not forms:
        return Quantization(method="source" if native else "none")
    sizes = {form.block_size for form in forms}
    head = built.forms.get(HEAD) or built.forms.get(EMBEDDING)
    return Quantization(
        method="source" if native else "rtn",
        bits=min(_code_bits(form) for form in forms),
        lm_head_bits=_code_bits(head) if head is not None and head.quantised else None,
        block_size=sizes.pop() if len(sizes) == 1 else None,
        symmetric=not any(form.has_mins for form in forms),
        activation_bits=8,
        requantised=checkpoint.quantised and not native,
        excluded=built.excluded,
    )


def _code_bits(form: PackedForm) -> Literal[4, 8]:
    return 4 if form.element_bits == 4 else 8


def _write_json(path: Path, tree: dict[str, Any]) -> None:
    text = json.dumps(tree, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _check(root: Path, options: ExportOptions, progress: Progress) -> None:
    from ortloom.exporter.verify.check import check_bundle

    report_path = root / "report.json"
    report = json.loads(report_path.read_text(encoding="utf-8"))
    report.update(check_bundle(root, options, progress), checked=True)
    _write_json(report_path, report)
