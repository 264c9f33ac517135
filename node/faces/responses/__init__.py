"""OpenAI's Responses API, for workers that support chats. Nothing is stored: each request contains the whole conversation."""

import time
from collections.abc import Mapping
from dataclasses import replace
from random import getrandbits

from aiohttp import web

from node.faces import Serving
from node.faces.encoder import AnswerForm
from node.faces.errors import Refusal, UnknownPath
from node.faces.openai import PREFIXES, request_of
from node.faces.request_reader import read_fields
from node.faces.respond import answer
from node.faces.responses.encoder import Head, ResponsesEncoder
from node.faces.responses.request_mapping import read
from router.openai.body import encode_json
from router.requests import Kind

ENDPOINTS: Mapping[str, str] = {
    "POST /v1/responses": "a chat",
    "GET /v1/responses/{id}": "404: nothing is stored",
    "DELETE /v1/responses/{id}": "404: nothing is stored",
    "POST /v1/responses/{id}/cancel": "404: nothing is stored; disconnect to cancel",
    "GET /v1/responses/{id}/input_items": "404: nothing is stored",
    "POST /v1/responses/input_tokens": "404: not offered",
    "POST /v1/responses/compact": "404: not offered",
}
"""What becomes of each endpoint of the Responses API."""

_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}
"""Parameters of a chat → the names that callers of the Responses API know."""


def asking_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for clients."""

    async def create(http: web.Request) -> web.StreamResponse:
        async def ask() -> AnswerForm:
            return _read(context, http, await read_fields(http, context.settings))

        return await answer(context, http, Kind.CHAT, ask, refuse=with_callers_names)

    paths = [f"{prefix}/responses" for prefix in PREFIXES]
    return [
        *(web.post(path, create) for path in paths),
        *(web.route(method, path + "/{tail:.+}", _stored) for path in paths for method in _METHODS),
    ]


_METHODS = ("GET", "POST", "DELETE")


async def _stored(http: web.Request) -> web.StreamResponse:
    raise UnknownPath(
        f"this node stores no responses, so there is no {http.match_info['tail'][:200]!r}"
    )


def _read(context: Serving, http: web.Request, fields: Mapping[str, object]) -> AnswerForm:
    mapped = read(fields)
    request = request_of(context, http, Kind.CHAT, encode_json(mapped.chat))
    own_id, now = f"{getrandbits(128):032x}", int(time.time())
    encoder = ResponsesEncoder(
        Head(own_id, now, request.model, mapped.repeats, mapped.called),
        streams=mapped.stream,
        max_event_bytes=context.settings.router.max_event_bytes,
    )
    return AnswerForm(request, encoder, mapped.dropped)


def with_callers_names(refused: Refusal) -> Refusal:
    """Return a refusal with the caller's name of the parameter, where the fault was found in the chat."""
    error = refused.body["error"]
    param = error.get("param")
    name = _NAMES.get(param.partition("[")[0]) if isinstance(param, str) else None
    if name is None:
        return refused
    return replace(refused, body={**refused.body, "error": {**error, "param": name}})
