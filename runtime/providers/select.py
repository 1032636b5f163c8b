"""Choosing the execution provider, with a reason for every one that loses."""

from collections.abc import Sequence
from dataclasses import dataclass

from ortloom.config import ProviderConfig
from ortloom.errors import ConfigError, KernelUnavailable, ProviderUnavailable
from ortloom.models.manifest import Manifest
from ortloom.runtime.messages import ProviderReport
from ortloom.runtime.providers.base import ExecutionProvider
from ortloom.runtime.providers.cpu import CpuProvider
from ortloom.runtime.providers.cuda import CudaProvider
from ortloom.runtime.providers.gpu_probe import joined
from ortloom.runtime.providers.kv_cache import refusal
from ortloom.runtime.providers.plain import PlainProvider
from ortloom.runtime.providers.tensorrt import TensorrtProvider
from ortloom.runtime.providers.tensorrt_ep import TensorrtEpProvider


def all_providers() -> tuple[ExecutionProvider, ...]:
    """Every provider, best first."""
    return (
        TensorrtProvider(),
        TensorrtEpProvider(),
        CudaProvider(),
        CpuProvider(),
        PlainProvider(),
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen provider and the reasons of the others."""

    provider: ExecutionProvider
    report: ProviderReport


def survey() -> list[str]:
    """One line a provider about this machine alone, no bundle looked at."""
    lines: list[str] = []
    for provider in all_providers():
        try:
            reason = provider.available(None)
            state = f"can run ({provider.detail()})" if reason is None else reason
        except KernelUnavailable as error:
            state = str(error)
        lines.append(f"{provider.name}: {state}")
    return lines


def select(
    config: ProviderConfig,
    manifest: Manifest,
    providers: Sequence[ExecutionProvider] | None = None,
    kv_cache_dtype: str = "auto",
) -> Selection:
    """Pick the provider for a bundle on this machine.

    `auto` takes the first that can run with the KV cache asked for; any other choice runs or fails,
    it never falls back.

    Raises:
        ConfigError: `require` is no provider's name.
        ProviderUnavailable: the choice cannot run, or auto did not come to `require`; the text
            names the reason and the command that mends it.
    """
    candidates = all_providers() if providers is None else tuple(providers)
    names = [provider.name for provider in candidates]
    if config.require is not None and config.require not in names:
        raise ConfigError(
            f"--require-provider '{config.require}' is unknown (choose from {', '.join(names)})"
        )
    reasons = {
        provider.name: joined(provider.available(manifest), refusal(provider, kv_cache_dtype))
        for provider in candidates
    }
    chosen = _choose(config, candidates, reasons)
    if config.require is not None and chosen.name != config.require:
        why = reasons[config.require] or f"'{config.provider}' comes to {chosen.name} before it"
        raise ProviderUnavailable(
            f"--require-provider {config.require}: {chosen.name} was selected instead: {why}"
        )
    losing = {
        provider.name: reasons[provider.name] or _beaten(config, chosen.name)
        for provider in candidates
        if provider is not chosen
    }
    report = ProviderReport(chosen.name, chosen.graph_variant, chosen.detail(), losing)
    return Selection(chosen, report)


def _choose(
    config: ProviderConfig,
    candidates: Sequence[ExecutionProvider],
    reasons: dict[str, str | None],
) -> ExecutionProvider:
    if config.provider == "auto":
        for provider in candidates:
            if reasons[provider.name] is None:
                return provider
        lines = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise ProviderUnavailable(f"no provider can run this bundle here ({lines})")
    for provider in candidates:
        if provider.name == config.provider:
            reason = reasons[provider.name]
            if reason is not None:
                raise ProviderUnavailable(f"--provider {provider.name} cannot run here: {reason}")
            return provider
    names = ", ".join(provider.name for provider in candidates)
    raise ConfigError(f"--provider '{config.provider}' is unknown (choose from auto, {names})")


def _beaten(config: ProviderConfig, winner: str) -> str:
    if config.provider == "auto":
        return f"can run, but {winner} comes first"
    return f"can run, but --provider {config.provider} was given"
