"""Engine of batches: it validates them, sends their lines to a node in the background, and writes their files of results.

A line is sent until it has a result or its batch is over. If the node or a worker is busy or unavailable, it is sent again later,
which counts as no attempt. A failure is retried a few times. An error in the line itself is its result.
"""

import asyncio
import logging
import traceback
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import orjson

from node.provide.asker import BUSY, Asker, NodeAnswer
from node.provide.batch import lines, synthetic
from node.provide.batch.lines import MAX_LINE_BYTES, BadLine, BatchLine
from node.provide.batch.store import LEASE, BatchStore, OpenLine
from node.provide.database import DatabaseError, Superseded
from node.provide.files import Files, write_file
from registry.clock import Clock

log = logging.getLogger("modelvine.provide")

MAX_LINES = 50_000
"""OpenAI's limit of a batch."""

MOST_ATTEMPTS = 5
"""Failures of a line, the last of which is its result."""

LONGEST_PAUSE = 60.0
"""Most seconds until a line is sent again."""

CHUNK, CHUNK_BYTES = 500, 8 * 1024 * 1024
"""Lines that are stored in one transaction, and their bytes."""

NOT_FOUND = 404

_FRESH = 1.0  # seconds for which a number of slots is cached
_IDLE = 0.5  # seconds between two checks for due work if nothing wakes the engine


@dataclass(frozen=True, slots=True)
class LineVerdict:
    """Verdict on one attempt: a result, or a pause in seconds before the next one; `counts` marks it as a failure."""

    result: bytes | None = None
    ok: bool = False
    pause: float = 0.0
    counts: bool = False


async def answer_to(asker: Asker, line: OpenLine, session: str = "") -> NodeAnswer:
    """Send a line's requests, one or several; lines of one `session` should be routed to the same cache."""
    if line.endpoint == synthetic.SCORING:
        return await synthetic.score(asker, orjson.loads(line.body))
    if line.endpoint == synthetic.ENDPOINT:
        return await synthetic.points_of(asker, orjson.loads(line.body), line.custom_id)
    return await asker.post(line.endpoint, line.body, session=session)


def judge(line: OpenLine, reply: NodeAnswer) -> LineVerdict:
    """Return the verdict on an answer to a line."""
    status = reply.status
    pause = min(2.0**line.attempts, LONGEST_PAUSE)
    if status in BUSY:
        delay = float(reply.after) if reply.after.isdecimal() else pause
        return LineVerdict(pause=min(max(delay, 1.0), LONGEST_PAUSE))
    if line.endpoint == synthetic.ENDPOINT and status == 200:
        return LineVerdict(reply.body, ok=True)
    id_ = f"{line.batch}_{line.number}"
    row = None
    try:
        payload: object = orjson.loads(reply.body)
        row = lines.answered(id_, line.custom_id, status, reply.request_id, payload)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        # What is nested deeply can be read, but not written.
        payload = None
    ok = 200 <= status <= 299 and isinstance(payload, dict)
    # A node that has just started may not know the model yet.
    final = 400 <= status <= 499 and status != NOT_FOUND
    if not (ok or final) and line.attempts + 1 < MOST_ATTEMPTS:
        return LineVerdict(pause=pause, counts=True)
    if payload is None or row is None:
        reason = f"status {status}, without JSON that can be stored"
        return LineVerdict(lines.failed(id_, line.custom_id, "invalid_answer", reason))
    return LineVerdict(row, ok)


async def verdict_on(asker: Asker, line: OpenLine, session: str) -> LineVerdict:
    """Send a line, and return the verdict on its answer; an error that nothing foresaw is the line's result."""
    try:
        return judge(line, await answer_to(asker, line, session))
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 (the outermost of one line: the other lines go on)
        # The class and the place alone: an exception's text may quote a prompt.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        origin = (type(error).__name__, frame.filename, frame.lineno)
        log.error("line %d of %s failed: %s at %s:%d", line.number, line.batch, *origin)  # noqa: TRY400
        reason = "the provider could not process this line; see its log"
        row = lines.failed(f"{line.batch}_{line.number}", line.custom_id, "internal_error", reason)
        return LineVerdict(row)


class BatchEngine:
    """All batches of one database."""

    def __init__(
        self,
        files: Files,
        store: BatchStore,
        *,
        node: str,
        concurrency: int,
        wall: Clock,
    ) -> None:
        self.files = files
        self.store = store
        self._node = node
        self._wall = wall
        self._concurrency = concurrency
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._chained: dict[tuple[str, int], tuple[str, str]] = {}
        self._slots: dict[tuple[str, str], int] = {}
        self._looked_at = 0.0
        self._wake = asyncio.Event()
        self._renewed_at = 0.0

    def wake(self) -> None:
        """Wake the engine: there may be work."""
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled; then drop the lines in flight, which are sent again at the next start."""
        async with Asker(self._node, background=True) as asker, asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                try:
                    # Send lines first, as a slot may be idle.
                    await self._ask_some(asker, group)
                    await self._advance()
                    await self._renew()
                except (DatabaseError, OSError) as error:
                    log.error("nothing can be stored now; retrying: %s", error)  # noqa: TRY400
                await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(_IDLE):
                await self._wake.wait()
        except TimeoutError:
            pass  # something may be due by now

    async def _advance(self) -> None:
        """Advance each batch that this provider has leased to its next state, if it is ready for it."""
        now = self._wall()
        for id_, status, expires in await self.files.run_in_thread(
            lambda: self.store.unfinished(now)
        ):
            try:
                await self._bring_on(id_, status, expired=now >= expires)
            except Superseded:
                log.warning("another provider has taken over batch %s", id_)

    async def _bring_on(self, id_: str, status: str, *, expired: bool) -> None:
        if status == "validating":
            await self.files.run_in_thread(partial(self._validate, id_))
            self._wake.set()
        elif status == "cancelling":
            await self._end(id_, "cancelled", "batch_cancelled", "the batch was cancelled")
        elif expired:
            await self._end(id_, "expired", "batch_expired", "the batch expired")
        elif status == "finalizing" or await self.files.run_in_thread(
            partial(self.store.is_answered, id_)
        ):
            await self._end(id_, "completed")

    async def _renew(self) -> None:
        """Renew the leases of the lines in flight, so that other providers do not take them."""
        now, keys = self._wall(), [*self._running]
        if keys and now - self._renewed_at >= LEASE / 3:
            await self.files.run_in_thread(lambda: self.store.renew(keys, now))
            self._renewed_at = now

    async def _ask_some(self, asker: Asker, group: asyncio.TaskGroup) -> None:
        """Lease and send lines one at a time while there is room: the next may begin like one in flight."""
        now = self._wall()
        while len(self._running) < await self._room(asker):
            leased = await self.files.run_in_thread(lambda: self.store.lease(now, 1))
            if not leased:
                return
            (line,) = leased
            key = (line.batch, line.number)
            session = ""
            if line.chain and (model := lines.model_with_cache(line.endpoint, line.body)):
                self._chained[key] = line.endpoint, model
                session = line.chain
            self._running[key] = group.create_task(self._ask(asker, line, session))

    async def _room(self, asker: Asker) -> int:
        """Return how many lines may be in flight.

        If lines share long prefixes, that is the number of slots at most: with more, the next line of a prefix would find the
        slot that has cached it in use by another line.
        """
        now, keys = self._wall(), {*self._chained.values()}
        if not 0 <= now - self._looked_at < _FRESH:
            self._looked_at = now
            self._slots.clear()
        for key in keys - self._slots.keys():
            self._slots[key] = await asker.slots(*key)
        slots = [self._slots[key] for key in keys]
        return min(self._concurrency, sum(slots)) if slots and all(slots) else self._concurrency

    async def _ask(self, asker: Asker, line: OpenLine, session: str) -> None:
        try:
            verdict = await verdict_on(asker, line, session)
            due = self._wall() + verdict.pause
            await self.files.run_in_thread(lambda: self._keep(line, verdict, due))
        except (DatabaseError, OSError) as error:
            # The line is still open, and will be sent again.
            log.error("a result could not be stored: %s", error)  # noqa: TRY400
        finally:
            self._running.pop((line.batch, line.number), None)
            self._chained.pop((line.batch, line.number), None)
            self._wake.set()

    # The methods below run in the thread, except `_end`.

    def _keep(self, line: OpenLine, verdict: LineVerdict, due: float) -> None:
        if verdict.result is not None:
            self.store.commit(line, verdict.result, ok=verdict.ok)
        else:
            self.store.put_off(line, due, counts=verdict.counts)

    def _validate(self, id_: str) -> None:
        batch = self.store.batch(id_)
        if batch is None:
            return
        self.store.reset(id_, self._wall())
        try:
            with self.files.fetch(batch["input_file_id"]).open("rb") as file:
                count = 0
                for chunk in _chunks(_rows(file)):
                    count += len(chunk)
                    if count > MAX_LINES:
                        break
                    self._fill(id_, chunk, batch["endpoint"])
        except OSError:
            count = 0
        if 0 < count <= MAX_LINES:
            self.store.stand(id_, "in_progress", int(self._wall()), was="validating")
            log.info("batch %s starts: %d lines", id_, count)
            return
        code, message = ("empty_file", "the input file has no lines, or is gone")
        if count:
            code, message = ("too_many_tasks", f"the input file has more than {MAX_LINES:,} lines")
        self.store.reset(id_, self._wall())
        fault = {"code": code, "message": message, "line": None, "param": None}
        errors = {"object": "list", "data": [fault]}
        self.store.stand(id_, "failed", int(self._wall()), was="validating", errors=errors)
        log.info("batch %s failed: %s", id_, message)

    def _fill(self, id_: str, chunk: Iterable[tuple[int, bytes]], endpoint: str) -> None:
        rows: list[BatchLine | tuple[int, str | None, bytes]] = []
        for number, raw in chunk:
            try:
                rows.append(lines.read(number, raw, endpoint))
            except BadLine as bad:
                row = lines.failed(f"{id_}_{number}", bad.custom_id, bad.code, str(bad))
                rows.append((number, bad.custom_id, row))
        for line in self.store.fill(id_, self._wall(), rows):
            message = f"line {line.number} repeats the custom_id of an earlier line"
            row = lines.failed(
                f"{id_}_{line.number}", line.custom_id, "duplicate_custom_id", message
            )
            self.store.fill(id_, self._wall(), [(line.number, line.custom_id, row)])

    async def _end(self, id_: str, status: str, code: str = "", message: str = "") -> None:
        """End a batch; its lines without a result get this error."""
        under_way = [task for (batch, _), task in self._running.items() if batch == id_]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self.files.run_in_thread(lambda: self._write(id_, status, code, message))

    def _write(self, id_: str, status: str, code: str, message: str) -> None:
        for number, custom_id in self.store.open_lines(id_):
            row = lines.failed(f"{id_}_{number}", custom_id, code, message)
            self.store.commit(OpenLine(id_, "", number, custom_id, b"", 0), row, ok=False)
        if status == "completed":
            self.store.stand(id_, "finalizing", int(self._wall()), was="in_progress")
        results: dict[str, Path] = {}
        for field, ok in (("output_file_id", True), ("error_file_id", False)):
            name = f"file-{id_.removeprefix('batch_')}-{'output' if ok else 'errors'}"
            path = self.files.path(name)
            if write_file(path, self.store.results(id_, ok=ok)):
                results[field] = path
        self.store.finish(id_, status, int(self._wall()), results)
        log.info(
            "batch %s is %s: %s", id_, status, (self.store.batch(id_) or {}).get("request_counts")
        )


def _rows(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers; of one that is too long, only the beginning."""
    if file.read(len(BOM_UTF8)) != BOM_UTF8:
        file.seek(0)
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        rest = raw
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES + 1)
        if raw.strip():
            yield number, raw


def _chunks(rows: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    chunk: list[tuple[int, bytes]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row[1])
        if len(chunk) >= CHUNK or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
