"""Request for a ranking of documents by how well they answer a query."""

from collections.abc import Mapping
from dataclasses import dataclass

from router.canonical.values import flag, listed, needed, others, whole
from router.errors import BadRequest
from router.openai.body import object_of
from router.requests import Request

MAX_QUERY_CHARACTERS = 1_000_000
"""The longest query."""

MAX_DOCUMENTS = 10_000
"""The most documents of one request; the same as Cohere's."""

MAX_DOCUMENT_CHARACTERS = 4_000_000
"""The longest document."""

READ = frozenset({"model", "models", "query", "documents", "top_n", "return_documents", "stream"})
"""Fields that are read here."""


@dataclass(frozen=True, slots=True)
class Rerank:
    """A request for the best `top_n` documents, `None` for all; `with_documents` requests their texts too."""

    query: str
    documents: tuple[str, ...]
    top_n: int | None
    with_documents: bool
    others: Mapping[str, object]


def read(request: Request) -> Rerank:
    """Read a request in the form of Jina and Cohere; raise `BadRequest`, which names the field."""
    fields = object_of(request.body)
    given = listed(fields, "documents", MAX_DOCUMENTS)
    return Rerank(
        query=needed(fields, "query", MAX_QUERY_CHARACTERS),
        documents=tuple(_document(one, f"documents[{at}]") for at, one in enumerate(given)),
        top_n=whole(fields, "top_n", 1, 2**31 - 1),
        with_documents=flag(fields, "return_documents") is not False,
        others=others(fields, READ),
    )


def _document(given: object, param: str) -> str:
    match given:
        case str(text) | {"text": str(text)} if len(text) <= MAX_DOCUMENT_CHARACTERS:
            return text
    raise BadRequest(
        f"`{param}` must be a text, or an object with one, of at most {MAX_DOCUMENT_CHARACTERS:,} characters",
        param=param,
    )
