"""Errors in TGI's form: each of our errors as one of its four types, with its status and body."""

from typing import NamedTuple

import orjson

from node.faces.errors import Refusal
from router.openai.text_parser import TextFailure


class ErrorForm(NamedTuple):
    """How one type of errors looks: HTTP status, `error_type`, and what its message begins with."""

    status: int
    type: str
    opening: str


VALIDATION = ErrorForm(422, "validation", "Input validation error")
GENERATION = ErrorForm(424, "generation", "Request failed during generation")
OVERLOADED = ErrorForm(429, "overloaded", "Model is overloaded")
INCOMPLETE = ErrorForm(500, "incomplete_generation", "Incomplete generation")
NO_TOKENIZER = ErrorForm(404, "no_tokenizer", "No fast tokenizer available")
UNHEALTHY = ErrorForm(503, "healthcheck", "unhealthy")

_BUSY = frozenset({429, 503})
_OF_TYPE = {"invalid_request_error": VALIDATION, "rate_limit_error": OVERLOADED}


def refuse(refused: Refusal) -> Refusal:
    """Say an error before the first byte."""
    if refused.body["error"]["code"] == INCOMPLETE.type:
        return said(refused, INCOMPLETE)
    return said(refused, _of_status(refused.status))


def said(refused: Refusal, form: ErrorForm) -> Refusal:
    """Say an error in a form of TGI's; its headers stay."""
    return Refusal(form.status, _body(form, refused.body["error"]["message"]), refused.headers)


def event(failure: TextFailure) -> bytes:
    """Say as the last event of a stream why it broke off."""
    form = _OF_TYPE.get(failure.type, GENERATION)
    if failure.code in ("answer_broken", INCOMPLETE.type):
        form = INCOMPLETE
    return b"data:" + orjson.dumps(_body(form, failure.message)) + b"\n\n"


def _of_status(status: int) -> ErrorForm:
    if status in _BUSY:
        return OVERLOADED
    if status < 500:
        return VALIDATION
    return INCOMPLETE if status == 500 else GENERATION


def _body(form: ErrorForm, message: str) -> dict[str, str]:
    # Where a TGI server refuses, it is told in its own words.
    whole = message if message.startswith(form.opening) else f"{form.opening}: {message}"
    return {"error": whole, "error_type": form.type}
