"""LocalAI's embeddings, tokens, rankings and vector stores, as requests: what comes as numbers and lists, without files."""

from typing import Any

from node.faces.grpc.localai.model_lookup import ModelLookup
from node.faces.grpc.localai.texts import int32
from router.canonical.store import bytes_of, text_of
from router.errors import BadRequest, WorkerFailed
from router.openai.result_parser import Columns, columns_of, ranking_of, tokens_of, vectors_of
from router.requests import Kind
from router.rpc.messages import LOCALAI, message_class, methods_of

_METHODS = methods_of(LOCALAI)


def handlers(desk: ModelLookup) -> dict[str, Any]:
    """Return these RPCs."""
    columns = _Columns(desk)
    return {
        "Embedding": columns.embedding,
        "TokenizeString": columns.tokenize,
        "Rerank": columns.rerank,
        "StoresSet": columns.stores_set,
        "StoresDelete": columns.stores_delete,
        "StoresGet": columns.stores_get,
        "StoresFind": columns.stores_find,
    }


class _Columns:
    def __init__(self, desk: ModelLookup) -> None:
        self._desk = desk

    async def embedding(self, asked: Any, call: Any) -> Any:
        wanted = asked.Embeddings or list(asked.EmbeddingTokens)
        if not wanted:
            raise BadRequest("Embeddings or EmbeddingTokens must hold a text", param="Embeddings")
        fields = {"input": wanted, "encoding_format": "float"}
        [vector] = vectors_of(await self._desk.body(call, Kind.EMBEDDING, fields), 1).vectors
        return _METHODS["Embedding"].told(embeddings=vector)

    async def tokenize(self, asked: Any, call: Any) -> Any:
        tokens = tokens_of(await self._desk.body(call, Kind.TOKENIZE, {"content": asked.Prompt}))
        return _METHODS["TokenizeString"].told(length=len(tokens), tokens=tokens)

    async def rerank(self, asked: Any, call: Any) -> Any:
        fields: dict[str, object] = {"query": asked.query, "documents": list(asked.documents)}
        if asked.top_n > 0:
            fields["top_n"] = asked.top_n
        body = await self._desk.body(call, Kind.RERANK, fields)
        said = ranking_of(body, len(asked.documents))
        result = message_class("backend.DocumentResult")
        results = [
            result(index=one.index, text=asked.documents[one.index], relevance_score=one.score)
            for one in said.ranked
        ]
        read = said.usage.prompt if said.usage else 0
        usage = message_class("backend.Usage")(
            total_tokens=int32(max(said.total, read)), prompt_tokens=int32(read)
        )
        return _METHODS["Rerank"].told(usage=usage, results=results)

    async def stores_set(self, asked: Any, call: Any) -> Any:
        values = [text_of(value.Bytes) for value in asked.Values]
        fields = {"keys": _keys(asked.Keys), "values": values}
        await self._desk.body(call, Kind.STORE_SET, fields)
        return _METHODS["StoresSet"].told(success=True)

    async def stores_delete(self, asked: Any, call: Any) -> Any:
        await self._desk.body(call, Kind.STORE_DELETE, {"keys": _keys(asked.Keys)})
        return _METHODS["StoresDelete"].told(success=True)

    async def stores_get(self, asked: Any, call: Any) -> Any:
        body = await self._desk.body(call, Kind.STORE_GET, {"keys": _keys(asked.Keys)})
        return _METHODS["StoresGet"].told(**_written(columns_of(body)))

    async def stores_find(self, asked: Any, call: Any) -> Any:
        fields: dict[str, object] = {"key": list(asked.Key.Floats)}
        if asked.TopK > 0:
            fields["topk"] = asked.TopK
        found = columns_of(await self._desk.body(call, Kind.STORE_FIND, fields))
        if len(found.similarities) != len(found.keys):
            raise WorkerFailed("the answer has no similarities")
        told = _METHODS["StoresFind"].told
        return told(**_written(found), Similarities=found.similarities)


def _keys(keys: Any) -> list[list[float]]:
    return [list(key.Floats) for key in keys]


def _written(columns: Columns) -> dict[str, Any]:
    key, value = message_class("backend.StoresKey"), message_class("backend.StoresValue")
    return {
        "Keys": [key(Floats=one) for one in columns.keys],
        "Values": [value(Bytes=bytes_of(one)) for one in columns.values],
    }
