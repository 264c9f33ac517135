"""Stub Llama Stack 0.0.1 server for all services but `/inference`, written from the specification. It does no work."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web
from pydantic import ValidationError

from tests.workers.llama_stack_schema import ANSWERS, BODIES
from tests.workers.openai_worker import Received
from tests.workers.serving import served

TODAY = datetime(2026, 1, 2, tzinfo=UTC).isoformat()
MADE, ADAPTER = "job-1.adapter", b"weights"
"""The result of each fine-tuning: a file's id and its content."""
STEP = {
    "id": "s1",
    "role": "assistant",
    "stepType": "assistant_response",
    "messages": [{"text": "A vine."}],
    "timestamp": TODAY,
}
WHOLE: Mapping[str, object] = {
    "/reward_scoring": {"id": "r1", "score": 0.5},
    "POST /agents/execute": {
        "id": "t1", "steps": [STEP], "startTime": TODAY, "endTime": TODAY, "status": "completed",
    },
    "GET /agents/execute": [{"text": "It grows."}],
    "/quantize": {"model": "small"},
    "/vector_store": {"id": "v1"},
    "/vector_store/create": {"id": "v1", "name": "notes"},
    "/vector_store/update": {"id": "v1", "name": "notes"},
    "/vector_store/drop": {"id": "v1"},
}  # fmt: skip


class Services:
    """The running server. `received` is what reached it; `going_on` lets the tail of a log end."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[Received] = []
        self.methods: list[str] = []
        self.jobs: dict[str, str] = {}
        self.going_on = asyncio.Event()
        self.status = 200
        self.dies = False

    @property
    def asked(self) -> Any:
        """The body of the last request."""
        return orjson.loads(self.received[-1].body)

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Answer one request, or refuse it if it is not as in the specification."""
        body = await http.read()
        self.received.append(Received(http.path_qs, http.headers, body))
        self.methods.append(http.method)
        if self.dies and http.transport is not None:
            http.transport.abort()
            return web.Response()
        if self.status != 200:
            return web.json_response({"message": "not now"}, status=self.status)
        if objection := _objection(http, body):
            return web.json_response({"message": objection}, status=422)
        if "/jobs/" in http.path:
            return await self._job(http, body)
        if http.path == f"/v1/files/{MADE}/content":
            return web.Response(body=ADAPTER, content_type="application/octet-stream")
        answer = WHOLE.get(http.path) or WHOLE.get(f"{http.method} {http.path}")
        return web.json_response(answer) if answer else web.Response(status=404)

    async def _job(self, http: web.Request, body: bytes) -> web.StreamResponse:
        service, _, action = http.path.partition("/jobs/")
        vectors = service.startswith("/vector_store")
        fields = dict(http.query) | (orjson.loads(body) if body else {})
        field = "id" if vectors else "job_id"
        if action == "submit":
            id_ = f"job {len(self.jobs) + 1}"
            self.jobs[id_] = "running"
        else:
            id_ = fields.get(field, "")
            if not id_:
                return web.json_response({"message": f"{field} is needed"}, status=422)
            if id_ not in self.jobs:
                return web.json_response({"message": "no such job"}, status=404)
        if action == "cancel":
            self.jobs[id_] = "cancelled" if service == "/fine_tuning" else "failed"
        if action == "tail":
            return await self._tail(http)
        if vectors:
            return web.json_response({"id": id_, "content": "x"})
        made = {"checkpoints": [f"/v1/files/{MADE}/content"]} if service == "/fine_tuning" else {}
        return web.json_response(
            {"job_id": id_, "created": TODAY, "status": self.jobs[id_], **made}
        )

    async def _tail(self, http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(http)
        for message in ("begun", "ended"):
            line = {"logs": [{"message": message, "timestamp": TODAY}]}
            await response.write(orjson.dumps(line) + b"\n")
            await self.going_on.wait()
        await response.write_eof()
        return response


def _objection(http: web.Request, body: bytes) -> str:
    """Return how a request violates the specification, or an empty text."""
    if http.method == "GET" and http.path == "/agents/execute" and "bankIds" not in http.query:
        return "bankIds is needed"
    schema = BODIES.get(http.path) if http.method == "POST" else None
    try:
        if schema:
            schema.validate_json(body)
    except ValidationError as error:
        return str(error)
    return ""


async def _lacking(_: web.Request) -> web.Response:
    return web.json_response({"message": "no messages"}, status=422)


@asynccontextmanager
async def running() -> AsyncIterator[Services]:
    """Run a server on a free port of loopback."""
    services = Services()
    app = web.Application()
    for path in {path.rpartition(" ")[2] for path in (*ANSWERS, *BODIES)}:
        app.router.add_route("*", path, services.handle)
    app.router.add_route("*", "/v1/files/{id}/content", services.handle)
    app.router.add_route("*", "/inference", _lacking)
    async with served(app) as services.url:
        yield services
