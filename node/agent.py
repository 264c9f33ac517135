"""Agent: registers and unregisters models for an operator. One use case a method.

The order of effects is: durable on disk, then in the local table, then announced, then answered. Nothing is half-registered: a
change that does not fit the record, or cannot be saved, has no effect. What workers report about themselves fills in what the
operator left out; it is announced with the rest, and queried again rather than stored.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import orjson
from pydantic import TypeAdapter, ValidationError

from registry.clock import Clock
from registry.errors import LimitReached
from registry.records import Key, ModelType, Service
from registry.service import Registry
from registry.store import Change, Delete, Put, Space, Store
from router.dialects.openai_http.endpoints import mark_single_endpoint
from router.worker_description import WorkerDescription, complete_worker
from router.workers import Worker, Workers

log = logging.getLogger("modelvine.agent")

_WORKER = TypeAdapter(Worker)

Reports = Mapping[Worker, WorkerDescription]
"""Workers' reports about themselves, by worker as registered."""

_NOTHING: Reports = MappingProxyType({})


class Agent:
    """This node's workers: `registered` as the operator gave them, `workers` as announced, with their own reports added."""

    def __init__(self, registry: Registry, store: Store, wall: Clock = time.time) -> None:
        """`wall` returns Unix time."""
        self._registry = registry
        self._wall = wall
        self._store = store
        self._change_lock = asyncio.Lock()
        self._listeners: list[Callable[[Workers], Awaitable[None]]] = []
        self.registered = self.workers = Workers()
        self._described: dict[Key, tuple[Worker, Worker]] = {}
        """Workers as registered, and with their own reports added, where these add anything."""
        registry.persistence.add_source(lambda: _difference(Workers(), self.registered))

    def on_change(self, listener: Callable[[Workers], Awaitable[None]]) -> None:
        """Call `listener` with the workers whenever they change; the change is complete when it returns. It must not raise."""
        self._listeners.append(listener)

    async def restore(self) -> None:
        """Load the workers of the last run; raise `StoreUnavailable`."""
        rows = await self._store.read(Space.WORKERS)
        parsed = [(name, worker) for name, row in rows.items() for worker in _parse_row(name, row)]
        self.registered = self.workers = self._table(worker for _, worker in parsed)
        # Rows of older versions lack the time, and have other names, since their replicas had one type each.
        current = {_row(worker.key): _WORKER.dump_json(worker) for worker in self.registered}
        old = [Delete(Space.WORKERS, name) for name, _ in parsed if name not in current]
        new = [
            Put(Space.WORKERS, name, row) for name, row in current.items() if row != rows.get(name)
        ]
        if old or new:
            await self._store.write(*new, *old)

    def _table(self, workers: Iterable[Worker]) -> Workers:
        """Return a table in which each worker has the time of its first registration."""
        return Workers.of(map(self._with_created, workers))

    def _with_created(self, worker: Worker) -> Worker:
        if worker.service.created:
            return worker
        before = self.registered.by_key.get(worker.key)
        created = before.service.created if before else int(self._wall())
        return replace(worker, service=replace(worker.service, created=created))

    async def register_project(
        self, project: str, workers: Sequence[Worker], reports: Reports = _NOTHING
    ) -> None:
        """Make `workers` the whole list of a project here; raise `LimitReached` or `StoreUnavailable`."""
        await self._change(lambda now: [*_others(now, project), *workers], reports)
        log.info("registered project %s with %d models", project, len(workers))

    async def register_model(self, worker: Worker, reports: Reports = _NOTHING) -> None:
        """Add or replace one worker; raise `LimitReached` or `StoreUnavailable`."""
        await self._change(lambda now: [*now, worker], reports)
        log.info("registered %s", _name(worker.service))

    async def unregister_project(self, project: str) -> bool:
        """Remove every worker of a project; return whether there was one; raise `StoreUnavailable`."""
        removed = await self._change(lambda now: _others(now, project))
        log.info("unregistered project %s with %d models", project, removed)
        return removed > 0

    async def unregister_model(
        self, project: str, model: str, cid: str, kind: ModelType | None = None
    ) -> bool:
        """Remove one replica, of all its types or of one; return whether there was one; raise `StoreUnavailable`."""
        kinds = ModelType if kind is None else (kind,)
        keys = {(project, model, cid, one) for one in kinds}
        removed = await self._change(lambda now: [w for w in now if w.key not in keys])
        log.info("unregistered %s/%s, %d replicas", project, model, removed)
        return removed > 0

    async def update_reports(self, reports: Reports) -> None:
        """Take in new reports of workers about themselves."""
        try:
            await self._change(lambda now: now, reports)
        except LimitReached as error:
            log.warning("what workers report about themselves is not announced: %s", error)

    async def _change(
        self, change: Callable[[Workers], Iterable[Worker]], reports: Reports = _NOTHING
    ) -> int:
        """Replace the table by the result of `change`; return how many workers were removed."""
        async with self._change_lock:
            before, after = self.registered, self._table(change(self.registered))
            described = self._with_reports(after, reports)
            workers = (
                Workers.of(described.get(w.key, (w, w))[1] for w in after) if described else after
            )
            changes = [*_difference(before, after)]
            if changes or workers != self.workers:
                services = workers.services()
                self._registry.require_fit(services)
                if changes:
                    await self._registry.persistence.write(changes, undo=_difference(after, before))
                self.registered, self.workers = after, workers
                self._described = described
                await self._registry.announce(services)
                for listener in self._listeners:
                    await listener(workers)
            return len(before.by_key.keys() - after.by_key.keys())

    def _with_reports(self, workers: Workers, reports: Reports) -> dict[Key, tuple[Worker, Worker]]:
        """Return the workers whose reports, now or earlier, add to what was registered."""
        now = {
            w.key: (w, complete_worker(w, reports[w].model_of(w))) for w in workers if w in reports
        }
        return {
            key: (registered, described)
            for key, (registered, described) in {**self._described, **now}.items()
            if registered != described and workers.by_key.get(key) == registered
        }


def _others(workers: Workers, project: str) -> list[Worker]:
    return [worker for worker in workers if worker.service.project != project]


def _difference(before: Workers, after: Workers) -> Iterable[Change]:
    for key, worker in after.by_key.items():
        if before.by_key.get(key) != worker:
            yield Put(Space.WORKERS, _row(key), _WORKER.dump_json(worker))
    for key in before.by_key.keys() - after.by_key.keys():
        yield Delete(Space.WORKERS, _row(key))


def _row(key: Key) -> str:
    return orjson.dumps(key).decode()


def _parse_row(name: str, row: bytes) -> Iterable[Worker]:
    try:
        yield mark_single_endpoint(_WORKER.validate_json(row))
    except ValidationError:
        # The row stays in the store: a newer version may have written it, and may need it again.
        log.warning(
            "ignored the worker %s in the store, which cannot be read: register it again", name
        )


def _name(service: Service) -> str:
    return f"{service.project}/{service.model}" + (f" ({service.cid})" if service.cid else "")
