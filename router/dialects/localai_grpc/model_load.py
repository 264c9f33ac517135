"""Loading of models at LocalAI backends whose operator set load options: one process has one model.

A backend is told to load before its first request, after a new connection, and after it has loaded another model. If a request
fails, it is told again, once per connection: neither the error's text nor, at many backends, a health check shows the cause.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from registry.task_group import BackgroundTasks
from router.dialects.localai_grpc.files import LockFile
from router.errors import WorkerBusy, WorkerError, WorkerFailed, WorkerLoading
from router.rpc.call import Channels
from router.rpc.failures import RpcFailed
from router.rpc.messages import LOCALAI, methods_of
from router.settings import RouterSettings
from router.worker_description import count_of
from router.workers import Option, Worker

log = logging.getLogger("modelvine.router")

MAX_BACKENDS = 4_096
"""Backends that are remembered; beyond that the unused ones are forgotten, which costs each one more load."""

_METHODS = methods_of(LOCALAI)
_LOAD = _METHODS["LoadModel"]
# Failures due to the caller, the worker's load or its protocol: loading a model does not mend them.
_NOT_MENDED = frozenset(
    {
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "INVALID_ARGUMENT",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    }
)
_BUSY, _READY = 1, 2
_ROUNDS = 4  # times that another model is found loaded before a request gives up
_POLL = 0.05
_FLASH = "FlashAttention"
_OFF = frozenset({"off", "false", "no", "0", "disabled", "none"})

_Load = tuple[str, str]
"""A loaded model: the worker's own name for it, and its options."""

_Outcome = WorkerError | None


@dataclass(slots=True)
class _Process:
    """One backend: what was loaded there last, over which connection, and how many of this process's requests are there now.

    `record` is the id of that load in the lock file shared with other processes, `since` when the connection was made.

    `tried` are the loads that were repeated after a failure and did not help. `loads` counts all successful loads. `turn` is
    held by the request that waits for the running ones to finish; later requests queue for it.
    """

    shared: LockFile
    loaded: _Load | None = None
    record: str = ""
    connection: object = None
    since: float = 0.0
    tried: set[_Load] = field(default_factory=set)
    loads: int = 0
    users: int = 0
    loading: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def used(self) -> bool:
        """Whether a request is there or waits, or a load is under way."""
        return self.users > 0 or self.loading or self.turn.locked()


class ModelHold:
    """A model that stays loaded as long as a request needs it; see `ModelLoader.hold_model`."""

    def __init__(self, process: _Process, worker: Worker, metadata: Mapping[str, str]) -> None:
        self.worker = worker
        self.metadata = metadata
        self.wanted: _Load = (worker.own_model, worker.load)
        self.loads = 0
        self.reloaded = False
        self._process = process
        self._is_entered = False

    def enter(self) -> None:
        """Count the request as one that uses the model."""
        self._process.users += 1
        self._process.left.clear()
        self._is_entered, self.loads = True, self._process.loads

    def leave(self) -> None:
        """Stop counting the request. The last one to leave wakes the waiting request and releases the lock."""
        self._process.users -= self._is_entered
        self._is_entered = False
        if not self._process.users:
            self._process.left.set()
            if not self._process.loading:
                self._process.shared.unlock()


class ModelLoader:
    """The models that the backends have loaded, as far as this process knows."""

    def __init__(
        self,
        channels: Channels,
        tasks: BackgroundTasks,
        settings: RouterSettings,
    ) -> None:
        """Have `tasks` run each load until it or the node ends: the request that started it may be cancelled before."""
        self._channels = channels
        self._tasks = tasks
        self._settings = settings
        self._processes: dict[str, _Process] = {}

    def is_loading(self, api: str) -> bool:
        """Return whether a backend is loading a model for this process."""
        process = self._processes.get(api)
        return process is not None and process.loading

    @asynccontextmanager
    async def hold_model(
        self, worker: Worker, metadata: Mapping[str, str]
    ) -> AsyncIterator[ModelHold]:
        """Have a worker's model loaded, and keep it loaded while this context is open; raise a `WorkerError`.

        A request for another model at the same backend waits until the running ones have finished, then has its own loaded.
        """
        process = self._process(worker.api)
        hold = ModelHold(process, worker, metadata)
        if process.loading:
            raise WorkerLoading
        try:
            async with self._turn(process):
                await self._ensure_loaded(process, hold)
            yield hold
        finally:
            hold.leave()
        if hold.reloaded:
            # The reload helped, so it may be tried again: only loads that do not help are not repeated.
            process.tried.discard(hold.wanted)

    async def try_reload(self, hold: ModelHold, failed: RpcFailed) -> bool:
        """Return whether a failed request should be sent again because its model was reloaded; raise a `WorkerError`.

        An error's text is no evidence that no model is loaded: each connection gets one more load for each model.
        """
        process, worker = self._process(hold.worker.api), hold.worker
        if not worker.load or failed.code in _NOT_MENDED or hold.reloaded:
            return False
        if failed.code == "UNAVAILABLE" and not await self._is_same_connection(process, hold):
            # A backend that hung up may have died of the request.
            return False
        if not await self._may_reload_help(process, hold):
            return False
        hold.leave()
        hold.reloaded = True
        async with self._turn(process):
            if process.loads == hold.loads and hold.wanted not in process.tried:
                if not process.users and not process.shared.lock_shared():
                    raise WorkerLoading
                reason = failed.describe(failed.code)
                log.warning("the worker at %s is reloading its model: %s", worker.api, reason)
                process.tried.add(hold.wanted)
                process.loaded, process.record = None, process.shared.write()
            before = hold.loads
            await self._ensure_loaded(process, hold)
        return process.loads != before

    def _process(self, api: str) -> _Process:
        process = self._processes.get(api)
        if process is None:
            if len(self._processes) >= MAX_BACKENDS:
                self._processes = {a: p for a, p in self._processes.items() if p.used}
            process = self._processes[api] = _Process(LockFile(api))
        return process

    @asynccontextmanager
    async def _turn(self, process: _Process) -> AsyncIterator[None]:
        """Hold the turn to check what is loaded; requests get it in order of arrival. Raise `WorkerLoading` or `WorkerBusy`."""
        try:
            async with asyncio.timeout(self._settings.queue_timeout):
                await process.turn.acquire()
        except TimeoutError as error:
            raise (WorkerLoading() if process.loading else _busy_error()) from error
        try:
            yield
        finally:
            process.turn.release()

    async def _ensure_loaded(self, process: _Process, hold: ModelHold) -> None:
        """Have the model that a request wants loaded, and let the request in."""
        if process.loading:
            raise WorkerLoading
        try:
            for _ in range(_ROUNDS):
                await self._refresh_loaded(process, hold)
                if _is_wanted(process.loaded, hold):
                    hold.enter()
                    return
                if not hold.worker.load:
                    raise WorkerFailed("this node loaded another model at the worker's address")
                await self._wait_until_unused(process)
                if await self._lock_exclusively(process, hold):
                    await self._load(process, hold)
        finally:
            if not process.users and not process.loading:
                process.shared.unlock()
        raise _busy_error()

    async def _refresh_loaded(self, process: _Process, hold: ModelHold) -> None:
        """Find out what is loaded: a new connection may lead to a new backend process, and other local processes load too."""
        connection = await self._channels.connection(hold.worker.api)
        if connection is not process.connection:
            process.connection, process.loaded, process.since = connection, None, time.time()
            process.tried.clear()
        if process.users:
            return
        if not process.shared.lock_shared(makes=bool(hold.worker.load)):
            raise WorkerLoading
        record = process.shared.read()
        if record.id != process.record:
            current = record.model and record.at > process.since
            process.loaded = (record.model, record.load) if current else None
            process.record = record.id

    async def _lock_exclusively(self, process: _Process, hold: ModelHold) -> bool:
        """Take the exclusive lock and return true; return false if another process already uses the wanted model there."""
        until = time.monotonic() + self._settings.queue_timeout
        while not process.shared.lock_exclusive():
            if process.shared.lock_shared():
                record = process.shared.read()
                if (record.model, record.load) == hold.wanted:
                    process.loaded, process.record = hold.wanted, record.id
                    return False
                process.shared.unlock()
            if time.monotonic() > until:
                raise _busy_error()
            await asyncio.sleep(_POLL)
        return True

    async def _wait_until_unused(self, process: _Process) -> None:
        """Wait until no request of this process is there; raise `WorkerBusy`."""
        try:
            async with asyncio.timeout(self._settings.queue_timeout):
                while process.users:
                    await process.left.wait()
        except TimeoutError as error:
            raise _busy_error() from error

    async def _load(self, process: _Process, hold: ModelHold) -> None:
        message = model_options(hold.worker)
        process.loading, process.loaded, process.record = True, None, process.shared.write()
        # The first request may be cancelled or time out: the load goes on for the others.
        failed = await asyncio.shield(self._tasks.spawn(self._run_load(process, hold, message)))
        if failed is not None:
            raise failed

    async def _run_load(self, process: _Process, hold: ModelHold, message: Any) -> _Outcome:
        try:
            failed = await self._send_load(hold, message)
            if failed is None:
                process.loaded = hold.wanted
                process.record = process.shared.write(*hold.wanted, time.time())
                process.loads += 1
            return failed
        finally:
            process.loading = False
            process.shared.unlock()

    async def _send_load(self, hold: ModelHold, message: Any) -> _Outcome:
        api, within = hold.worker.api, self._settings.total_timeout
        try:
            reply = await self._channels.ask(api, _LOAD, message, hold.metadata, within=within)
        except RpcFailed as failed:
            return failed.as_error("LoadModel")
        except WorkerError as failed:
            return failed
        if reply.success:
            return None
        return RpcFailed("OK", reply.message).as_error("LoadModel")

    async def _is_same_connection(self, process: _Process, hold: ModelHold) -> bool:
        """Return whether the connection is still the one over which a request failed."""
        try:
            return await self._channels.connection(hold.worker.api) is process.connection
        except WorkerError:
            return False

    async def _may_reload_help(self, process: _Process, hold: ModelHold) -> bool:
        """Return whether to load again, or to wait for a load under way; not for a backend that is gone or has its model."""
        if process.loads != hold.loads or process.loaded is None:
            return True
        if hold.wanted in process.tried:
            return False
        health, status = _METHODS["Health"], _METHODS["Status"]
        api, metadata = hold.worker.api, hold.metadata
        try:
            await self._channels.send_probe(api, health, health.request_class(), metadata)
        except RpcFailed as failed:
            if failed.code == "UNAVAILABLE":
                return False
        try:
            report = await self._channels.send_probe(api, status, status.request_class(), metadata)
        except RpcFailed:
            return True
        return report is None or report.state not in (_BUSY, _READY)


def _busy_error() -> WorkerBusy:
    return WorkerBusy("the worker's process is busy with another model")


def _is_wanted(loaded: _Load | None, hold: ModelHold) -> bool:
    """Return whether the loaded model is the wanted one; a worker without load options accepts its model as it is."""
    if hold.worker.load:
        return loaded == hold.wanted
    return loaded is None or loaded[0] == hold.wanted[0]


def model_options(worker: Worker) -> Any:
    """Return a worker's options as `ModelOptions`, ignoring case, `_` and `-` in names; raise `WorkerFailed` for any other."""
    message = _LOAD.request_class()
    fields = {_plain(name): name for name in _LOAD.request_class.DESCRIPTOR.fields_by_name}
    for option, value in worker.load_options.items():
        name = fields.get(_plain(option))
        if name is None:
            raise WorkerFailed(f"the load option {option[:64]!r} is unknown to LocalAI")
        try:
            _set(message, name, value)
        except (AttributeError, TypeError, ValueError) as error:
            raise WorkerFailed(f"the load option {option[:64]!r} has a wrong value") from error
    if not message.Model:
        message.Model = worker.own_model
    return message


def context_of(worker: Worker) -> int:
    """Return the context size with which the model is loaded, 0 if that is left to the backend."""
    sizes = (v for name, v in worker.load_options.items() if _plain(name) == "contextsize")
    return count_of(next(sizes, 0))


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _set(message: Any, name: str, value: Option) -> None:
    if name == _FLASH:
        _set_both(message, value)
    elif isinstance(value, list):
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)


def _set_both(message: Any, value: Option) -> None:
    """Set the option as a bool and as a string: newer servers read the latter, and each ignores what it does not know."""
    text = value if isinstance(value, str) else "on" if value else "off"
    message.FlashAttention = text.lower() not in _OFF
    number = message.DESCRIPTOR.fields_by_name[_FLASH].number
    tag = number << 3 | 2
    encoded = text.encode()[:64]
    message.MergeFromString(bytes([tag & 0x7F | 0x80, tag >> 7, len(encoded)]) + encoded)
