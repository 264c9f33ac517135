"""Loads of models at LocalAI backends, where their operator said with which options: one process holds one model.

A backend is told to load before it is first asked, after it was connected to anew, when it has loaded another model since, and
once more for each connection when it fails: what it says then is the text of any exception, and many have no word for health.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from router.dialects.localai_grpc.lock_file import Shared
from router.errors import WorkerBusy, WorkerError, WorkerFailed, WorkerLoading
from router.rpc.call import Channels
from router.rpc.failures import RpcFailed
from router.rpc.messages import LOCALAI, methods_of
from router.settings import RouterSettings
from router.worker_description import count_of
from router.workers import Option, Worker

log = logging.getLogger("modelvine.router")

MAX_BACKENDS = 4_096
"""Backends that are remembered; beyond that those are forgotten which nobody uses, which costs each one more load."""

_METHODS = methods_of(LOCALAI)
_LOAD = _METHODS["LoadModel"]
# Of the caller, of the worker's load or of its protocol: no model that is loaded changes them.
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
_ROUNDS = 4  # loads of others between ours and our request, beyond which it is not waited for
_POLL = 0.05
_FLASH = "FlashAttention"
_OFF = frozenset({"off", "false", "no", "0", "disabled", "none"})

_Load = tuple[str, str]
"""What is loaded: the worker's own name for the model, and its options."""

_Outcome = WorkerError | None


@dataclass(slots=True)
class _Process:
    """One backend: what was loaded there last, over which connection, and how many requests of ours are there now.

    `record` is the id of that load in the file that we share with other processes, `since` when the connection was made.

    `tried` are the loads that were repeated after a failure and did not help. `loads` counts all of them. `turn` is held by
    whoever waits for the others to leave, and those who come later queue for it.
    """

    shared: Shared
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
        """Whether anybody is there, or on the way."""
        return self.users > 0 or self.loading or self.turn.locked()


class Hold:
    """A model that stays loaded as long as a request needs it; see `Loading.held`."""

    def __init__(self, process: _Process, worker: Worker, said: Mapping[str, str]) -> None:
        self.worker = worker
        self.said = said
        self.wanted: _Load = (worker.own_model, worker.load)
        self.loads = 0
        self.mended = False
        self._process = process
        self._inside = False

    def enter(self) -> None:
        """Take part."""
        self._process.users += 1
        self._process.left.clear()
        self._inside, self.loads = True, self._process.loads

    def leave(self) -> None:
        """Leave; whoever waits for that goes on."""
        self._process.users -= self._inside
        self._inside = False
        if not self._process.users:
            self._process.left.set()
            if not self._process.loading:
                self._process.shared.leave()


class Loading:
    """Which model each backend has loaded, as far as this process knows."""

    def __init__(
        self,
        channels: Channels,
        spawn: Callable[[Coroutine[Any, Any, _Outcome]], "asyncio.Task[_Outcome]"],
        settings: RouterSettings,
    ) -> None:
        """Let `spawn` run a load until it ends or the node does: whoever asked for it may leave before."""
        self._channels = channels
        self._spawn = spawn
        self._settings = settings
        self._processes: dict[str, _Process] = {}

    def busy(self, api: str) -> bool:
        """Say whether a backend is loading a model for us."""
        process = self._processes.get(api)
        return process is not None and process.loading

    @asynccontextmanager
    async def held(self, worker: Worker, said: Mapping[str, str]) -> AsyncIterator[Hold]:
        """Have a worker's model loaded, and see that it stays while this is open; raise a `WorkerError`.

        A request for another model at the same backend waits for those that run there, and then has its own loaded.
        """
        process = self._process(worker.api)
        hold = Hold(process, worker, said)
        if process.loading:
            raise WorkerLoading
        try:
            async with self._turn(process):
                await self._fit(process, hold)
            yield hold
        finally:
            hold.leave()
        if hold.mended:
            # It helped, so it may be tried again: only loads that do not help are not repeated.
            process.tried.discard(hold.wanted)

    async def mended(self, hold: Hold, failed: RpcFailed) -> bool:
        """Say whether a request that failed is worth asking again, for its model was loaded anew; raise a `WorkerError`.

        Nobody's text is believed to say that nothing is loaded: each connection has one load more for each model.
        """
        process, worker = self._process(hold.worker.api), hold.worker
        if not worker.load or failed.code in _NOT_MENDED or hold.mended:
            return False
        if failed.code == "UNAVAILABLE" and not await self._stands(process, hold):
            # Who hung up may have died of what it was asked.
            return False
        if not await self._may_help(process, hold):
            return False
        hold.leave()
        hold.mended = True
        async with self._turn(process):
            if process.loads == hold.loads and hold.wanted not in process.tried:
                if not process.users and not process.shared.enter():
                    raise WorkerLoading
                why = failed.told(failed.code)
                log.warning("the worker at %s is reloading its model: %s", worker.api, why)
                process.tried.add(hold.wanted)
                process.loaded, process.record = None, process.shared.write()
            before = hold.loads
            await self._fit(process, hold)
        return process.loads != before

    def _process(self, api: str) -> _Process:
        process = self._processes.get(api)
        if process is None:
            if len(self._processes) >= MAX_BACKENDS:
                self._processes = {a: p for a, p in self._processes.items() if p.used}
            process = self._processes[api] = _Process(Shared(api))
        return process

    @asynccontextmanager
    async def _turn(self, process: _Process) -> AsyncIterator[None]:
        """Be the only one who looks at what is loaded, in the order in which all came; raise `WorkerLoading` or `WorkerBusy`."""
        try:
            async with asyncio.timeout(self._settings.queue_timeout):
                await process.turn.acquire()
        except TimeoutError as error:
            raise (WorkerLoading() if process.loading else _taken()) from error
        try:
            yield
        finally:
            process.turn.release()

    async def _fit(self, process: _Process, hold: Hold) -> None:
        """Have the model loaded that a request wants, and let it in."""
        if process.loading:
            raise WorkerLoading
        try:
            for _ in range(_ROUNDS):
                await self._look(process, hold)
                if _fits(process.loaded, hold):
                    hold.enter()
                    return
                if not hold.worker.load:
                    raise WorkerFailed("this node loaded another model at the worker's address")
                await self._alone(process)
                if await self._taken_alone(process, hold):
                    await self._load(process, hold)
        finally:
            if not process.users and not process.loading:
                process.shared.leave()
        raise _taken()

    async def _look(self, process: _Process, hold: Hold) -> None:
        """See what is loaded: a new connection may lead to a new process, and other processes of ours may have loads, too."""
        connection = await self._channels.connection(hold.worker.api)
        if connection is not process.connection:
            process.connection, process.loaded, process.since = connection, None, time.time()
            process.tried.clear()
        if process.users:
            return
        if not process.shared.enter(makes=bool(hold.worker.load)):
            raise WorkerLoading
        told = process.shared.read()
        if told.id != process.record:
            known = told.model and told.at > process.since
            process.loaded = (told.model, told.load) if known else None
            process.record = told.id

    async def _taken_alone(self, process: _Process, hold: Hold) -> bool:
        """Say whether no other process of ours is there; where one is at work with the model that is wanted, that is loaded."""
        until = time.monotonic() + self._settings.queue_timeout
        while not process.shared.take():
            if process.shared.enter():
                told = process.shared.read()
                if (told.model, told.load) == hold.wanted:
                    process.loaded, process.record = hold.wanted, told.id
                    return False
                process.shared.leave()
            if time.monotonic() > until:
                raise _taken()
            await asyncio.sleep(_POLL)
        return True

    async def _alone(self, process: _Process) -> None:
        """Wait until nobody is there; raise `WorkerBusy`."""
        try:
            async with asyncio.timeout(self._settings.queue_timeout):
                while process.users:
                    await process.left.wait()
        except TimeoutError as error:
            raise _taken() from error

    async def _load(self, process: _Process, hold: Hold) -> None:
        message = options(hold.worker)
        process.loading, process.loaded, process.record = True, None, process.shared.write()
        # Whoever asked first may leave, or be too late: the model goes on being loaded for the others.
        failed = await asyncio.shield(self._spawn(self._loads(process, hold, message)))
        if failed is not None:
            raise failed

    async def _loads(self, process: _Process, hold: Hold, message: Any) -> _Outcome:
        try:
            failed = await self._told_to(hold, message)
            if failed is None:
                process.loaded = hold.wanted
                process.record = process.shared.write(*hold.wanted, time.time())
                process.loads += 1
            return failed
        finally:
            process.loading = False
            process.shared.leave()

    async def _told_to(self, hold: Hold, message: Any) -> _Outcome:
        api, within = hold.worker.api, self._settings.total_timeout
        try:
            told = await self._channels.ask(api, _LOAD, message, hold.said, within=within)
        except RpcFailed as failed:
            return failed.as_error("LoadModel")
        except WorkerError as failed:
            return failed
        if told.success:
            return None
        return RpcFailed("OK", told.message).as_error("LoadModel")

    async def _stands(self, process: _Process, hold: Hold) -> bool:
        """Whether the connection is the one over which a request failed."""
        try:
            return await self._channels.connection(hold.worker.api) is process.connection
        except WorkerError:
            return False

    async def _may_help(self, process: _Process, hold: Hold) -> bool:
        """Say whether to load again, or to wait for who does; a backend that is gone or has its model need not."""
        if process.loads != hold.loads or process.loaded is None:
            return True
        if hold.wanted in process.tried:
            return False
        health, status = _METHODS["Health"], _METHODS["Status"]
        api, said = hold.worker.api, hold.said
        try:
            await self._channels.glance(api, health, health.asked(), said)
        except RpcFailed as failed:
            if failed.code == "UNAVAILABLE":
                return False
        try:
            told = await self._channels.glance(api, status, status.asked(), said)
        except RpcFailed:
            return True
        return told is None or told.state not in (_BUSY, _READY)


def _taken() -> WorkerBusy:
    return WorkerBusy("the worker's process is busy with another model")


def _fits(loaded: _Load | None, hold: Hold) -> bool:
    """Whether what is loaded is what is wanted; who says no options takes its model as it is."""
    if hold.worker.load:
        return loaded == hold.wanted
    return loaded is None or loaded[0] == hold.wanted[0]


def options(worker: Worker) -> Any:
    """Return a worker's options as `ModelOptions`, named as there or in lower case; raise `WorkerFailed` for any other."""
    message = _LOAD.asked()
    fields = {_plain(name): name for name in _LOAD.asked.DESCRIPTOR.fields_by_name}
    for given, value in worker.load_options.items():
        name = fields.get(_plain(given))
        if name is None:
            raise WorkerFailed(f"the load option {given[:64]!r} is unknown to LocalAI")
        try:
            _set(message, name, value)
        except (AttributeError, TypeError, ValueError) as error:
            raise WorkerFailed(f"the load option {given[:64]!r} has a wrong value") from error
    if not message.Model:
        message.Model = worker.own_model
    return message


def context_of(worker: Worker) -> int:
    """Return how many tokens the model is loaded to read and write, 0 where that is left to the backend."""
    said = (v for name, v in worker.load_options.items() if _plain(name) == "contextsize")
    return count_of(next(said, 0))


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
    """Say it as a truth value and as a text: newer servers read the latter, and each passes over what it does not know."""
    text = value if isinstance(value, str) else "on" if value else "off"
    message.FlashAttention = text.lower() not in _OFF
    number = message.DESCRIPTOR.fields_by_name[_FLASH].number
    tag = number << 3 | 2
    said = text.encode()[:64]
    message.MergeFromString(bytes([tag & 0x7F | 0x80, tag >> 7, len(said)]) + said)
