"""Embeddings, tokens, rankings and vector stores of a LocalAI backend."""

import re
from collections.abc import Mapping, Sequence
from math import isclose
from typing import Any

from router.answer import Answer
from router.canonical import tokenize
from router.canonical.retrieval import (
    Find,
    Get,
    Input,
    Key,
    Set,
    StoreDelete,
    decode_value,
    read_embedding,
    read_rerank,
    read_store,
)
from router.dialects.localai_grpc.backend import (
    NAME,
    BackendJob,
    backend_answer,
    estimate_usage,
    finite,
    ignored_parameters,
)
from router.errors import WorkerError, WorkerFailed, WorkerRejected, WorkerUnable
from router.openai.result_writer import (
    DONE,
    DocumentScore,
    write_embeddings,
    write_ranking,
    write_store,
    write_tokens,
)
from router.openai.text_writer import refused
from router.openai.usage import Usage
from router.rpc.failures import RpcFailed
from router.translate.request import read_or_reject, refuse_unread_fields

_OTHER_LENGTH = re.compile(r"\blength \d+\b.*\bexisting\b")


async def serve_store(job: BackendJob) -> Answer:
    """Set, delete, get or find entries of a store."""
    match read_or_reject(read_store, job.request):
        case Set(keys, values):
            said = [{"Bytes": decode_value(value)} for value in values]
            await job.ask("StoresSet", {"Keys": _keys(keys), "Values": said})
        case StoreDelete(keys):
            await job.ask("StoresDelete", {"Keys": _keys(keys)})
        case Get(keys):
            told = await job.ask("StoresGet", {"Keys": _keys(keys)})
            return backend_answer(write_store(*_columns(told)))
        case Find(key, top):
            told = await job.ask("StoresFind", {"Key": _key(key), "TopK": top})
            columns, similarities = _columns(told), finite(told.Similarities)
            if len(similarities) != len(columns[0]):
                raise WorkerFailed("the worker returned columns of different lengths")
            return backend_answer(write_store(*columns, similarities))
    return backend_answer(DONE)


def wrong_length(failed: RpcFailed) -> WorkerRejected | None:
    """Return the refusal of keys whose length differs from those in the store, `None` for any other failure.

    LocalAI's own store reports this like a failure; if it were taken for one, no caller would be sent to the store any more.
    """
    if failed.code == "UNKNOWN" and _OTHER_LENGTH.search(failed.words):
        return refused("the keys differ in length from those in the store", "keys")
    return None


def _keys(keys: Sequence[Key]) -> list[Mapping[str, object]]:
    return [_key(key) for key in keys]


def _key(key: Key) -> Mapping[str, object]:
    return {"Floats": key}


def _columns(told: Any) -> tuple[list[list[float]], list[bytes]]:
    keys = [finite(key.Floats) for key in told.Keys]
    if len(keys) != len(told.Values):
        raise WorkerFailed("the worker returned columns of different lengths")
    return keys, [value.Bytes for value in told.Values]


async def embed(job: BackendJob) -> Answer:
    """Compute the vectors of texts, one after the other: a backend takes one at a time."""
    asked = read_or_reject(read_embedding, job.request)
    found: list[list[float]] = []
    heeded = False
    for given in asked.inputs:
        told = await job.ask("Embedding", _said(given))
        if not heeded and not isinstance(given, str):
            await _check_heeded(job, told.embeddings)
            heeded = True
        vector = finite(told.embeddings)
        if not vector or len(vector) != len((found or [vector])[0]):
            raise WorkerFailed("the worker returned no vectors, or of different lengths")
        if asked.dimensions not in (None, len(vector)):
            words = f"the model returns only vectors of {len(vector)} dimensions"
            raise WorkerUnable(words, param="dimensions")
        found.append(vector)
    spent = sum(map(_tokens, asked.inputs), start=Usage(0, 0))
    body = write_embeddings(found, model=job.model, base64=asked.base64, usage=spent)
    return backend_answer(body, usage=spent, unheard=ignored_parameters(asked))


async def rank(job: BackendJob) -> Answer:
    """Rank documents."""
    asked = read_or_reject(read_rerank, job.request)
    count = len(asked.documents)
    wanted = min(asked.top_n or count, count)
    said = {"query": asked.query, "documents": asked.documents, "top_n": wanted}
    told = await job.ask("Rerank", said)
    places = [one.index for one in told.results]
    if len(set(places)) != len(places) or not set(places) <= set(range(count)):
        raise WorkerFailed("the worker ranked unknown documents")
    scores = finite([one.relevance_score for one in told.results])
    # Some backends count only the query as the prompt.
    read = max(told.usage.prompt_tokens, told.usage.total_tokens)
    spent = Usage(read, 0) if read > 0 else estimate_usage(asked.query, *asked.documents)
    body = write_ranking(
        asked,
        map(DocumentScore, places, scores),
        id=f"rerank-{job.request.id}",
        model=job.model,
        usage=spent,
        prompt=max(0, told.usage.prompt_tokens),
    )
    return backend_answer(body, usage=spent, unheard=ignored_parameters(asked))


async def tokenize_text(job: BackendJob) -> Answer:
    """Tokenize a text."""
    asked = read_or_reject(tokenize.read, job.request)
    refuse_unread_fields(NAME, asked, tokenize.SHAPING)
    told = await job.ask("TokenizeString", {"Prompt": asked.text})
    special = asked.special is not None
    return backend_answer(
        write_tokens(told.tokens), unheard=ignored_parameters(asked, add_special_tokens=special)
    )


async def _check_heeded(job: BackendJob, vector: Sequence[float]) -> None:
    """Raise `WorkerUnable` if a vector of tokens equals that of nothing: most backends read only texts, and ignore tokens."""
    try:
        nothing = (await job.ask("Embedding", {})).embeddings
    except WorkerError:
        return  # the backend refuses empty input, so it read the tokens
    if len(nothing) == len(vector) and all(map(_alike, nothing, vector)):
        raise WorkerUnable("the worker accepts texts, not token ids", param="input")


def _alike(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=1e-3, abs_tol=1e-5)


def _said(given: Input) -> Mapping[str, object]:
    return {"Embeddings": given} if isinstance(given, str) else {"EmbeddingTokens": given}


def _tokens(given: Input) -> Usage:
    return estimate_usage(given) if isinstance(given, str) else Usage(len(given), 0)
