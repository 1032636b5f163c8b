"""`ortloom export --check` on an output that exists: is it intact, and made from this source?

Needs neither torch nor ONNX, so a build step can check a cached bundle in a second.
"""

from collections.abc import Sequence
from pathlib import Path

from ortloom import __version__
from ortloom.errors import ArtefactStale, ManifestError
from ortloom.models.manifest import Manifest
from ortloom.models.source_key import file_sha256, source_files
from ortloom.models.weight_forms import WEIGHT_TYPES


def check_existing(
    source: Path,
    output: Path,
    quant: str | None,
    lm_head_quant: str | None,
    dtype: str,
    targets: Sequence[str],
) -> Manifest:
    """Check a bundle against its own manifest and against the source and options.

    Raises:
        ArtefactStale: a file differs, or source, options or the version of ortloom changed.
        SourceInvalid: the source cannot be read.
    """
    try:
        manifest = Manifest.load(output)
        manifest.verify_weights(output)
    except ManifestError as error:
        raise ArtefactStale(f"'{output}' is not intact: {error}") from None
    for reason in _differences(manifest, source, quant, lm_head_quant, dtype, targets):
        raise ArtefactStale(f"'{output}' is stale: {reason}")
    return manifest


def _differences(
    manifest: Manifest,
    source: Path,
    quant: str | None,
    lm_head_quant: str | None,
    dtype: str,
    targets: Sequence[str],
) -> list[str]:
    reasons: list[str] = []
    if manifest.producer.version != __version__:
        reasons.append(f"made by ortloom {manifest.producer.version}, this is {__version__}")
    have = manifest.quantization.asked
    if have != quant:
        reasons.append(f"quantisation is {have or 'none'}, asked for {quant or 'none'}")
    head = manifest.quantization.lm_head_bits
    if have == quant == "int4" and head is not None and f"int{head}" != (lm_head_quant or "int8"):
        reasons.append(f"the output layer is int{head}, asked for {lm_head_quant or 'int8'}")
    if quant != "keep" and manifest.dtypes.weights != WEIGHT_TYPES[dtype]:
        reasons.append(f"weights are {manifest.dtypes.weights}, asked for {WEIGHT_TYPES[dtype]}")
    missing = sorted(set(targets) - set(manifest.targets))
    if missing:
        reasons.append(f"it has no target {', '.join(missing)}")
    now = {path.name: path for path in source_files(source)}
    for entry in manifest.source.files:
        path = now.get(entry.path.rpartition("/")[2])
        if path is None:
            reasons.append(f"source file '{entry.path}' is gone")
        elif path.stat().st_size != entry.size or file_sha256(path) != entry.sha256:
            reasons.append(f"source file '{entry.path}' changed")
    return reasons
