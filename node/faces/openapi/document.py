"""OpenAPI document of this node (3.1): the registered routes, each with its description from the tables beside this file.

A test fails if no table describes a route of the API.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from node import __version__
from node.auth import errors as auth
from node.faces import errors
from node.faces.errors import INNER, TABLE
from node.faces.openai import LLAMA_STACK
from node.faces.openapi import models, operators, projects
from node.faces.openapi.description import (
    TEXT,
    WHOLE,
    Allowed,
    OperationDoc,
    Schema,
    fields,
    with_note,
)
from registry import errors as registry
from router import errors as router
from router.peers.headers import CALLER_ANSWER_HEADERS, CALLER_REQUEST_HEADERS

JSON = "application/json"
FORM = "multipart/form-data"

is_described = re.compile(
    r"/(?:v1|v2|api/v0|api/v1)/.*|/(?:healthz|readyz|metrics|openapi\.json|docs)"
).fullmatch
"""Matches the paths in the document; those of a face that imitates another system are in that system's documentation."""

TABLES: Mapping[str, Mapping[str, OperationDoc]] = MappingProxyType(
    {
        "Models": models.TABLE,
        "Services": models.SERVICES,
        "Operators": operators.TABLE,
        "Projects": projects.TABLE,
    }
)
"""The content of the document: tag → method and path → description."""

ALIASES = "For llama-stack-client"
"""Tag of endpoints that are served again under another prefix."""

_TAGS: Mapping[str, str] = {
    "Models": "Requests to models, in the formats of OpenAI, Anthropic and Llama Stack.",
    "Services": "Requests to services other than models, in OpenAI's format.",
    "Operators": "State of a node and its mesh, and changes to them.",
    "Projects": "The interface of model projects and their clients (`/api/v0`).",
    ALIASES: f"The endpoints of `/v1`, under the prefix `{LLAMA_STACK}`.",
}

_ABOUT = """Every node serves every model of its mesh, and all operations described here.

Requests without a key are accepted from users of the node's own machine, unless the operator decided otherwise. Operations
for operators need a process of the node's user or root on its machine, an operator's key, or the control token as a bearer
token. Every response has the request's id in `x-request-id`. `GET` operations also accept `HEAD`."""

_ERROR: Schema = fields(
    code=with_note(WHOLE, "the code of `/api/v0`"),
    message=TEXT,
    error=fields(
        {"param": with_note({}, "the invalid parameter, if it is known")},
        message=TEXT,
        type=with_note({}, "the class of the error, as in OpenAI's API"),
        code=with_note({}, "the reason, as one word"),
    ),
)
_ERROR_REF: Schema = {"$ref": "#/components/schemas/Error"}

_SECURITY: Mapping[str, Schema] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key, a grant, or the control token.",
    },
    "x-api-key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "A key or a grant, as Anthropic's clients send it.",
    },
}
# One of them, or none: the caller's location may be enough.
_SHOWN: Sequence[Schema] = [{}, {"bearer": []}, {"x-api-key": []}]

_ANY = (
    errors.BadHead,
    errors.HeadTooLarge,
    errors.UrlTooLong,
    errors.HeadTooSlow,
    errors.TooManyConnections,
    errors.UnsupportedExpectation,
    errors.NotAllowed,
)
_KEYS = (*auth.OF_KEYS, auth.RoleNotAllowed)
_BODY = (
    errors.Unparseable,
    errors.WrongParameter,
    errors.BodyTooLarge,
    errors.BodyTooSlow,
    errors.NoRoomForBody,
    errors.UnsupportedMediaType,
)
_RUNS = (
    errors.WrongParameter,
    errors.UnknownNode,
    errors.UnknownPath,
    auth.ModelNotAllowed,
    *(kind for kind in TABLE if issubclass(kind, auth.Limited | router.RouterError)),
)
_CHANGES = (
    # The body is optional, so only its content type is checked.
    errors.UnsupportedMediaType,
    registry.StoreUnavailable,
    registry.LimitReached,
)

_PARTS: Mapping[str, str] = {
    "tail": "a name or an id",
    "name": "the name of a key",
    "peer": "the id of another node",
}


def document(app: web.Application) -> dict[str, Any]:
    """Return the document of an application; raise `KeyError` for a route of the API that no table describes."""
    builder = _DocumentBuilder()
    paths: dict[str, dict[str, Any]] = {}
    for method, path, tag, described in operations(app):
        paths.setdefault(path, {})[method.lower()] = builder.operation(method, path, tag, described)
    return {
        "openapi": "3.1.0",
        "info": {"title": "modelvine", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag, "description": description} for tag, description in _TAGS.items()],
        "security": _SHOWN,
        "paths": paths,
        "components": builder.components(),
    }


def operations(app: web.Application) -> Iterator[tuple[str, str, str, OperationDoc]]:
    """Yield method, path, tag and description of each operation, by path; raise `KeyError` for one that no table describes."""
    described_operations = {
        (route.resource.canonical, route.method)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    for path, method in sorted(described_operations):
        if is_described(path):
            yield from _operations(method, path)


def _operations(method: str, path: str) -> Iterator[tuple[str, str, str, OperationDoc]]:
    also = path.startswith(f"{LLAMA_STACK}/")
    prefix = LLAMA_STACK.removesuffix("/v1") if also else ""
    own_path = path.removeprefix(prefix)
    for path_shown in models.paths_under(method, own_path) or [own_path]:
        key = f"{method} {path_shown}"
        tag = next((tag for tag, table in TABLES.items() if key in table), "")
        yield method, prefix + path_shown, ALIASES if also else tag, TABLES[tag][key]


class _DocumentBuilder:
    """Builder of the document; it collects the schemas and answers that several operations share."""

    def __init__(self) -> None:
        self._schemas: dict[str, Any] = {"Error": _ERROR}
        self._responses: dict[str, Any] = {}
        self._names: dict[tuple[object, ...], str] = {}

    def components(self) -> dict[str, Any]:
        """Return the components that operations refer to."""
        return {
            "schemas": self._schemas,
            "responses": self._responses,
            "parameters": {
                name: {"name": name, "in": "header", "schema": TEXT, "description": description}
                for name, description in CALLER_REQUEST_HEADERS.items()
            },
            "headers": {
                name: {"schema": TEXT, "description": description}
                for name, description in CALLER_ANSWER_HEADERS.items()
            },
            "securitySchemes": _SECURITY,
        }

    def operation(
        self, method: str, path: str, tag: str, described: OperationDoc
    ) -> dict[str, Any]:
        """Return one operation."""
        operation_fields: dict[str, Any] = {
            "operationId": f"{method.lower()}{re.sub(r'[^a-z0-9]+', '_', path.lower())}".strip("_"),
            "tags": [tag],
            "summary": described.summary,
            "description": f"{described.more} For {described.may}.".strip(),
        }
        if described.may is Allowed.EVERYBODY:
            operation_fields["security"] = []
        if parameters := [*_parameters(path, described)]:
            operation_fields["parameters"] = parameters
        if body := self._body(described):
            operation_fields["requestBody"] = body
        return {
            **operation_fields,
            "responses": {**_success(described), **self._failures(described)},
        }

    def _body(self, described: OperationDoc) -> dict[str, Any]:
        if described.request is None:
            return {}
        content = {JSON: {"schema": self._schema(described.request)}}
        if described.form is not None:
            content[FORM] = {"schema": described.form}
        return {"content": content, "required": not described.optional_body}

    def _schema(self, shape: Schema | type[BaseModel]) -> Schema:
        """Return a schema; those of pydantic models are put into the components, with the module's name as a prefix."""
        if isinstance(shape, Mapping):
            return shape
        head = f"{shape.__module__.rpartition('.')[2]}."
        reference = f"#/components/schemas/{head}"
        schema = shape.model_json_schema(ref_template=reference + "{model}")
        for name, inner in schema.pop("$defs", {}).items():
            self._schemas[head + name] = inner
        self._schemas[head + shape.__name__] = schema
        return {"$ref": reference + shape.__name__}

    def _failures(self, described: OperationDoc) -> dict[str, Any]:
        by_status: dict[int, list[type[Exception]]] = {}
        for kind in sorted(_errors(described), key=lambda kind: TABLE[kind].reason):
            by_status.setdefault(TABLE[kind].status, []).append(kind)
        refs = {
            status: self._response(status, tuple(kinds), described.refusal)
            for status, kinds in sorted(by_status.items())
        }
        return {
            str(status): {"$ref": f"#/components/responses/{name}"} for status, name in refs.items()
        }

    def _response(
        self, status: int, kinds: tuple[type[Exception], ...], shape: Schema | None
    ) -> str:
        reasons = tuple(dict.fromkeys(TABLE[kind].reason for kind in kinds))
        key = (status, reasons, shape is None)
        if key not in self._names:
            name = self._names[key] = f"{status}-{len(self._names) + 1}"
            # An error before the request reaches its face has the common form.
            schema = _ERROR_REF if shape is None else {"anyOf": [shape, _ERROR_REF]}
            self._responses[name] = {
                "description": ", ".join(f"`{reason}`" for reason in reasons),
                "content": {JSON: {"schema": schema}},
            }
        return self._names[key]


def _parameters(path: str, described: OperationDoc) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", path):
        description = _PARTS.get(name, "an id")
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": TEXT,
            "description": description,
        }
    for name, schema in described.query.items():
        needed = {"required": True} if name in described.needs else {}
        yield {"name": name, "in": "query", "schema": schema, **needed}
    if described.runs:
        yield from ({"$ref": f"#/components/parameters/{name}"} for name in CALLER_REQUEST_HEADERS)


def _success(described: OperationDoc) -> dict[str, Any]:
    content = {JSON: described.answer} if described.answer is not None else {}
    content |= described.content
    if not content:
        return {}
    response: dict[str, Any] = {
        "description": "Success.",
        "content": {kind: {"schema": schema} for kind, schema in content.items()},
    }
    if described.runs:
        response["headers"] = {
            name: {"$ref": f"#/components/headers/{name}"} for name in CALLER_ANSWER_HEADERS
        }
    return {"200": response}


def _errors(described: OperationDoc) -> Iterable[type[Exception]]:
    error_types: set[type[Exception]] = {*_ANY, *described.errors}
    if described.may is not Allowed.EVERYBODY:
        error_types.update(_KEYS)
    if described.may is Allowed.CHANGE:
        error_types.update(_CHANGES)
    if described.request is not None:
        error_types.update(_BODY)
    if described.query:
        error_types.add(errors.WrongParameter)
    if described.runs:
        error_types.update(_RUNS)
    return error_types - INNER
