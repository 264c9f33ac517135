"""Embeddings, tokens and rankings from a LocalAI backend."""

from collections.abc import Mapping, Sequence
from math import isclose

from router.canonical import embedding, rerank, tokenize
from router.canonical.embedding import Input
from router.dialects import Answer
from router.dialects.localai_grpc.exchange import (
    NAME,
    Asking,
    answer_of,
    estimated,
    finite,
    unheard,
)
from router.errors import WorkerError, WorkerFailed, WorkerUnable
from router.openai.result_writers import embedding as vectors
from router.openai.result_writers import rerank as ranking
from router.openai.result_writers import tokenize as tokens
from router.openai.result_writers.rerank import Ranked
from router.openai.usage import Usage
from router.translate.request import checked, refuse


async def embed(asking: Asking) -> Answer:
    """Have texts turned into vectors, one after the other: a backend takes one at a time."""
    asked = checked(embedding.read, asking.request)
    found: list[list[float]] = []
    heeded = False
    for given in asked.inputs:
        told = await asking.ask("Embedding", _said(given))
        if not heeded and not isinstance(given, str):
            await _check_heeded(asking, told.embeddings)
            heeded = True
        vector = finite(told.embeddings)
        if not vector or len(vector) != len((found or [vector])[0]):
            raise WorkerFailed("the worker told vectors of several lengths, or none")
        if asked.dimensions not in (None, len(vector)):
            words = f"the model makes vectors of {len(vector)} dimensions only"
            raise WorkerUnable(words, param="dimensions")
        found.append(vector)
    spent = sum(map(_tokens, asked.inputs), start=Usage(0, 0))
    body = vectors.written(found, model=asking.model, base64=asked.base64, usage=spent)
    return answer_of(body, usage=spent, unheard=unheard(asked))


async def rank(asking: Asking) -> Answer:
    """Have documents put in order."""
    asked = checked(rerank.read, asking.request)
    count = len(asked.documents)
    wanted = min(asked.top_n or count, count)
    said = {"query": asked.query, "documents": asked.documents, "top_n": wanted}
    told = await asking.ask("Rerank", said)
    places = [one.index for one in told.results]
    if len(set(places)) != len(places) or not set(places) <= set(range(count)):
        raise WorkerFailed("the worker ranked documents that it was not given")
    scores = finite([one.relevance_score for one in told.results])
    # Some count the question alone as the prompt.
    read = max(told.usage.prompt_tokens, told.usage.total_tokens)
    spent = Usage(read, 0) if read > 0 else estimated(asked.query, *asked.documents)
    body = ranking.written(
        asked,
        map(Ranked, places, scores),
        id=f"rerank-{asking.request.id}",
        model=asking.model,
        usage=spent,
        prompt=max(0, told.usage.prompt_tokens),
    )
    return answer_of(body, usage=spent, unheard=unheard(asked))


async def cut(asking: Asking) -> Answer:
    """Have a text cut into tokens."""
    asked = checked(tokenize.read, asking.request)
    refuse(NAME, asked, tokenize.SHAPING)
    told = await asking.ask("TokenizeString", {"Prompt": asked.text})
    special = asked.special is not None
    return answer_of(
        tokens.written(told.tokens), unheard=unheard(asked, add_special_tokens=special)
    )


async def _check_heeded(asking: Asking, vector: Sequence[float]) -> None:
    """Raise `WorkerUnable` where a vector of tokens is that of nothing: most backends read texts only, and say nothing of it."""
    try:
        nothing = (await asking.ask("Embedding", {})).embeddings
    except WorkerError:
        return  # it minds, so it read the tokens
    if len(nothing) == len(vector) and all(map(_alike, nothing, vector)):
        raise WorkerUnable("the worker reads texts, not the numbers of tokens", param="input")


def _alike(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=1e-3, abs_tol=1e-5)


def _said(given: Input) -> Mapping[str, object]:
    return {"Embeddings": given} if isinstance(given, str) else {"EmbeddingTokens": given}


def _tokens(given: Input) -> Usage:
    return estimated(given) if isinstance(given, str) else Usage(len(given), 0)
