"""From the model that was named to a bundle folder: local, fetched from a hub, or exported now."""

import json
from pathlib import Path

import msgspec

from ortloom.commands.configuration import ServePlan
from ortloom.commands.model_options import SourcePlan, export_options, export_paths
from ortloom.config import Config
from ortloom.environment import cache_root
from ortloom.errors import ConfigError, ExportError, ManifestError
from ortloom.hub import SMALL_FILES, TOKENIZER_FILES, HubAccess, HubModel, fetch, is_hub_id
from ortloom.logs import say


def with_bundle(plan: ServePlan) -> Config:
    """The configuration with `model.bundle` a bundle folder and `model.tokenizer` a local one.

    Raises:
        ManifestError: the model cannot be found, fetched or exported.
        ConfigError: a flag asks for something this model cannot have.
    """
    model = Path(plan.config.model.bundle).expanduser()
    fetched = None
    if not model.exists() and is_hub_id(plan.config.model.bundle):
        fetched = _fetched(plan)
        model = fetched.folder
    _tell_of_revisions(plan)
    if (model / "manifest.json").is_file():
        _check_bundle_fits(model, plan)
        bundle = model
    else:
        bundle = _exported(model, plan, fetched)
    return msgspec.structs.replace(
        plan.config,
        model=msgspec.structs.replace(
            plan.config.model, bundle=str(bundle), tokenizer=_tokenizer(plan)
        ),
    )


def _access(source: SourcePlan, bundle_cache: Path | None) -> HubAccess:
    return HubAccess(
        token=source.token,
        cache=source.download_dir,
        ignore=source.ignore_patterns,
        bundles=(bundle_cache or cache_root()) / "hub",
    )


def _fetched(plan: ServePlan) -> HubModel:
    source = plan.source
    without_weights = source.load_format == "dummy" or source.weights is not None
    return fetch(
        plan.config.model.bundle,
        source.revision,
        _access(source, plan.bundle_cache),
        say,
        SMALL_FILES if without_weights else None,
    )


def _tell_of_revisions(plan: ServePlan) -> None:
    """Print a line for a revision of what is on this machine, where there is but one."""
    source = plan.source
    tokenizer = source.tokenizer or plan.config.model.bundle
    for flag, revision, name in (
        ("--revision", source.revision, plan.config.model.bundle),
        ("--tokenizer-revision", source.tokenizer_revision, tokenizer),
    ):
        if revision is not None and Path(name).expanduser().exists():
            say(f"warning: {flag} {revision}: '{name}' is on this machine and taken as it is")


def _is_local(name: str) -> bool:
    return Path(name).expanduser().exists() or not is_hub_id(name)


def _tokenizer(plan: ServePlan) -> str | None:
    """The folder of --tokenizer, or of the model's own in another revision; None = the bundle's
    own."""
    source = plan.source
    name = source.tokenizer
    if name is None and source.tokenizer_revision is not None:
        model = plan.config.model.bundle
        name = None if _is_local(model) else model
    if name is None:
        return None
    folder = Path(name).expanduser()
    if not _is_local(name):
        revision = source.tokenizer_revision
        access = _access(source, plan.bundle_cache)
        folder = fetch(name, revision, access, say, TOKENIZER_FILES).folder
    if not (folder / "tokenizer.json").is_file():
        raise ManifestError(f"argument --tokenizer: '{name}' has no tokenizer.json")
    return str(folder)


def _exported(model: Path, plan: ServePlan, fetched: HubModel | None) -> Path:
    """The bundle of a checkpoint, out of the cache or exported now."""
    from ortloom.checkpoint_cache import CheckpointCache
    from ortloom.models.source_key import is_checkpoint

    source = _with_long_context(model, plan.source)
    if not model.exists():
        raise ManifestError(
            f"'{model}' does not exist; a model is a bundle folder, a checkpoint folder or a "
            ".gguf file on this machine, or the owner/name of a repository in the hub"
        )
    if not is_checkpoint(model) and not (model.is_dir() and source.config_path is not None):
        raise ManifestError(
            f"'{model}' is neither a bundle (no manifest.json) nor a checkpoint (a folder with "
            "config.json, or a .gguf file)"
        )
    _check_format(model, source.load_format)
    options = {"dtype": plan.dtype or "fp32", **export_options(source)}
    if plan.quant is not None:
        options["quant"] = plan.quant
    if fetched is not None:
        options |= {"hub-id": fetched.hub_id, "revision": fetched.commit}
    cache = CheckpointCache(plan.bundle_cache or cache_root())
    paths = export_paths(source, lambda name: _weights(name, plan))
    try:
        return cache.bundle(model, options, say, paths=paths, bars=source.bars)
    except ExportError as error:
        # the export's own exit codes are its own; a server that cannot start exits 1
        raise ManifestError(str(error)) from None


def _with_long_context(model: Path, source: SourcePlan) -> SourcePlan:
    """The plan under which the model is exported for a context longer than its own; rotary tables
    are part of a graph, so a finished one has no such choice."""
    if source.long_context is None or source.config_path is not None:
        return source
    try:
        own = json.loads((model / "config.json").read_bytes())["max_position_embeddings"]
    except (OSError, ValueError, KeyError, TypeError):
        return source  # the export says what is wrong with it
    if not isinstance(own, int) or source.long_context <= own:
        return source
    say(
        f"warning: the context of {source.long_context} tokens is longer than the model's own "
        f"({own}); what it says beyond it may be wrong (VLLM_ALLOW_LONG_MAX_MODEL_LEN)"
    )
    overrides = {**source.overrides, "max_position_embeddings": source.long_context}
    return msgspec.structs.replace(source, overrides=overrides)


def _weights(name: str, plan: ServePlan) -> Path:
    folder = Path(name).expanduser()
    if not folder.exists() and is_hub_id(name):
        access = _access(plan.source, plan.bundle_cache)
        return fetch(name, plan.source.revision, access, say, ("*.safetensors*",)).folder
    if not folder.is_dir():
        raise ConfigError(f"argument --model-weights: '{name}' is no folder")
    return folder


def _check_format(model: Path, load_format: str) -> None:
    """--load-format names what the files must be; auto, hf and dummy take what is there."""
    gguf = model.is_file() or not (model / "config.json").is_file()
    if load_format == "gguf" and not gguf:
        raise ConfigError(f"argument --load-format: '{model}' is no GGUF model")
    if load_format == "safetensors" and gguf:
        raise ConfigError(f"argument --load-format: '{model}' is no safetensors checkpoint")


def _check_bundle_fits(bundle: Path, plan: ServePlan) -> None:
    """Export options cannot change a finished bundle: refuse any it does not already have."""
    changing = plan.source.changes_checkpoint
    if changing is not None:
        raise ConfigError(
            f"argument {changing}: '{bundle}' is a finished bundle, whose graph and weights are "
            "fixed; name the checkpoint, which is then exported with it"
        )
    if plan.source.load_format in ("safetensors", "gguf"):
        say(
            f"warning: --load-format {plan.source.load_format}: '{bundle}' is a finished bundle, "
            "whose weights are mapped as they are"
        )
    if plan.quant is None and plan.dtype is None:
        return
    from ortloom.models.weight_forms import WEIGHT_TYPES, quant_name

    try:
        manifest = json.loads((bundle / "manifest.json").read_bytes())
        quant = quant_name(manifest["quantization"]["method"], manifest["quantization"]["bits"])
        dtype = manifest["dtypes"]["weights"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # the engine reads the manifest with all its checks and says what is wrong
    if plan.quant is not None and plan.quant != quant:
        have = quant or "unquantised"
        raise ConfigError(
            f"argument --quant: the bundle '{bundle}' is {have} and cannot be changed; "
            f"export it again with --quant {plan.quant}"
        )
    if plan.dtype is not None and WEIGHT_TYPES[plan.dtype] != dtype:
        raise ConfigError(f"argument --dtype: the bundle '{bundle}' is {dtype}")
