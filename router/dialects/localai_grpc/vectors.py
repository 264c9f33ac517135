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
            encoded = [{"Bytes": decode_value(value)} for value in values]
            await job.ask("StoresSet", {"Keys": _keys(keys), "Values": encoded})
        case StoreDelete(keys):
            await job.ask("StoresDelete", {"Keys": _keys(keys)})
        case Get(keys):
            reply = await job.ask("StoresGet", {"Keys": _keys(keys)})
            return backend_answer(write_store(*_columns(reply)))
        case Find(key, top):
            reply = await job.ask("StoresFind", {"Key": _key(key), "TopK": top})
            columns, similarities = _columns(reply), finite(reply.Similarities)
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


def _columns(reply: Any) -> tuple[list[list[float]], list[bytes]]:
    keys = [finite(key.Floats) for key in reply.Keys]
    if len(keys) != len(reply.Values):
        raise WorkerFailed("the worker returned columns of different lengths")
    return keys, [value.Bytes for value in reply.Values]


async def embed(job: BackendJob) -> Answer:
    """Compute the vectors of texts, one after the other: a backend takes one at a time."""
    request = read_or_reject(read_embedding, job.request)
    vectors: list[list[float]] = []
    heeded = False
    for entry in request.inputs:
        reply = await job.ask("Embedding", _said(entry))
        if not heeded and not isinstance(entry, str):
            await _check_heeded(job, reply.embeddings)
            heeded = True
        vector = finite(reply.embeddings)
        if not vector or len(vector) != len((vectors or [vector])[0]):
            raise WorkerFailed("the worker returned no vectors, or of different lengths")
        if request.dimensions not in (None, len(vector)):
            message = f"the model returns only vectors of {len(vector)} dimensions"
            raise WorkerUnable(message, param="dimensions")
        vectors.append(vector)
    usage = sum(map(_tokens, request.inputs), start=Usage(0, 0))
    body = write_embeddings(vectors, model=job.model, base64=request.base64, usage=usage)
    return backend_answer(body, usage=usage, unheard=ignored_parameters(request))


async def rank(job: BackendJob) -> Answer:
    """Rank documents."""
    rerank = read_or_reject(read_rerank, job.request)
    count = len(rerank.documents)
    top = min(rerank.top_n or count, count)
    message = {"query": rerank.query, "documents": rerank.documents, "top_n": top}
    reply = await job.ask("Rerank", message)
    indices = [result.index for result in reply.results]
    if len(set(indices)) != len(indices) or not set(indices) <= set(range(count)):
        raise WorkerFailed("the worker ranked unknown documents")
    scores = finite([result.relevance_score for result in reply.results])
    # Some backends count only the query as the prompt.
    read = max(reply.usage.prompt_tokens, reply.usage.total_tokens)
    usage = Usage(read, 0) if read > 0 else estimate_usage(rerank.query, *rerank.documents)
    body = write_ranking(
        rerank,
        map(DocumentScore, indices, scores),
        id=f"rerank-{job.request.id}",
        model=job.model,
        usage=usage,
        prompt=max(0, reply.usage.prompt_tokens),
    )
    return backend_answer(body, usage=usage, unheard=ignored_parameters(rerank))


async def tokenize_text(job: BackendJob) -> Answer:
    """Tokenize a text."""
    request = read_or_reject(tokenize.read, job.request)
    refuse_unread_fields(NAME, request, tokenize.SHAPING)
    reply = await job.ask("TokenizeString", {"Prompt": request.text})
    special = request.special is not None
    return backend_answer(
        write_tokens(reply.tokens), unheard=ignored_parameters(request, add_special_tokens=special)
    )


async def _check_heeded(job: BackendJob, vector: Sequence[float]) -> None:
    """Raise `WorkerUnable` if a vector of tokens equals that of nothing: most backends read only texts, and ignore tokens."""
    try:
        nothing = (await job.ask("Embedding", {})).embeddings
    except WorkerError:
        return  # the backend refuses empty input, so it read the tokens
    if len(nothing) == len(vector) and all(map(_alike, nothing, vector)):
        raise WorkerUnable("the worker accepts texts, not token ids", param="input")


def _alike(left: float, right: float) -> bool:
    return isclose(left, right, rel_tol=1e-3, abs_tol=1e-5)


def _said(entry: Input) -> Mapping[str, object]:
    return {"Embeddings": entry} if isinstance(entry, str) else {"EmbeddingTokens": entry}


def _tokens(entry: Input) -> Usage:
    return estimate_usage(entry) if isinstance(entry, str) else Usage(len(entry), 0)
