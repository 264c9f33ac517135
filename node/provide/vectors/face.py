"""HTTP face of vector stores: OpenAI's `/v1/vector_stores`, and memory banks of Llama Stack 0.0.1, which are the same stores."""

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from node.provide.face import Fault, as_json, object_of, page_of, passed
from node.provide.files import new_id
from node.provide.vectors.engine import NoEmbedding, VectorEngine
from node.provide.vectors.store import FoundText, NoStore, WrongVector
from registry.clock import Clock
from registry.records import ModelType

MAX_RESULTS = 50
USUAL_RESULTS = 10

MAX_CHUNK = 4_096
"""Tokens of the longest chunk."""

AUTO = (800, 400)
"""Default tokens of a chunk, and of the overlap of two chunks."""

MAX_BANKS = 20

_DEEPEST_FILTER = 8

_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "in": lambda value, among: value in among,
    "nin": lambda value, among: value not in among,
}
"""OpenAI's comparisons in filters of a search."""


class VectorFace:
    """Handlers for vector stores. `model` makes the embeddings if a request for a new store names none."""

    def __init__(self, engine: VectorEngine, model: str, wall: Clock) -> None:
        self._engine = engine
        self._store = engine.store
        self._run = engine.files.run_in_thread
        self._model = model
        self._wall = wall

    def routes(self) -> list[web.RouteDef]:
        """Return the HTTP routes."""
        store, files = "/v1/vector_stores/{id}", "/v1/vector_stores/{id}/files"
        batches = "/v1/vector_stores/{id}/file_batches"
        return [
            web.get("/v1/vector_stores", self.all),
            web.post("/v1/vector_stores", self.create),
            web.get(store, self.show),
            web.post(store, self.change),
            web.delete(store, self.delete),
            web.post(f"{store}/search", self.search),
            web.get(files, self.members),
            web.post(files, self.join),
            web.get(f"{files}/{{file}}", self.member),
            web.delete(f"{files}/{{file}}", self.leave),
            web.get(f"{files}/{{file}}/content", self.content),
            web.post(batches, self.join_several),
            web.get(f"{batches}/{{batch}}", self.batch),
            web.post(f"{batches}/{{batch}}/cancel", self.cancel),
            web.get(f"{batches}/{{batch}}/files", self.members),
            web.get("/agents/execute", self.memories),
        ]

    async def all(self, http: web.Request) -> web.Response:
        """List stores."""
        ids = await self._run(self._store.ids)
        stores = await self._run(lambda: [store for id_ in ids if (store := self._store.find(id_))])
        return page_of(http, stores)

    async def create(self, http: web.Request) -> web.Response:
        """Create a store."""
        fields = await object_of(http)
        model = fields.get("embedding_model") or self._model or await self._any_model()
        if not isinstance(model, str):
            raise Fault(400, "`embedding_model` is a name", param="embedding_model")
        name, metadata = _about(fields)
        chunk = _chunking(fields.get("chunking_strategy"))
        files = await self._named(fields.get("file_ids") or [])
        id_, now = new_id("vs_"), int(self._wall())

        def make() -> None:
            self._store.add(id_, now, name, model, metadata)
            self._store.join(id_, files, now, {}, chunk)

        await self._run(make)
        self._engine.wake()
        return as_json(await self._run(lambda: self._store.find(id_)))

    async def show(self, http: web.Request) -> web.Response:
        """Show a store."""
        return as_json(await self._found(http.match_info["id"]))

    async def change(self, http: web.Request) -> web.Response:
        """Change a store's name or metadata."""
        store, fields = await self._found(http.match_info["id"]), await object_of(http)
        name, metadata = _about({**store, **fields})
        await self._run(lambda: self._store.change(store["id"], name, metadata))
        return as_json(await self._found(store["id"]))

    async def delete(self, http: web.Request) -> web.Response:
        """Delete a store; its files stay."""
        store = await self._found(http.match_info["id"])
        await self._run(lambda: self._store.remove(store["id"]))
        return as_json({"id": store["id"], "object": "vector_store.deleted", "deleted": True})

    async def search(self, http: web.Request) -> web.Response:
        """Search texts by meaning."""
        store, fields = await self._found(http.match_info["id"]), await object_of(http)
        query, limit = fields.get("query"), fields.get("max_num_results", USUAL_RESULTS)
        if isinstance(query, list) and all(isinstance(item, str) for item in query):
            query = "\n".join(query)
        if not isinstance(query, str) or not query:
            raise Fault(400, "`query` is a text", param="query")
        if not isinstance(limit, int) or not 1 <= limit <= MAX_RESULTS:
            raise Fault(400, f"`max_num_results` is 1 to {MAX_RESULTS}", param="max_num_results")
        ranking = fields.get("ranking_options")
        least = ranking.get("score_threshold", 0) if isinstance(ranking, dict) else 0
        if isinstance(least, bool) or not isinstance(least, int | float):
            raise Fault(400, "`score_threshold` is a number", param="ranking_options")
        by = fields.get("filters")
        fits({}, by)  # an invalid filter is refused before anything is searched
        nearest = await self._nearest(store, query)
        matching = [item for item in nearest if fits(item.attributes, by)]
        rows = [_row(item) for item in matching[:limit] if item.score >= least]
        kind = "vector_store.search_results.page"
        page = {"object": kind, "search_query": [query], "data": rows}
        return as_json({**page, "has_more": False, "next_page": None})

    async def join(self, http: web.Request) -> web.Response:
        """Add a file to a store."""
        store, fields = await self._found(http.match_info["id"]), await object_of(http)
        await self._join(store["id"], [fields.get("file_id")], fields, "")
        return as_json(await self._member(store["id"], str(fields["file_id"])))

    async def join_several(self, http: web.Request) -> web.Response:
        """Add files to a store."""
        store, fields = await self._found(http.match_info["id"]), await object_of(http)
        files = fields.get("file_ids")
        if not isinstance(files, list) or not 1 <= len(files) <= 500:
            raise Fault(400, "`file_ids` has 1 to 500 ids", param="file_ids")
        id_ = new_id("vsfb_")
        await self._join(store["id"], files, fields, id_)
        return await self._batch(store["id"], id_)

    async def batch(self, http: web.Request) -> web.Response:
        """Show the progress of a batch of files."""
        store = await self._found(http.match_info["id"])
        return await self._batch(store["id"], http.match_info["batch"])

    async def cancel(self, http: web.Request) -> web.Response:
        """Cancel the files of a batch that are not indexed yet."""
        store, id_ = await self._found(http.match_info["id"]), http.match_info["batch"]
        await self._run(lambda: self._store.cancel(id_))
        return await self._batch(store["id"], id_)

    async def members(self, http: web.Request) -> web.Response:
        """List the files of a store, or of a batch."""
        store, batch = await self._found(http.match_info["id"]), http.match_info.get("batch", "")
        members = await self._run(lambda: self._store.members(store["id"], batch))
        state = http.query.get("filter")
        return page_of(http, [member for member in members if state in (None, member["status"])])

    async def member(self, http: web.Request) -> web.Response:
        """Show a file of a store."""
        store = await self._found(http.match_info["id"])
        return as_json(await self._member(store["id"], http.match_info["file"]))

    async def leave(self, http: web.Request) -> web.Response:
        """Remove a file from a store; the file itself stays."""
        store = await self._found(http.match_info["id"])
        member = await self._member(store["id"], http.match_info["file"])
        await self._run(lambda: self._store.leave(store["id"], member["id"]))
        kind = "vector_store.file.deleted"
        return as_json({"id": member["id"], "object": kind, "deleted": True})

    async def content(self, http: web.Request) -> web.Response:
        """Show the chunks of a file as they are searched."""
        store = await self._found(http.match_info["id"])
        member = await self._member(store["id"], http.match_info["file"])
        texts = await self._run(lambda: self._store.texts(store["id"], member["id"]))
        rows = [{"type": "text", "text": text} for text in texts]
        kind = "vector_store.file_content.page"
        return as_json({"object": kind, "data": rows, "has_more": False, "next_page": None})

    async def memories(self, http: web.Request) -> web.Response:
        """Return texts of several banks: the nearest to `input`, or the newest ones without it."""
        banks = http.query.getall("bankIds", [])
        ids = [id_ for item in banks for id_ in item.split(",") if id_]
        if not 1 <= len(ids) <= MAX_BANKS:
            raise Fault(400, f"`bankIds` names 1 to {MAX_BANKS} banks", param="bankIds")
        query, rows = http.query.get("input", ""), list[dict[str, Any]]()
        for id_ in ids:
            bank = await self._found(id_)
            if query:
                nearest = (await self._nearest(bank, query))[:USUAL_RESULTS]
                rows += [
                    {"bank_id": id_, "content": item.text, "score": item.score} for item in nearest
                ]
            else:
                texts = await self._run(partial(self._store.texts, id_, newest=USUAL_RESULTS))
                rows += [{"bank_id": id_, "content": text} for text in texts]
        return as_json(sorted(rows, key=lambda row: -row.get("score", 0.0)))

    async def _nearest(self, store: Mapping[str, Any], query: str) -> list[FoundText]:
        try:
            return await self._engine.search(store["id"], store["embedding_model"], query)
        except NoEmbedding as error:
            raise _Passed(passed(error.heard)) from error
        except WrongVector as error:
            raise Fault(409, f"{error}: the model has changed", param="query") from error
        except NoStore as error:
            raise _unknown(store["id"]) from error

    async def _any_model(self) -> str:
        reply = await self._engine.asker.get("/v1/models")
        rows = orjson.loads(reply.body).get("data", []) if reply.status == 200 else []
        names = [row["id"] for row in rows if row.get("type") == int(ModelType.EMBEDDING)]
        if not names:
            reason = "no embedding model is known: name one as `embedding_model`"
            raise Fault(400, reason, param="embedding_model")
        return str(min(names))

    async def _found(self, id_: str) -> dict[str, Any]:
        store = await self._run(lambda: self._store.find(id_))
        if store is None:
            raise _unknown(id_)
        return store

    async def _member(self, id_: str, file: str) -> dict[str, Any]:
        for member in await self._run(lambda: self._store.members(id_)):
            if member["id"] == file:
                return member
        raise Fault(404, f"no file of this store is called {file[:100]!r}", param="file_id")

    async def _named(self, ids: object) -> list[tuple[str, str]]:
        files = []
        for id_ in ids if isinstance(ids, list) else [ids]:
            file = await self._run(partial(self._engine.files.table.find, str(id_)))
            if file is None:
                raise Fault(400, f"no file is called {str(id_)[:100]!r}", param="file_id")
            files.append((file["id"], file["filename"]))
        return files

    async def _join(self, id_: str, ids: list[Any], fields: Mapping[str, Any], batch: str) -> None:
        attributes, chunk = (
            fields.get("attributes") or {},
            _chunking(fields.get("chunking_strategy")),
        )
        if not isinstance(attributes, dict) or len(attributes) > 16:
            raise Fault(400, "`attributes` has up to 16 values", param="attributes")
        files, now = await self._named(ids), int(self._wall())
        await self._run(lambda: self._store.join(id_, files, now, attributes, chunk, batch))
        self._engine.wake()

    async def _batch(self, store: str, id_: str) -> web.Response:
        members = await self._run(lambda: self._store.members(store, id_))
        if not members:
            raise Fault(404, f"no batch of files is called {id_[:100]!r}", param="batch_id")
        counts = await self._run(lambda: self._store.counts_of_batch(id_))
        status = "in_progress" if counts["in_progress"] else "completed"
        if counts["cancelled"]:
            status = "cancelled"
        return as_json(
            {
                "id": id_,
                "object": "vector_store.files_batch",
                "created_at": members[0]["created_at"],
                "vector_store_id": store,
                "status": status,
                "file_counts": counts,
            }
        )


class _Passed(web.HTTPException):
    """The node's answer in place of embeddings, passed on to the caller."""

    def __init__(self, response: web.Response) -> None:
        self.status_code = response.status
        after = response.headers.get("retry-after")
        super().__init__(
            text=(response.body or b"").decode() if isinstance(response.body, bytes) else "",
            content_type="application/json",
            headers={"retry-after": after} if after else None,
        )


def _unknown(id_: str) -> Fault:
    return Fault(404, f"no vector store is called {id_[:100]!r}", param="id")


def _about(fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    name, metadata = fields.get("name") or "", fields.get("metadata") or {}
    if not isinstance(name, str) or len(name) > 256:
        raise Fault(400, "`name` is a text of up to 256 characters", param="name")
    if not isinstance(metadata, dict) or len(metadata) > 16:
        raise Fault(400, "`metadata` has up to 16 texts", param="metadata")
    return name, metadata


def _chunking(strategy: object) -> tuple[int, int]:
    match strategy:
        case None | {"type": "auto"}:
            return AUTO
        case {
            "type": "static",
            "static": {"max_chunk_size_tokens": int(size), "chunk_overlap_tokens": int(overlap)},
        }:
            if 100 <= size <= MAX_CHUNK and 0 <= overlap <= size // 2:
                return size, overlap
    reason = f"chunks have 100 to {MAX_CHUNK:,} tokens, and share half of that at most"
    raise Fault(400, reason, param="chunking_strategy")


def fits(attributes: Mapping[str, Any], by: object, depth: int = 0) -> bool:
    """Return whether a file with these attributes passes a filter of a search; raise `Fault` for an invalid filter."""
    match by:
        case None:
            return True
        case {"type": "and" | "or" as kind, "filters": list(several)} if depth < _DEEPEST_FILTER:
            verdicts = [fits(attributes, inner, depth + 1) for inner in several]
            return all(verdicts) if kind == "and" else any(verdicts)
        case {"type": str(kind), "key": str(key), "value": value} if kind in _COMPARED:
            try:
                return _COMPARED[kind](attributes.get(key), value)
            except TypeError:
                return False
    reason = "a filter has a `type`, and `key` and `value`, or `filters`"
    raise Fault(400, reason, param="filters")


def _row(match: FoundText) -> dict[str, Any]:
    return {
        "file_id": match.file,
        "filename": match.name,
        "score": match.score,
        "attributes": match.attributes,
        "content": [{"type": "text", "text": match.text}],
    }
