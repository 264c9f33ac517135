"""Token counts of Anthropic requests: counted by a worker of the model, else estimated by the length of the texts.

Neither is exact: only the worker knows what the model's template adds, and no worker reports it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import orjson

from node.auth.principal import Principal
from node.faces import Serving
from node.faces.model_call import model_answer
from router.errors import RouterError, UnknownModel
from router.requests import Kind, Request
from router.select.fitness import USUAL_BYTES

IMAGE_TOKENS = 1_000
"""Estimated tokens of an image: models differ, and only the worker would know."""

MESSAGE_TOKENS = 4
"""Tokens that most templates add to a message."""


def estimated_tokens(fields: Mapping[str, object]) -> int:
    """Return the estimated tokens of a request in OpenAI's form, by the length of its texts."""
    size = sum(len(text.encode()) for text in texts_of(fields))
    return -(-size // USUAL_BYTES) + tokens_beside_text(fields)


def tokens_beside_text(fields: Mapping[str, object]) -> int:
    """Return the estimated tokens of a request besides its texts: for images and for the template."""
    messages = _rows(fields.get("messages"))
    parts = (part for message in messages for part in _rows(message.get("content")))
    images = sum(part.get("type") == "image_url" for part in parts)
    return len(messages) * MESSAGE_TOKENS + images * IMAGE_TOKENS


def texts_of(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield all texts of a request in OpenAI's form that a model reads."""
    for message in _rows(fields.get("messages")):
        content = message.get("content")
        if isinstance(content, str):
            yield content
        yield from (str(part["text"]) for part in _rows(content) if "text" in part)
        if calls := message.get("tool_calls"):
            yield orjson.dumps(calls).decode()
    if tools := fields.get("tools"):
        yield orjson.dumps(tools).decode()


async def counted_tokens(
    context: Serving, principal: Principal, request: Request, fields: Mapping[str, object]
) -> int | None:
    """Return the tokens of `request`, in OpenAI's form, as a worker counts them; `None` where none can now.

    The question does not queue: a caller that counts tokens is about to send the request itself. Raise `UnknownModel`, or an
    `AuthError`.
    """
    body = orjson.dumps({"model": request.model, "content": "\n".join(texts_of(fields))})
    question = replace(
        request, kind=Kind.TOKENIZE, body=body, stream=False, waits=False, holds=False
    )
    try:
        async with model_answer(context, principal, question) as answer:
            tokens = _tokens(await answer.body())
    except UnknownModel:
        raise
    except RouterError:
        return None
    return None if tokens is None else tokens + tokens_beside_text(fields)


def _tokens(body: bytes) -> int | None:
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    match payload:
        case {"tokens": [*tokens]} | [*tokens]:
            return len(tokens)
    return None


def _rows(value: object) -> list[Mapping[str, object]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
