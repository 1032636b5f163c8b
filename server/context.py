"""What every handler of one front needs: `context_of(request)` gives the front's `FrontContext`.

The objects are made once, before the front accepts its first request, and live as long as it does.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sanic import Request, Sanic

from ortloom.config import Config
from ortloom.models.manifest import Manifest
from ortloom.runtime.client import EngineClient
from ortloom.server.inflight import InFlight
from ortloom.server.metrics import FrontMetrics
from ortloom.server.metrics_hub import LocalMetricsHub, MetricsHub
from ortloom.server.openai.responses.owners import Owners
from ortloom.server.openai.responses.peers import ResponsePeers
from ortloom.server.openai.responses.store import ResponseStore
from ortloom.server.output_parsers import OutputParsers

if TYPE_CHECKING:
    from ortloom.models.chat_template import ChatTemplate
    from ortloom.models.generation_config import GenerationDefaults
    from ortloom.models.tokenizer import Tokenizer
    from ortloom.server.tracing import Tracer

LONG_TEXTS = 1
"""Long texts that are tokenised at a time; tokens take some 40 times the memory of their text."""

OWN_TEMPLATES = 4
"""Child processes at a time that render templates of requests; each may use a gigabyte."""


@dataclass(slots=True, eq=False)
class FrontContext:
    """The long-lived objects of one front.

    `created` is the front's start in unix seconds (the `created` of model cards). `served_names`
    is never empty; the first one is echoed in replies. `long_texts` and `own_templates` are places
    for work that takes much memory: more of it waits. `peers` are the other fronts where stored
    responses are shared, else None.
    """

    config: Config
    manifest: Manifest
    client: EngineClient
    metrics: FrontMetrics
    tokenizer: "Tokenizer | None"
    chat_template: "ChatTemplate | None"
    defaults: "GenerationDefaults"
    created: int
    served_names: tuple[str, ...]
    parsers: OutputParsers = field(default_factory=OutputParsers)
    tracer: "Tracer | None" = None
    in_flight: InFlight = field(default_factory=InFlight)
    metrics_hub: MetricsHub = field(default_factory=LocalMetricsHub)
    responses: ResponseStore = field(default_factory=ResponseStore)
    peers: ResponsePeers | None = None
    long_texts: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(LONG_TEXTS, thread_name_prefix="long-text")
    )
    own_templates: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(OWN_TEMPLATES)
    )

    def share_responses(self, folder: Path, index: int) -> None:
        """Let other fronts reach the stored responses, and reach theirs.

        Args:
            folder: of the server, private to it.
            index: of this front.
        """
        owners = Owners(folder / "responses", index)
        self.responses = ResponseStore(owners=owners)
        self.peers = ResponsePeers(folder, index, self.responses, owners)

    @property
    def draining(self) -> bool:
        """True once the front takes no new requests."""
        return self.in_flight.draining


def context_of(request: Request) -> FrontContext:
    """The context of the front that serves this request."""
    return context_of_app(request.app)


def context_of_app(app: Sanic) -> FrontContext:
    """The context of an app made by `create_app`."""
    context: FrontContext = app.ctx.front
    return context
