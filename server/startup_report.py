"""What the supervisor says once the server can be used, in the lines that clients of vLLM grep."""

import json
import logging
import time

from ortloom import logs
from ortloom.config import Config
from ortloom.server.control import FrontReady

logger = logging.getLogger("ortloom.supervisor")

NO_PROVIDER = "none"
"""Provider name of a server without an engine."""


def announce(config: Config, ready: FrontReady, url: str | None, started: float) -> None:
    """Log that the server is up, and print a command that uses it.

    Args:
        config: the tree.
        ready: what the first front knows.
        url: of the server; None = a unix socket.
        started: unix seconds of the start.
    """
    for notice in ready.engine.notices:
        logger.warning("%s", notice)
    for line in report_lines(ready):
        logger.info("%s", line)
    seconds = time.time() - started
    logger.info("Serving on %s, ready after %.2f s", url or config.front.uds, seconds)
    logger.info("Application startup complete.")
    if logger.isEnabledFor(logging.INFO):
        logs.say(f"\n{curl_line(config, url)}\n")


def report_lines(ready: FrontReady) -> list[str]:
    """Sampling defaults, KV cache, provider with every losing one, routes."""
    engine = ready.engine
    tokens = engine.num_blocks * engine.block_size
    mib = engine.kv_cache_bytes / 2**20
    provider = engine.provider
    detail = f" ({provider.detail})" if provider.detail else ""
    if provider.name == NO_PROVIDER:
        return [ready.defaults, f"No engine: {provider.detail}", *_routes(ready)]
    lines = [
        ready.defaults,
        f"KV cache size: {tokens:,} tokens ({engine.num_blocks:,} blocks of "
        f"{engine.block_size}, {mib:,.1f} MiB, {engine.cache_config.get('cache_dtype', 'auto')})",
        f"Maximum concurrency for {engine.max_model_len:,} tokens per request: "
        f"{tokens / engine.max_model_len:.2f}x",
        f"Provider: {provider.name}, graph {provider.graph_variant}{detail}",
    ]
    lines += [f"Provider {name} not used: {why}" for name, why in provider.losing.items()]
    return lines + _routes(ready)


def _routes(ready: FrontReady) -> list[str]:
    return ["Available routes are:", *(f"Route: {route}" for route in ready.routes)]


def curl_line(config: Config, url: str | None) -> str:
    """A command that works as it stands (with a key set, the key is named, not shown)."""
    names = config.model.served_model_names or (config.model.bundle,)
    body: dict[str, object] = {
        "model": names[0],
        "prompt": "The capital of France is",
        "max_tokens": 16,
    }
    text = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    key = " -H 'Authorization: Bearer '\"$VLLM_API_KEY\"" if config.front.api_keys else ""
    root = config.front.root_path.rstrip("/")
    scheme = "http" if config.front.tls is None else "https"
    socket = f"--unix-socket '{config.front.uds}' {scheme}://localhost"
    where = f"{url or socket}{root}"
    path = "/v1/completions"
    if config.front.routes.render_only:
        path += "/render"
    elif config.front.routes.tokens_only:
        path = "/inference/v1/generate"
        body = {"token_ids": [1], "sampling_params": {"max_tokens": 16}}
        text = json.dumps(body)
    return f"curl {where}{path} -H 'Content-Type: application/json'{key} -d '{text}'"
