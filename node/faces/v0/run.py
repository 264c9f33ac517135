"""`/api/v0/chat` and `/api/v0/image`: running a model of a project, at one named node or at any (`…/proxy`).

Fields for the choice of the node (`node_id`, `project`, `cid`) are removed from the body, and so are those with which these
clients prove who pays (`wallet`, `signature`, `hash`): they are not passed on.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from node.faces import Serving
from node.faces.encoder import AnswerForm
from node.faces.errors import Unparseable, WrongParameter
from node.faces.openai import background_of, checked_pin, content_type_of, passed_headers
from node.faces.request_ids import ID
from node.faces.request_reader import JSON, TAKEN_FOR_JSON, read_body, text_of
from node.faces.respond import answer
from node.faces.v0.registration import model_of, project_of
from router.errors import BadRequest, TooManyParts
from router.large_bodies import in_thread_if_large
from router.openai import body as bodies
from router.openai import multipart
from router.openai.media_type import media_of
from router.requests import Kind, Request

_OURS = frozenset({"node_id", "project", "cid"})
_PAYMENT = frozenset({"wallet", "signature", "hash"})
_IN_QUERY = ("node_id", "project", "model", "cid")


def asking_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes of this face."""
    return [
        web.post(f"/api/v0/{path}{suffix}", _asking(context, kind, one_node=not suffix))
        for path, kind in (
            ("chat/completion", Kind.CHAT),
            ("image/gen", Kind.IMAGE),
            ("image/edit", Kind.IMAGE_EDIT),
        )
        for suffix in ("", "/proxy")
    ]


def _asking(context: Serving, kind: Kind, *, one_node: bool) -> Handler:
    async def handle(http: web.Request) -> web.StreamResponse:
        async def ask() -> AnswerForm:
            return AnswerForm(await _read(context, http, kind, one_node=one_node))

        return await answer(context, http, kind, ask)

    return handle


async def _read(context: Serving, http: web.Request, kind: Kind, *, one_node: bool) -> Request:
    settings = context.settings.router
    rate = context.settings.web.min_body_rate
    body = await read_body(
        http, limit=settings.max_body_bytes, idle=settings.idle_timeout, rate=rate
    )
    return await in_thread_if_large(
        body, partial(_request_of, context, http, kind, body, one_node=one_node)
    )


def _request_of(
    context: Serving, http: web.Request, kind: Kind, body: bytes, *, one_node: bool
) -> Request:
    content_type = JSON if http.content_type in TAKEN_FOR_JSON else content_type_of(http, body)
    given: dict[str, Any] = {name: http.query[name] for name in _IN_QUERY if name in http.query}
    if media_of(content_type).kind == multipart.CONTENT_TYPE:
        given = dict(multipart.fields(body, multipart.parts(body, content_type))) | given
        model = model_of(given)
        body = multipart.without(
            _form_with_model(body, content_type, model), content_type, _OURS | _PAYMENT
        )
    else:
        fields = _fields(body)
        given = {k.lower(): v for k, v in fields.items() if k.lower() in _OURS | {"model"}} | given
        model = model_of(given)
        body = _for_one_model(body, fields, model)
    node = text_of(given, "node_id") if one_node else ""
    if one_node and not node:
        raise WrongParameter("node_id can not be empty", param="node_id")
    background = background_of(http)
    return Request(
        id=http[ID],
        kind=kind,
        model=model,
        body=body,
        content_type=content_type,
        stream=bodies.read(body, content_type).stream,
        pin=checked_pin(context, project_of(given), text_of(given, "cid") or None, node),
        background=background,
        passed=passed_headers(http, context.peer, background=background),
    )


def _fields(body: bytes) -> Mapping[str, Any]:
    """Read a JSON body; raise `Unparseable`, or `BadRequest` where it is too large."""
    try:
        return bodies.parse_json_object(body)
    except TooManyParts:
        raise
    except BadRequest as error:
        raise Unparseable("Parsing error") from error


def _for_one_model(body: bytes, fields: Mapping[str, Any], model: str) -> bytes:
    """Set `model`, and remove the fields that the worker must not see, in any letter case; all other bytes stay."""
    hidden = _OURS | _PAYMENT | {"model"}
    out = {name for name in fields if name.lower() in hidden}
    return bodies.with_field(bodies.without_fields(body, out), "model", model)


def _form_with_model(body: bytes, content_type: str, model: str) -> bytes:
    """Set the model in a form; if only the query named it, the field is added."""
    if any(part.name == "model" for part in multipart.parts(body, content_type)):
        return bodies.with_model(body, content_type, model)
    delimiter = body.partition(b"\r\n")[0]
    field = b'Content-Disposition: form-data; name="model"\r\n\r\n' + model.encode()
    return delimiter + b"\r\n" + field + b"\r\n" + body
