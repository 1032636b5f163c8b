"""Fetching models from a Hugging Face hub into the hub's own cache.

The hub is the one of `HF_ENDPOINT`; `HF_HOME` and `HF_HUB_OFFLINE` are honoured by the library.
Loaded only where a model is named that is not on this machine.
"""

import os
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from ortloom.errors import ManifestError, MissingDependency

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""Config, tokenizer and template files."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.jinja",
)


class HubModel(msgspec.Struct, frozen=True):
    """A fetched repository: where it lies, its id, and the commit."""

    folder: Path
    hub_id: str
    commit: str


class HubAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the hub.

    `token` None = as the library finds one (HF_TOKEN, the cached login), True = the cached login.
    `cache` None = the library's own. `ignore` are globs of files that are not fetched. `bundles` is
    the folder for finished bundles, which are kept as plain files: a bundle takes no links.
    """

    token: str | bool | None = None
    cache: str | None = None
    ignore: tuple[str, ...] = ()
    bundles: Path


def is_hub_id(name: str) -> bool:
    """Whether a name has the form owner/model."""
    return _HUB_ID.fullmatch(name) is not None


def fetch(
    hub_id: str,
    revision: str | None,
    access: HubAccess,
    report: Callable[[str], None],
    patterns: Sequence[str] | None = None,
) -> HubModel:
    """Fetch what is not in the cache yet.

    Args:
        hub_id: owner/model.
        revision: branch, tag or commit; None = the main branch.
        access: how.
        report: takes a line of progress.
        patterns: globs of the files wanted; None = all of a bundle, else weights and small files.
            GGUF files are fetched only where a repository has one of them and no safetensors.

    Raises:
        MissingDependency: the hub's library is not installed.
        ManifestError: no such repository or revision, no permission, no connection.
    """
    if find_spec("huggingface_hub") is None:
        raise MissingDependency(
            f"'{hub_id}' is not on this machine, and fetching it needs huggingface_hub: "
            "pip install huggingface_hub"
        )
    shown = f"{hub_id}, revision {revision}" if revision else hub_id
    report(f"looking for {shown} in the hub and its cache")
    wanted = [*SMALL_FILES, "*.safetensors"] if patterns is None else list(patterns)
    folder = _snapshot(hub_id, revision, access, wanted)
    if patterns is None and (folder / "manifest.json").is_file():
        place = access.bundles / hub_id.replace("/", "--") / folder.name
        return HubModel(_snapshot(hub_id, folder.name, access, ["*"], place), hub_id, folder.name)
    if patterns is None and not any(folder.glob("*.safetensors")):
        folder = _snapshot(
            hub_id, revision, access, [*SMALL_FILES, _only_gguf(hub_id, folder.name, access)]
        )
    return HubModel(folder, hub_id, folder.name)


def _snapshot(
    hub_id: str,
    revision: str | None,
    access: HubAccess,
    patterns: Sequence[str],
    place: Path | None = None,
) -> Path:
    """The folder with the files wanted: `place`, or a snapshot in the hub's cache."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            hub_id,
            revision=revision,
            cache_dir=access.cache,
            local_dir=place,
            token=access.token,
            allow_patterns=list(patterns),
            ignore_patterns=_globs(access.ignore) or None,
            endpoint=os.environ.get("HF_ENDPOINT") or None,
        )
    except Exception as error:  # the library's errors share no base: HTTP, files, values
        raise ManifestError(_reason(hub_id, revision, error)) from error
    return Path(str(found))


def _globs(patterns: Sequence[str]) -> list[str]:
    """The patterns in the library's sense, where `**` is no more than `*`: `a/**/*` shall also
    fit files right below `a`."""
    return [form for p in patterns for form in dict.fromkeys((p, p.replace("/**/", "/")))]


def _only_gguf(hub_id: str, commit: str, access: HubAccess) -> str:
    """The one .gguf file of a repository without safetensors."""
    from huggingface_hub import HfApi

    try:
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=access.token)
        names = [n for n in api.list_repo_files(hub_id, revision=commit) if n.endswith(".gguf")]
    except Exception as error:
        raise ManifestError(_reason(hub_id, commit, error)) from error
    if len(names) != 1:
        what = f"{len(names)} .gguf files ({', '.join(sorted(names)[:4])} ...)" if names else "none"
        raise ManifestError(
            f"'{hub_id}' has no safetensors weights, and of .gguf files {what}: fetch the one you "
            "want and give its path"
        )
    return str(names[0])


_REASONS = {
    "RepositoryNotFoundError": "there is no such repository, or the token may not see it",
    "GatedRepoError": "access to it must be asked for on its page, and a token given (--hf-token)",
    "RevisionNotFoundError": "it has no such revision",
    "LocalEntryNotFoundError": "it is not in the cache, and the hub cannot be reached",
    "OfflineModeIsEnabled": "it is not in the cache, and HF_HUB_OFFLINE is set",
}


def _reason(hub_id: str, revision: str | None, error: Exception) -> str:
    what = f"'{hub_id}'" + (f", revision '{revision}'," if revision else "")
    text = _REASONS.get(type(error).__name__)
    if text is None:
        line = " ".join(str(error).split())[:300]
        text = f"{type(error).__name__}: {line}"
    return f"{what} is no path on this machine and cannot be fetched from the hub: {text}"
