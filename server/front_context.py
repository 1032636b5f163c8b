"""The long-lived objects of a front, made out of the configuration and the bundle."""

from concurrent.futures import ThreadPoolExecutor
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
    tokenizer_folder = bundle if model.tokenizer is None else Path(model.tokenizer)
    tokenizer_config = None if model.tokenizer_config is None else Path(model.tokenizer_config)
    if not model.skip_tokenizer_init:
        tokenizer = Tokenizer.load(tokenizer_folder, tokenizer_config)
    template = None
    if tokenizer is not None:
        template = ChatTemplate.load(
            tokenizer_folder,
            tokenizer,
            config.front.chat_template,
            own_config=tokenizer_config is None,
        )
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
        long_texts=ThreadPoolExecutor(
            config.front.renderer_workers, thread_name_prefix="long-text"
        ),
        tracer=None if config.traces is None else Tracer(config.traces, names[0]),
    )
