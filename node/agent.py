"""What an operator can have this node do: register and unregister models. One use case a method.

The order of effects is: durable on disk, then in the local table, then announced, then answered. Nothing is
half-registered: what does not fit the record, or cannot be saved, changes nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import orjson
from pydantic import TypeAdapter, ValidationError

from registry.records import Service
from registry.service import Registry
from registry.store import Change, Delete, Put, Space, Store
from router.workers import Worker, Workers

log = logging.getLogger("modelvine.agent")

_WORKER = TypeAdapter(Worker)


class Agent:
    """This node's workers, and what the world is told of them."""

    def __init__(self, registry: Registry, store: Store) -> None:
        self._registry = registry
        self._store = store
        self._changing = asyncio.Lock()
        self._listeners: list[Callable[[Workers], Awaitable[None]]] = []
        self.workers = Workers()
        registry.saving.also(lambda: _difference(Workers(), self.workers))

    def on_change(self, listener: Callable[[Workers], Awaitable[None]]) -> None:
        """Have `listener` told of the workers whenever they change; a change is done when it returns, and it raises nothing."""
        self._listeners.append(listener)

    async def restore(self) -> None:
        """Load the workers of the last run; raise `StoreUnavailable`."""
        rows = await self._store.read(Space.WORKERS)
        self.workers = Workers.of(worker for row in rows.values() for worker in _thaw(row))

    async def register_project(self, project: str, workers: Sequence[Worker]) -> None:
        """Make `workers` the whole list of a project here; raise `LimitReached` or `StoreUnavailable`."""
        await self._change(lambda now: [*_others(now, project), *workers])
        log.info("registered project %s with %d models", project, len(workers))

    async def register_model(self, worker: Worker) -> None:
        """Add or replace one worker; raise `LimitReached` or `StoreUnavailable`."""
        await self._change(lambda now: [*now, worker])
        log.info("registered %s", _name(worker.service))

    async def unregister_project(self, project: str) -> bool:
        """Remove every worker of a project; return whether there was one; raise `StoreUnavailable`."""
        removed = await self._change(lambda now: _others(now, project))
        log.info("unregistered project %s with %d models", project, removed)
        return removed > 0

    async def unregister_model(self, project: str, model: str, cid: str) -> bool:
        """Remove one worker; return whether there was one; raise `StoreUnavailable`."""
        key = project, model, cid
        removed = await self._change(lambda now: [w for w in now if w.key != key])
        log.info("unregistered %s/%s, %d replicas", project, model, removed)
        return removed > 0

    async def _change(self, change: Callable[[Workers], Iterable[Worker]]) -> int:
        """Replace the table by what `change` makes of it; return how many workers are gone."""
        async with self._changing:
            before, after = self.workers, Workers.of(change(self.workers))
            changes = [*_difference(before, after)]
            if changes:
                services = after.services()
                self._registry.fits(services)
                await self._registry.saving.write(changes, undo=_difference(after, before))
                self.workers = after
                await self._registry.announce(services)
                for listener in self._listeners:
                    await listener(after)
            return len(before.by_key.keys() - after.by_key.keys())


def _others(workers: Workers, project: str) -> list[Worker]:
    return [worker for worker in workers if worker.service.project != project]


def _difference(before: Workers, after: Workers) -> Iterable[Change]:
    for key, worker in after.by_key.items():
        if before.by_key.get(key) != worker:
            yield Put(Space.WORKERS, _row(key), _WORKER.dump_json(worker))
    for key in before.by_key.keys() - after.by_key.keys():
        yield Delete(Space.WORKERS, _row(key))


def _row(key: tuple[str, str, str]) -> str:
    return orjson.dumps(key).decode()


def _thaw(row: bytes) -> Iterable[Worker]:
    try:
        yield _WORKER.validate_json(row)
    except ValidationError:
        # Left in the store: a newer version may have written it, and may want it back.
        log.warning("ignored a worker in the store that this version cannot read")


def _name(service: Service) -> str:
    return f"{service.project}/{service.model}" + (f" ({service.cid})" if service.cid else "")
