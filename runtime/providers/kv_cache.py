"""Which KV caches a provider and a bundle can have."""

from ortloom.errors import ProviderUnavailable
from ortloom.models.manifest import Manifest
from ortloom.runtime.providers.base import ExecutionProvider


def refusal(provider: ExecutionProvider, asked: str) -> str | None:
    """Why a provider cannot keep a KV cache of the type asked for, and what to do; or None."""
    able = provider.kv_cache_dtypes
    if asked == "auto" or asked in able:
        return None
    return (
        f"provider {provider.name} has no KV cache of {asked} (it has: {', '.join(able)}; write "
        "--kv-cache-dtype auto, or choose another --provider)"
    )


def graph_kv_cache_dtype(provider: ExecutionProvider, manifest: Manifest, asked: str) -> str:
    """The `kv_cache_dtype` of the bundle's graph to run.

    Raises:
        ProviderUnavailable: the bundle has no such graph for the provider.
    """
    have = manifest.kv_cache_dtypes(provider.graph_variant)
    if asked == "auto":
        return next((able for able in provider.kv_cache_dtypes if able in have), have[0])
    if asked in have:
        return asked
    raise ProviderUnavailable(
        f"--kv-cache-dtype {asked}: the bundle has no {provider.graph_variant} graph with such a "
        f"KV cache (it has: {', '.join(have)}), since an older version exported it: run ortloom "
        "export again"
    )
