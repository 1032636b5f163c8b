"""The long-lived objects of a front, made out of the configuration and the bundle."""

from pathlib import Path

from ortloom.config import Config
from ortloom.models.chat_template import ChatTemplate
from ortloom.models.generation_config import GenerationDefaults
from ortloom.models.manifest import Manifest
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.client import EngineClient
from ortloom.server.context import FrontContext
from ortloom.server.metrics import FrontMetrics
from ortloom.server.output_parsers import load_parsers
from ortloom.server.tracing import Tracer


def build_context(config: Config, client: EngineClient, started: float) -> FrontContext:
    """Load what a front needs of the bundle.

    Args:
        config: the tree.
        client: reaches the engine; not started yet.
        started: unix seconds of the server's start.

    Raises:
        ManifestError: the bundle, its tokenizer or its template cannot be used.
        ConfigError: a generation, template or parser setting does not fit.
    """
    model = config.model
    bundle = Path(model.bundle)
    manifest = Manifest.load(bundle)
    tokenizer = None
    if not model.skip_tokenizer_init:
        tokenizer = Tokenizer.load(Path(model.tokenizer) if model.tokenizer else bundle)
    template = None
    if tokenizer is not None:
        template = ChatTemplate.load(bundle, tokenizer, config.front.chat_template)
    names = model.served_model_names or (model.bundle,)
    limit = model.max_model_len or manifest.architecture.max_position_embeddings
    if limit < 1:
        limit = manifest.architecture.max_position_embeddings
    return FrontContext(
        config=config,
        manifest=manifest,
        client=client,
        metrics=FrontMetrics(names[0], limit, config.log.log_stats),
        tokenizer=tokenizer,
        chat_template=template,
        defaults=GenerationDefaults.resolve(
            bundle,
            model.generation_config,
            model.override_generation_config,
            manifest.architecture.eos_token_ids,
        ),
        created=int(started),
        served_names=names,
        parsers=load_parsers(config.front, tokenizer, template),
        tracer=None if config.traces is None else Tracer(config.traces, names[0]),
    )
