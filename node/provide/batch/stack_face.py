"""HTTP face for jobs of Llama Stack 0.0.1 on the engine of batches: rewards, synthetic data, and inference on files.

A `Path` of type `filepath` is a file in the provider's own folder `inbox`; `uri` names one of its files.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from node.provide.asker import Asker
from node.provide.batch import synthetic
from node.provide.batch.engine import MAX_LINES, BatchEngine
from node.provide.batch.lines import MAX_LINE_BYTES
from node.provide.face import Fault, as_json, object_of, passed
from node.provide.file_face import MAX_FILE_BYTES
from node.provide.files import new_id, write_file
from node.provide.rewards import Unscored, scored
from registry.clock import Clock
from router.errors import BadRequest, WorkerUnable
from router.services import llama_stack_values as values

LASTS = 86_400
"""Seconds after which a job expires."""

CHAT = "/v1/chat/completions"


class StackFace:
    """Handlers for jobs. `inbox` is the only folder from which files are read by path."""

    def __init__(self, engine: BatchEngine, asker: Asker, inbox: Path, wall: Clock) -> None:
        self._engine = engine
        self._store = engine.store
        self._asker = asker
        self._run = engine.files.run_in_thread
        self._inbox = inbox
        self._wall = wall

    def routes(self) -> list[web.RouteDef]:
        """Return the HTTP routes."""
        jobs = {
            "batch_inference": (CHAT, self.infer),
            "batch_reward_scoring": (synthetic.SCORING, self.score_all),
            "synthetic_data_gen": (synthetic.ENDPOINT, self.generate),
        }
        routes = [web.post(synthetic.SCORING, self.score)]
        for name, (endpoint, submit) in jobs.items():
            path = f"/{name}/jobs"
            routes += [
                web.post(f"{path}/submit", submit),
                web.get(f"{path}/status", partial(self.status, endpoint)),
                web.post(f"{path}/cancel", partial(self.cancel, endpoint)),
            ]
        return routes

    async def score(self, http: web.Request) -> web.Response:
        """Score one pair."""
        return passed(await scored(self._asker, await object_of(http)))

    async def infer(self, http: web.Request) -> web.Response:
        """Create a job of chats."""
        fields = await object_of(http)
        content = await self._content(_path(fields, "prompt_file_path"), "prompt_file_path")
        with _told():
            lines = values.batch_lines(content, fields)
        return await self._begin(CHAT, [lines], fields.get("metadata"))

    async def score_all(self, http: web.Request) -> web.Response:
        """Create a job of scores."""
        fields = await object_of(http)
        with _told():
            synthetic.check_function(fields.get("scoring_function"))
        name = "prompt_with_response_path"
        content = await self._content(_path(fields, name), name)
        shared = {
            "reward": fields.get("reward_model"),
            "scoring_function": fields["scoring_function"],
        }
        rows = _lines(content, synthetic.SCORING, "prompt_with_response", shared)
        return await self._begin(synthetic.SCORING, rows, fields.get("metadata"))

    async def generate(self, http: web.Request) -> web.Response:
        """Create a job of synthetic data."""
        fields = await object_of(http)
        with _told():
            synthetic.check(fields)
        path = fields.get("prompt_file_path")
        if not isinstance(path, str):
            raise Fault(400, "`prompt_file_path` is a path", param="prompt_file_path")
        kind = "uri" if path.startswith("/v1/files/") or "://" in path else "filepath"
        content = await self._content({"value": path, "type": kind}, "prompt_file_path")
        names = (
            "model",
            "options",
            "num_generations",
            "reward_model",
            "scoring_function",
            "filtering_function",
        )
        shared = {name: fields[name] for name in names if fields.get(name) is not None}
        rows = _lines(content, synthetic.ENDPOINT, "messages", shared)
        return await self._begin(synthetic.ENDPOINT, rows, fields.get("metadata"))

    async def status(self, endpoint: str, http: web.Request) -> web.Response:
        """Show a job."""
        return as_json(_shown(await self._job(endpoint, http.query.get("job_id"))))

    async def cancel(self, endpoint: str, http: web.Request) -> web.Response:
        """Cancel a job."""
        job = await self._job(endpoint, (await object_of(http)).get("job_id"))
        await self._run(lambda: self._store.cancel(job["id"], int(self._wall())))
        self._engine.wake()
        return as_json(_shown(await self._job(endpoint, job["id"])))

    async def _job(self, endpoint: str, id_: object) -> dict[str, Any]:
        job = await self._run(lambda: self._store.batch(str(id_)))
        if job is None or job["endpoint"] != endpoint:
            raise Fault(404, f"no job is called {str(id_)[:100]!r}", param="job_id")
        return job

    async def _content(self, source: Mapping[str, object], name: str) -> bytes:
        """Return the bytes that a `Path` refers to; raise `Fault`."""
        if source["type"] == "filepath":
            return await self._run(lambda: self._read(str(source["value"]), name))
        with _told():
            file = values.file_of(source)
            if not file:
                return values.raw_bytes(source, name)
        file_row = await self._run(lambda: self._engine.files.table.find(file))
        if file_row is None:
            raise Fault(400, f"`{name}` names no file of this service", param=name)
        return await self._run(lambda: self._engine.files.fetch(file_row["id"]).read_bytes())

    def _read(self, relative: str, name: str) -> bytes:
        """Return a file of the inbox; a path that leads elsewhere is refused before it is accessed."""
        inbox = self._inbox.resolve()
        try:
            path = (inbox / relative).resolve()
            if not path.is_relative_to(inbox) or not path.is_file():
                raise Fault(400, f"`{name}`: no such file in {self._inbox.name}/", param=name)
            if path.stat().st_size > MAX_FILE_BYTES:
                raise Fault(413, f"a file has at most {MAX_FILE_BYTES:,} bytes here", param=name)
            return path.read_bytes()
        except (ValueError, RuntimeError) as error:
            raise Fault(400, f"`{name}` is no path", param=name) from error

    async def _begin(
        self, endpoint: str, rows: Iterator[bytes] | list[bytes], metadata: object
    ) -> web.Response:
        if metadata is not None and not isinstance(metadata, dict):
            raise Fault(400, "`metadata` is an object", param="metadata")
        files, now = self._engine.files, int(self._wall())
        await files.require_room(0)
        file, id_ = new_id("file-"), new_id("batch_")

        def keep() -> dict[str, Any]:
            path = files.path(file)
            if not write_file(path, rows):
                path.touch()
            files.add(file, now, "lines.jsonl", "batch")
            fields = {
                "input_file_id": file,
                "endpoint": endpoint,
                "completion_window": "24h",
                "metadata": metadata,
                "errors": None,
                "output_file_id": None,
                "error_file_id": None,
            }
            self._store.add_batch(id_, now, now + LASTS, fields)
            return self._store.batch(id_) or {}

        job = await self._run(keep)
        self._engine.wake()
        return as_json(_shown(job))


class _told:  # noqa: N801 (used as a function)
    """Context manager that turns errors in a request into `Fault`."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        if isinstance(failure, Unscored):
            error = orjson.loads(failure.heard.body)["error"]
            raise Fault(400, error["message"], param=error["param"]) from failure
        if isinstance(failure, BadRequest | WorkerUnable):
            raise Fault(400, str(failure), param=failure.param) from failure


def _path(fields: Mapping[str, object], name: str) -> Mapping[str, object]:
    with _told():
        return values.path(fields, name)


def _lines(content: bytes, url: str, field: str, shared: Mapping[str, object]) -> Iterator[bytes]:
    """Yield lines of messages as lines of a batch; an invalid line is kept, so that its error appears in the results."""
    for number, raw in enumerate(content.splitlines()[: MAX_LINES + 1], 1):
        try:
            payload = orjson.loads(raw[:MAX_LINE_BYTES]) if raw.strip() else None
        except orjson.JSONDecodeError:
            payload = None
        id_, messages = str(number), payload
        if isinstance(payload, dict):
            id_ = str(payload.get("custom_id", number))
            messages = payload.get(field) or payload.get("messages")
        row = raw
        if isinstance(messages, list):
            body = {**shared, field: messages}
            line = {"custom_id": id_, "method": "POST", "url": url, "body": body}
            # A line that is nested deeply can be read, but not written.
            with suppress(orjson.JSONEncodeError):
                row = orjson.dumps(line)
        if row.strip():
            yield row + b"\n"


def _shown(batch: Mapping[str, Any]) -> dict[str, object]:
    job = values.batch_job(batch)
    own_metadata = job.get("metadata")
    more = {
        **(batch.get("metadata") or {}),
        **(own_metadata if isinstance(own_metadata, dict) else {}),
    }
    if more:
        job["metadata"] = more
    if batch["endpoint"] == synthetic.ENDPOINT:
        # The specification of this endpoint has plain strings as paths.
        for name, value in job.items():
            if name.endswith("_path") and isinstance(value, dict):
                job[name] = value["value"]
    return job
