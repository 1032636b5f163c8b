"""Servers over real sockets: the real supervisor, fronts and engine loop, a model that counts."""

import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

from serving import KEY, Server  # noqa: E402
from tiny_bundle import write_bundle  # noqa: E402


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Path:
    """A bundle with a byte-level tokenizer and a template, without graphs."""
    return write_bundle(tmp_path_factory.mktemp("bundle") / "tiny")


@pytest.fixture(scope="module")
def server(bundle):
    """One front, short limits, no key."""
    with Server(
        bundle,
        head_timeout=1.0,
        body_timeout=1.0,
        request_max_size=256 * 1024,
        sse_keep_alive_interval=0.3,
        enable_server_load_tracking=True,
        shutdown_timeout=0.0,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(bundle):
    """Two fronts, a key, slow steps, a root path."""
    with Server(
        bundle,
        num_fronts=2,
        api_keys=(KEY,),
        root_path="/proxy",
        enable_request_id_headers=True,
        allowed_origins=("http://app.example",),
        allow_credentials=True,
        max_head_size=200_000,
        max_header_count=400,
        access_log_skip=("/quiet",),
        env={"FAKE_STEP": "0.01"},
    ) as running:
        yield running
