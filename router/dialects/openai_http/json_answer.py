"""JSON answer of a worker, in one piece: whether it is a failure with a success status, and the usage that it reports.

An answer longer than `LOOKED_AT_BYTES` is not examined: it passes through with the worker's own name for the model.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Mapping

import orjson

from router.answer import NOTHING, Answer, Route
from router.errors import WorkerFailed
from router.http.answer_headers import facts_of
from router.http.exchange import SMALL_BYTES, Exchange, plain_json
from router.http.reply import Reply
from router.openai import usage
from router.openai.body import splice_model
from router.openai.members import members, wanted
from router.openai.usage import Usage
from router.select.candidates import Candidate

LOOKED_AT_BYTES = 4 * 1024 * 1024
"""The longest JSON answer that is held back to be examined; failures and renamed answers are far shorter."""

_FAILURES = ("code", "error")
_NAMED = wanted(("model",), (), _FAILURES, (), None)
_TOLD = wanted(("model",), (), _FAILURES, ("usage",), usage.COUNTS)
_QUOTES = 64
_TELLING = (b'"code"', b'"error"', b'"model"')


def whole_answer(candidate: Candidate, reply: Reply) -> Answer | None:
    """Return a worker's successful JSON answer, in one piece and with the model's registered name; `None` for all else."""
    facts = reply.headers.facts or facts_of(reply.headers)
    body = plain_json(reply, facts)
    if body is None:
        return None
    try:
        body, reported = read_answer(body, candidate.service.model)
    except WorkerFailed:
        return None
    answer = Answer(
        reply.status, facts.content_type, body, NOTHING, Route.LOCAL, len(body), facts.shown
    )
    answer.usage = reported
    return answer


async def json_answer(exchange: Exchange, name: str) -> Answer:
    """Return the answer of JSON in one piece; raise `WorkerFailed` if it is a failure with a success status."""
    if exchange.length is not None and exchange.length > LOOKED_AT_BYTES:
        return exchange.answer(await exchange.read_some(), Route.LOCAL, length=exchange.length)
    body = await exchange.read_up_to(LOOKED_AT_BYTES)
    if not exchange.ended:
        return exchange.answer(body, Route.LOCAL, length=exchange.length)
    reported = None
    if len(body) > SMALL_BYTES and _needs_no_parsing(body, name):
        reported = usage.read_usage_at_end(body)
    elif body:
        body, reported = read_answer(body, name)
    answer = exchange.answer(body, Route.LOCAL, length=len(body))
    answer.usage = reported
    return answer


def read_answer(body: bytes, name: str) -> tuple[bytes, Usage | None]:
    """Return the JSON with the model's registered name, and the usage that it reports; raise what `parse_success` raises."""
    fields = members(body, _TOLD)
    if fields is None:
        body = body.removeprefix(BOM_UTF8)
        answer = parse_success(body)
        model, reported = answer.get("model"), usage.read_usage(answer)
    else:
        model = fields.get("model")
        reported = usage.read_usage(fields)
    if model != name and isinstance(model, str):
        body = splice_model(body, name)
    return body, reported


def named_model(data: bytes) -> object:
    """Return the model that an answer or event names, `None` if it names none; raise what `parse_success` raises."""
    fields = members(data, _NAMED)
    return (parse_success(data) if fields is None else fields).get("model")


def parse_success(body: bytes) -> Mapping[str, object]:
    """Return the parsed answer, empty if it is no object; raise `WorkerFailed` if it is a failure with a success status."""
    answer = parse_json(body)
    if answer is None:
        raise WorkerFailed("the worker's answer is not valid JSON")
    if not isinstance(answer, dict):
        return {}
    if "code" in answer:
        code = answer["code"]
        if isinstance(code, int) and not isinstance(code, bool) and code:
            raise WorkerFailed(f"the worker failed with code {code}")
    # Text Generation Inference has a text there, OpenRouter null choices beside it.
    error = answer.get("error")
    if (
        isinstance(error, (dict, str))
        and error
        and not (answer.get("choices") or answer.get("data"))
    ):
        raise WorkerFailed("the worker returned an error with a success status")
    return answer


def _needs_no_parsing(body: bytes, name: str) -> bool:
    """Return whether a long answer needs no parsing: nothing in it can be a failure, and any `model` is the given name."""
    if body[:1] not in (b"{", b"["):
        return False
    written = orjson.dumps(name)
    expected = (b'"model":' + written, b'"model": ' + written)
    index = -1
    # Go from quote to quote, of which an image has a handful: a search for each key by itself would cost five times as much.
    for _ in range(_QUOTES):
        index = body.find(b'"', index + 1)
        if index < 0:
            return True
        if body.startswith(_TELLING, index) and not body.startswith(expected, index):
            return False
    if b'"code"' in body or b'"error"' in body:
        return False
    return body.count(b'"model"') == sum(map(body.count, expected))


def parse_json(body: bytes) -> object:
    """Return the parsed JSON, or `None` if it is invalid. Workers write what orjson refuses: NaN, lone surrogates."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None
