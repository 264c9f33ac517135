"""Stub server of OpenAI's files, batches, fine-tuning jobs and vector stores. It stores its input, and does no work."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.workers.openai_worker import Received
from tests.workers.serving import served

NOW = 1_767_323_045
KINDS = {"batches": "batch", "jobs": "fine_tuning.job", "vector_stores": "vector_store"}


class Services:
    """The running server; `kept` holds its objects by kind and id."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[Received] = []
        self.kept: dict[str, dict[str, dict[str, Any]]] = {}
        self.contents: dict[str, bytes] = {}
        self.scores = "score"
        self.rewards: list[str] = []
        self._numbers = itertools.count(1)

    async def score(self, http: web.Request) -> web.Response:
        """Answer with a score in vLLM's form under the path named by `scores`; answer 404 under the other."""
        fields = await http.json()
        self.rewards.append(fields["model"])
        if http.path.rpartition("/")[2] != self.scores:
            return web.json_response({"detail": "Not Found"}, status=404)
        if self.scores == "score":
            assert (fields["text_1"], fields["text_2"]) == ("What grows?", "A vine.")
            return web.json_response({"id": "s", "data": [{"index": 0, "score": 0.25}]})
        return web.json_response({"id": "c", "data": [{"label": "good", "probs": [0.25, 0.75]}]})

    def keep(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Store an object under a new id."""
        entry = {"id": f"{kind}-{next(self._numbers)}", "created_at": NOW, **fields}
        self.kept.setdefault(kind, {})[entry["id"]] = entry
        return entry

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Answer one request."""
        form = "multipart" in http.content_type
        body = b"" if form else await http.read()
        self.received.append(Received(http.path_qs, http.headers, body))
        match [
            http.method,
            *http.path.removeprefix("/v1/").removeprefix("fine_tuning/").split("/"),
        ]:
            case ["POST", "files"]:
                posted = await http.post()
                content = posted["file"].file.read()
                file = self.keep("files", object="file", bytes=len(content), filename=posted["file"].filename,
                                 purpose=posted["purpose"], status="processed")  # fmt: skip
                self.contents[file["id"]] = content
                return web.json_response(file)
            case ["POST", kind]:
                fields = await http.json()
                state = {"status": "completed" if kind == "vector_stores" else "validating"}
                return web.json_response(self.keep(kind, object=KINDS[kind], **state, **fields))
            case ["GET", kind]:
                return web.json_response(self._listed(kind, http))
            case ["POST", "vector_stores", id_, "files" | "search"]:
                return web.json_response(self._in_store(id_, await http.json()))
            case [method, kind, id_, *rest]:
                return self._about(method, kind, id_, rest)
        return web.Response(status=404)

    def _in_store(self, id_: str, fields: dict[str, Any]) -> dict[str, Any]:
        if "file_id" in fields:
            more = {"vector_store_id": id_, "status": "completed", "usage_bytes": 1}
            return {
                "id": fields["file_id"],
                "object": "vector_store.file",
                "created_at": NOW,
                **more,
            }
        results = [
            {"file_id": f, "filename": "a", "score": 0.5, "content": []} for f in self.kept["files"]
        ]
        page = {
            "object": "vector_store.search_results.page",
            "search_query": ["a"],
            "data": results,
        }
        return {**page, "has_more": False, "next_page": None}

    def _about(self, method: str, kind: str, id_: str, rest: list[str]) -> web.Response:
        entry = self.kept.get(kind, {}).get(id_)
        if entry is None:
            error = {"message": f"no {kind} is called {id_}", "type": "invalid_request_error"}
            return web.json_response({"error": error}, status=404)
        match method, rest:
            case "GET", ["content"]:
                return web.Response(
                    body=self.contents[id_], content_type="application/octet-stream"
                )
            case "GET", ["events"]:
                event = {
                    "id": "e-1",
                    "object": "fine_tuning.job.event",
                    "created_at": NOW,
                    "level": "info",
                    "message": "begun",
                }
                return web.json_response({"object": "list", "data": [event], "has_more": False})
            case "POST", ["cancel"]:
                entry["status"] = "cancelling" if kind == "batches" else "cancelled"
            case "DELETE", []:
                del self.kept[kind][id_]
                return web.json_response({"id": id_, "object": f"{kind}.deleted", "deleted": True})
        return web.json_response(entry)

    def _listed(self, kind: str, http: web.Request) -> dict[str, Any]:
        ids = list(self.kept.get(kind, {}))
        after, limit = http.query.get("after"), int(http.query.get("limit", 20))
        begin = ids.index(after) + 1 if after else 0
        page = ids[begin : begin + limit]
        data = [self.kept[kind][id_] for id_ in page]
        return {
            "object": "list",
            "data": data,
            "first_id": page[0] if page else None,
            "last_id": page[-1] if page else None,
            "has_more": begin + limit < len(ids),
        }


async def _no_models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": []})


async def _description(_: web.Request) -> web.Response:
    return web.json_response({"openapi": "3.1.0", "paths": {"/score": {"post": {}}}})


@asynccontextmanager
async def running() -> AsyncIterator[Services]:
    """Run a server on a free port of loopback."""
    services = Services()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_get("/v1/models", _no_models)
    app.router.add_get("/openapi.json", _description)
    app.router.add_post("/v1/score", services.score)
    app.router.add_post("/classify", services.score)
    app.router.add_route("*", "/v1/{path:.*}", services.handle)
    async with served(app) as services.url:
        yield services
