"""GET /v1/models: one card per served name."""

import uuid

import msgspec
from sanic import HTTPResponse, Request

from ortloom.errors import ModelNotFound
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import FrontContext, context_of

blueprint = Blueprint("models", url_prefix="/v1/models")


class ModelPermission(msgspec.Struct, kw_only=True):
    """What vLLM tells every client about every model."""

    id: str
    object: str = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, kw_only=True):
    """One served name. `root` is the hub id the checkpoint came from, else the bundle's path."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "vllm"
    root: str
    parent: str | None = None
    max_model_len: int | None
    permission: list[ModelPermission]


class ModelList(msgspec.Struct, kw_only=True):
    """All cards."""

    object: str = "list"
    data: list[ModelCard]


def card(front: FrontContext, name: str) -> ModelCard:
    """The card of a served name."""
    source = front.manifest.source
    root = front.config.model.bundle
    if source.hub_id is not None:
        root = f"{source.hub_id}@{source.revision}" if source.revision else source.hub_id
    ready = front.client.ready
    limit = front.manifest.architecture.max_position_embeddings
    permission = ModelPermission(id=f"modelperm-{uuid.uuid4().hex}", created=front.created)
    return ModelCard(
        id=name,
        created=front.created,
        root=root,
        max_model_len=limit if ready is None else ready.max_model_len,
        permission=[permission],
    )


def _json(value: msgspec.Struct) -> HTTPResponse:
    return HTTPResponse(msgspec.json.encode(value), content_type="application/json")


async def list_models(request: Request) -> HTTPResponse:
    """All cards."""
    front = context_of(request)
    return _json(ModelList(data=[card(front, name) for name in front.served_names]))


async def one_model(request: Request, name: str) -> HTTPResponse:
    """One card."""
    front = context_of(request)
    if name not in front.served_names:
        raise ModelNotFound(f"The model `{name}` does not exist.", "model")
    return _json(card(front, name))


blueprint.add_route(list_models, "", methods=["GET"])
blueprint.add_route(one_model, "/<name:path>", methods=["GET"])
