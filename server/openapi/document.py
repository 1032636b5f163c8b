"""The document: one operation for each registered route and method, bodies out of their types."""

import re
from typing import Any

import msgspec
from sanic import Sanic

from ortloom import __version__
from ortloom.server.anthropic.error_body import words_errors_of
from ortloom.server.context import FrontContext
from ortloom.server.error_handler import ErrorBody
from ortloom.server.openapi.bodies import BODIES, EMPTY, OTHER_CONTENT, QUERIES, STREAMS
from ortloom.server.openapi.details import EITHER, FURTHER, ID_FORMS, MESSAGES_ERROR

_PARAMETER = re.compile(r"<([^:>]+)(?::[^>]+)?>")
_JSON = "application/json"
_REFERENCE = "#/components/schemas/{name}"


def build(app: Sanic, front: FrontContext) -> dict[str, Any]:
    """The document of an app.

    Args:
        app: its routes are described.
        front: tells whether a key is needed.
    """
    paths: dict[str, dict[str, Any]] = {}
    schemas = _Schemas()
    for route in app.router.routes:
        path = "/" + _PARAMETER.sub(r"{\1}", route.path)
        operations = paths.setdefault(path, {})
        for method in sorted(route.methods - {"HEAD", "OPTIONS"}):
            operations[method.lower()] = _operation(path, method, route, schemas)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "ortloom", "version": __version__},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": schemas.components},
    }
    if front.config.front.api_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    if front.config.front.root_path:
        document["servers"] = [{"url": front.config.front.root_path}]
    return document


class _Schemas:
    """Schemas of all described types, made once."""

    def __init__(self) -> None:
        types: list[type] = [ErrorBody]
        for some in BODIES.values():
            types += [kind for kind in some if kind not in types]
        made, self.components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
        self.components[MESSAGES_ERROR["title"]] = MESSAGES_ERROR
        self._references = dict(zip(types, made, strict=True))

    def of(self, kind: type) -> dict[str, Any]:
        """A reference to a type's schema."""
        return self._references[kind]

    def error(self, path: str) -> dict[str, Any]:
        """A reference to the schema of a path's errors."""
        if words_errors_of(path):
            return {"$ref": _REFERENCE.format(name=MESSAGES_ERROR["title"])}
        return self.of(ErrorBody)


def _operation(path: str, method: str, route: Any, schemas: _Schemas) -> dict[str, Any]:
    text = (route.handler.__doc__ or "").strip()
    operation: dict[str, Any] = {
        "operationId": f"{route.name.partition('.')[2].replace('.', '_')}_{method.lower()}",
        "summary": text.partition("\n")[0],
        "responses": {
            "200": _success(path),
            "4XX": _failure("The request cannot be answered as it is.", path, schemas),
            "5XX": _failure("The server cannot answer.", path, schemas),
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name)}
        for name in _PARAMETER.findall(f"/{route.path}".split("?")[0])
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in QUERIES.get(path, {}).items()
    ]
    if parameters:
        operation["parameters"] = parameters
    if path in BODIES or path in EITHER:
        operation["requestBody"] = {
            "required": path != "/abort_requests",
            "content": {_JSON: {"schema": _body(path, schemas)}},
        }
    return operation


def _body(path: str, schemas: _Schemas) -> dict[str, Any]:
    if path in EITHER:
        return {"anyOf": [_body(other, schemas) for other in EITHER[path]]}
    parts = [schemas.of(kind) for kind in BODIES[path]]
    parts += [FURTHER[path]] if path in FURTHER else []
    return parts[0] if len(parts) == 1 else {"allOf": parts}


def _path_schema(name: str) -> dict[str, Any]:
    form = ID_FORMS.get(name)
    return {"type": "string"} if form is None else {"type": "string", "pattern": form}


def _success(path: str) -> dict[str, Any]:
    if path in EMPTY:
        return {"description": "Done."}
    content: dict[str, Any] = {OTHER_CONTENT.get(path.partition("{")[0].rstrip("/"), _JSON): {}}
    if path in STREAMS:
        content["text/event-stream"] = {}
    return {"description": "The answer.", "content": content}


def _failure(text: str, path: str, schemas: _Schemas) -> dict[str, Any]:
    return {"description": text, "content": {_JSON: {"schema": schemas.error(path)}}}
