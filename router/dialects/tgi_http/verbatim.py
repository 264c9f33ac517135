"""Observer of TGI's own answers where they are passed on as they are: failures, the end of a text, what it took."""

import re
from collections.abc import Callable, Mapping
from functools import partial

import orjson

from router.dialects.tgi_http import request_mapping
from router.dialects.tgi_http.answer_parser import failure, of_details, of_token
from router.errors import WorkerFailed
from router.http.verbatim import Passing, Streamed
from router.openai.usage import Tells, Usage
from router.select.fitness import USUAL_BYTES
from router.translate.text import object_of
from router.workers import Worker

# The last event has the whole text, or details with the reason, or both; till then they are null.
_OVER = re.compile(
    rb'"(?:(?:generated_text|finish_reason)"[ \t\r\n]{0,16}:[ \t\r\n]{0,16}"|error_type")'
)


def _addressed(body: bytes, _: Worker) -> bytes:
    # No model is named: a server has one.
    return body


def _event(data: bytes) -> None:
    of_token(_success(data))


def _whole(asked: bytes, body: bytes, header: Callable[[str], str]) -> Usage | None:
    said = _success(body)
    if not isinstance(said.get("generated_text"), str):
        raise WorkerFailed("the worker's answer has no text")
    return of_details(said.get("details"), header("x-prompt-tokens"), partial(_read, asked))


def _tells(asked: bytes) -> Tells:
    def read(said: object) -> Usage | None:
        details = said.get("details") if isinstance(said, dict) else None
        return of_details(details, "", partial(_read, asked))

    return Tells(b'"generated_tokens"', read)


def _success(body: bytes) -> Mapping[str, object]:
    said = object_of(body)
    if "error" in said:
        raise failure(said)
    return said


def _read(asked: bytes) -> int:
    """Estimate how many tokens were read."""
    inputs = orjson.loads(asked).get("inputs")
    return -(-len(inputs.encode()) // USUAL_BYTES) if isinstance(inputs, str) else 0


PASSING = Passing(
    calls=frozenset({request_mapping.WHOLE, request_mapping.STREAM}),
    addressed=_addressed,
    whole=_whole,
    streamed=Streamed(event=_event, over=_OVER, tells=_tells),
)
