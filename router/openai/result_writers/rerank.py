"""Writer of rankings: as Jina and Cohere say it, the best first."""

from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from router.canonical.rerank import Rerank
from router.openai.usage import Usage


@dataclass(frozen=True, slots=True)
class Ranked:
    """How well one of the documents, by its place in the request, answers the question."""

    index: int
    score: float


def written(
    asked: Rerank, ranked: Iterable[Ranked], *, id: str, model: str, usage: Usage, prompt: int = 0  # noqa: A002 (as the form has it)
) -> bytes:  # fmt: skip
    """Return the answer: no more documents than were asked for, with their texts where they are wanted.

    `prompt` are the tokens of the question alone, where its worker counts those.
    """
    best = sorted(ranked, key=lambda one: -one.score)[: asked.top_n]
    results = [
        {"index": one.index, "relevance_score": one.score}
        | ({"document": {"text": asked.documents[one.index]}} if asked.with_documents else {})
        for one in best
    ]
    spent: dict[str, object] = {
        "prompt_tokens": prompt or usage.prompt,
        "total_tokens": usage.prompt,
    }
    spent |= {"estimated": True} if usage.estimated else {}
    return orjson.dumps({"id": id, "model": model, "results": results, "usage": spent})
