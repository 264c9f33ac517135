"""Anthropic's Messages API, for clients that speak it: any model of the mesh answers.

A request becomes a chat in OpenAI's form, and its answer a message of blocks. The client's key (`x-api-key`) serves to tell
callers apart and is not passed on; `anthropic-version` and `anthropic-beta` are accepted, and change nothing.
"""

from collections.abc import Mapping
from random import getrandbits

from aiohttp import web

from node.auth.principal import ANYBODY, PRINCIPAL
from node.faces import Serving
from node.faces.anthropic.encoder import AnthropicEvents
from node.faces.anthropic.errors import refused as in_own_form
from node.faces.anthropic.request_mapping import read
from node.faces.anthropic.token_count import counted_tokens, estimated_tokens
from node.faces.encoder import AnswerForm
from node.faces.errors import KNOWN, Refusal, refusal
from node.faces.openai import request_of
from node.faces.request_ids import ID
from node.faces.request_reader import json_answer, read_fields
from node.faces.respond import answer
from router.openai.body import encode_json
from router.requests import Kind

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"

ENDPOINTS: Mapping[str, str] = {
    "POST /v1/messages": "a chat, streamed or not",
    "POST /v1/messages/count_tokens": "tokens by the model's worker if it can tokenize; else estimated",
    "GET /v1/models": "Anthropic's format with `anthropic-version`",
    "GET /v1/models/{model}": "Anthropic's format with `anthropic-version`",
    "POST /v1/messages/batches": "not served: 404",
    "POST /v1/files": "OpenAI's, if a node serves files; else 501",
}
"""What becomes of each endpoint of Anthropic's API."""


def asking_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for clients."""

    async def messages(http: web.Request) -> web.StreamResponse:
        async def ask() -> AnswerForm:
            mapped = read(await read_fields(http, context.settings))
            request = request_of(context, http, Kind.CHAT, encode_json(mapped.fields))
            own_id = f"{getrandbits(128):032x}"
            limit = context.settings.router.max_event_bytes
            encoder = AnthropicEvents(mapped, http[ID], own_id, max_event_bytes=limit)
            return AnswerForm(request, encoder, mapped.dropped)

        def refuse(refusal: Refusal) -> Refusal:
            return in_own_form(refusal, http[ID])

        return await answer(context, http, Kind.CHAT, ask, refuse=refuse)

    async def count(http: web.Request) -> web.StreamResponse:
        try:
            fields = read(await read_fields(http, context.settings), limited=False).fields
            request = request_of(context, http, Kind.CHAT, encode_json(fields))
            counted = await counted_tokens(context, http.get(PRINCIPAL, ANYBODY), request, fields)
        except KNOWN as error:
            return in_own_form(refusal(error), http[ID]).response()
        estimate = {"input_tokens": estimated_tokens(fields), "estimated": True}
        return json_answer(estimate if counted is None else {"input_tokens": counted})

    return [web.post(MESSAGES, messages), web.post(COUNT, count)]
