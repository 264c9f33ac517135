"""Rankings in the form of Jina and Cohere, made from an answer in any of the usual shapes.

Other fields of a worker's answer stay. A request that contains more than texts (images, for one) passes unchanged, and so does
an answer that is no ranking.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from router.canonical.retrieval import Rerank, read_rerank
from router.dialects.openai_http.json_answer import parse_json, parse_success
from router.errors import BadRequest
from router.openai.body import parse_json_object
from router.openai.text_parser import written_answer
from router.requests import Request
from router.select.fitness import estimated_tokens

_LISTS = ("results", "data", "rankings")
_SCORES = ("relevance_score", "score")


def read_request(request: Request) -> Rerank | None:
    """Return the texts to be ranked; `None` if there are not only texts, or the request is left to the worker to refuse."""
    try:
        return read_rerank(request)
    except BadRequest:
        return None


def body_of(body: bytes, wanted: Rerank) -> bytes:
    """Return a body whose documents are strings: some workers accept no objects."""
    fields = parse_json_object(body)
    if fields.get("documents") == list(wanted.documents):
        return body
    return orjson.dumps({**fields, "documents": wanted.documents})


def to_common_form(body: bytes, wanted: Rerank, *, id_: str, name: str) -> bytes:
    """Return an answer in the common form; raise `WorkerFailed` for a failure with a success status, or JSON too deep."""
    parse_success(body)
    said = parse_json(body)
    rest: Mapping[str, Any] = said if isinstance(said, dict) else {}
    rows = said if isinstance(said, list) else next(
        (rest[key] for key in _LISTS if isinstance(rest.get(key), list)), []
    )  # fmt: skip
    ranked = [_row(row, wanted) for row in rows]
    results = [row for row in ranked if row is not None]
    if not rows or len(results) != len(rows):
        return body
    results.sort(key=lambda row: -row["relevance_score"])
    beside = {key: value for key, value in rest.items() if key not in _LISTS}
    usual = {"id": f"rerank-{id_}", "usage": _usage(wanted)}
    lacking = {key: value for key, value in usual.items() if beside.get(key) is None}
    best = results[: wanted.top_n]
    return written_answer({**beside, **lacking, "model": name, "results": best})


def _row(given: object, wanted: Rerank) -> dict[str, Any] | None:
    match given:
        case {"index": int(index), **rest} if 0 <= index < len(wanted.documents):
            pass
        case _:
            return None
    score = next((rest[key] for key in _SCORES if isinstance(rest.get(key), int | float)), None)
    if score is None:
        return None
    own = {str(key): value for key, value in rest.items() if key not in (*_SCORES, "document")}
    text = {"document": {"text": wanted.documents[index]}} if wanted.with_documents else {}
    return {"index": index, "relevance_score": score, **text, **own}


def _usage(wanted: Rerank) -> dict[str, object]:
    texts = (wanted.query, *wanted.documents)
    tokens = sum(estimated_tokens(len(text.encode(errors="replace"))) for text in texts)
    return {"prompt_tokens": tokens, "total_tokens": tokens, "estimated": True}
