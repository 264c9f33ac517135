"""`/api/v1/examination`: a node's check of its own workers, store and neighbours, for operators.

All checks run concurrently and within seconds; `modelvine doctor` explains the results. `/api/v1/clock` of the link listener
tells other nodes this machine's time.
"""

import asyncio
import os
import platform
import resource
import time
from collections.abc import Awaitable, Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import orjson
from aiohttp import web

from node import __version__
from node.exposure import exposure_warning, surfaces
from node.faces import Context, Serving
from node.faces.errors import WrongParameter
from node.faces.request_ids import ID
from node.faces.request_reader import done, json_answer
from node.faces.v1 import recognise
from registry.errors import LimitReached, StoreUnavailable
from registry.members.liveness import Presence
from registry.records import PeerId
from registry.store import Put, Space
from router import dialects
from router.dialects import Recognition
from router.errors import WorkerError
from router.select.candidates import Candidate
from router.workers import Worker

CLOCK = "/api/v1/clock"
MAX_CLOCK_BYTES = 1024
MAX_WORKERS, MAX_PEERS = 64, 32
"""The most workers and other nodes that are checked; of more, the first ones."""

MOST_AHEAD = 1e9
"""The largest clock offset that is reported, in seconds: another node may answer with any number."""

AT_ONCE = 8
WORKER_SECONDS, PEER_SECONDS = 8.0, 5.0
"""Time limits of the check of one worker and of one other node, in seconds."""

_EXAMINED = "examined"
_LIVE = frozenset({Presence.ALIVE, Presence.UNREACHABLE, Presence.SUSPECT, Presence.DRAINING})

One = TypeVar("One")
Found = TypeVar("Found")


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""
    lock = asyncio.Lock()

    async def examination(request: web.Request) -> web.Response:
        context.access.check_change(request)
        async with lock:
            return await examined(request)

    async def examined(request: web.Request) -> web.Response:
        registry = context.registry
        peers = [
            peer
            for peer in registry.catalog.held
            if peer != context.peer and registry.presence(peer) in _LIVE
        ]

        async def peer(peer_id: PeerId) -> dict[str, Any]:
            return await _peer(context, peer_id, request[ID])

        store, workers, peer_rows = await asyncio.gather(
            _store(context),
            each(lambda worker: _worker(context, worker), [*context.agent.workers][:MAX_WORKERS]),
            each(peer, peers[:MAX_PEERS]),
        )
        relay = {"serves": context.settings.mesh.relay, **registry.mesh.relay_counts()}
        exposed = surfaces(context.settings, context.listening, registry.mesh.addresses())
        return done(
            process=_process(context),
            store=store,
            workers=workers,
            peers=peer_rows,
            relay=relay,
            exposed=exposure_warning(exposed),
            keys=len(context.keys.keys),
        )

    return [web.get("/api/v1/examination", examination)]


def link_routes(_: Serving) -> list[web.RouteDef]:
    """Return the routes for other nodes."""

    async def clock(_: web.Request) -> web.Response:
        return json_answer({"time": time.time()})

    return [web.get(CLOCK, clock)]


async def each(examine: Callable[[One], Awaitable[Found]], all_of: Iterable[One]) -> list[Found]:
    """Call `examine` for each item, `AT_ONCE` at a time, and return the results in the order of the items."""
    lock = asyncio.Semaphore(AT_ONCE)

    async def one(which: One) -> Found:
        async with lock:
            return await examine(which)

    return [*await asyncio.gather(*map(one, all_of))]


def _process(context: Context) -> dict[str, Any]:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len([*Path("/proc/self/fd").iterdir()])
    except OSError:
        used = 0
    return {
        "pid": os.getpid(),
        "version": __version__,
        "python": platform.python_version(),
        "libp2p": version("libp2p"),
        "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
        # A path need not be UTF-8, but JSON is.
        "data_dir": os.fsencode(Path(context.settings.node.data_dir).absolute()).decode(
            errors="replace"
        ),
        "open_files": used,
        "open_files_limit": limit,
        "connections": context.settings.web.connections,
        "user": os.geteuid(),
    }


async def _store(context: Context) -> dict[str, Any]:
    """Write a small value and read from the store: a store that can be read cannot always be written."""
    store, began = context.registry.persistence, time.monotonic()
    error = ""
    try:
        await store.write([Put(Space.SELF, _EXAMINED, b"%d" % time.time())], undo=())
        await store.read(Space.MARKS)
    except (StoreUnavailable, LimitReached) as failed:
        error = str(failed)
    seconds = round(time.monotonic() - began, 6)
    return {
        "kind": context.settings.node.store.partition(":")[0],
        "seconds": seconds,
        "error": error,
    }


async def _worker(context: Context, worker: Worker) -> dict[str, Any]:
    service = worker.service
    load = context.loads.load_of(worker)
    candidate = Candidate(context.peer, service, worker)
    circuit = context.router.condition(candidate)
    answers, attempts = False, list[tuple[str, Recognition]]()
    try:
        async with asyncio.timeout(WORKER_SECONDS):
            # A worker that is busy with this node's requests may answer nothing else until they are done.
            answers = await context.router.dialects[worker.dialect].alive(worker) or (
                load.in_flight > 0 and await context.router.check_alive(worker)
            )
            attempts = await _tries(context, worker, answers=answers)
    except (TimeoutError, WorkerError):
        pass
    return {
        "project": service.project,
        "model": service.model,
        "cid": service.cid,
        "type": int(service.type),
        # A query may contain a key.
        "api": worker.api.partition("?")[0],
        "dialect": worker.dialect,
        "answers": answers,
        "speaks": next(
            (name for name, recognition in attempts if recognition.said is not None), ""
        ),
        "tries": [f"{recognition.asked}: {recognition.came}" for _, recognition in attempts],
        "loads": any(recognition.waits for _, recognition in attempts),
        "health": context.router.health_of(worker),
        "circuit": circuit.circuit,
        "failures": circuit.failures,
        "retry_in": round(circuit.retry_in, 3),
        "in_flight": load.in_flight,
        "slots": load.slots or None,
        "learned": context.router.has_learnt_limit(service),
    }


async def _tries(
    context: Context, worker: Worker, *, answers: bool
) -> list[tuple[str, Recognition]]:
    """Try a worker's own dialect first, and the other dialects if it does not recognise a worker that `answers`."""
    spoken = context.router.dialects
    attempts = await dialects.recognise(spoken, [(worker.dialect, worker)])
    is_recognised = any(recognition.said or recognition.waits for _, recognition in attempts)
    if is_recognised or not attempts or not answers:
        return attempts
    _, _, rest = worker.api.partition("://")
    try:
        candidates = recognise.candidates({"api": rest.partition("/")[0]}, context.links.guard)
    except WrongParameter:
        return attempts
    other_dialects = [(name, other) for name, other in candidates if name != worker.dialect]
    return [*attempts, *await dialects.recognise(spoken, other_dialects)]


async def _peer(context: Context, peer: PeerId, request_id: str) -> dict[str, Any]:
    """Ask another node for its time, over the same link as requests."""
    held = context.registry.catalog.held.get(peer)
    row: dict[str, Any] = {
        "node": peer,
        "name": held.record.name if held else "",
        "state": context.registry.presence(peer),
        "answers": False,
        "route": "",
        "seconds": 0.0,
        "clock": None,
        "why": "",
    }
    headers = {**context.links.introduction, "x-request-id": request_id}
    try:
        async with asyncio.timeout(PEER_SECONDS), context.links.visit(peer) as link:
            # The first request on a connection includes the handshake, so it is not measured.
            await link.ask(CLOCK, headers, at_most=MAX_CLOCK_BYTES)
            asked_at, began = time.time(), time.monotonic()
            _, body = await link.ask(CLOCK, headers, at_most=MAX_CLOCK_BYTES)
            row["seconds"] = round(time.monotonic() - began, 6)
            row |= {"answers": True, "route": link.route}
            row["clock"] = offset(body, asked_at, row["seconds"])
    except TimeoutError:
        row["why"] = f"no answer within {PEER_SECONDS:g} s"
    except (OSError, WorkerError) as error:
        row["why"] = str(error) or type(error).__name__
    return row


def offset(body: bytes, asked_at: float, took: float) -> float | None:
    """Return the seconds by which another clock is ahead of this one, `None` if the answer `body` holds no time.

    `asked_at` is the Unix time of the request, `took` its round trip in seconds.
    """
    try:
        their_time = orjson.loads(body)["time"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    if not isinstance(their_time, float):
        return None
    # As in NTP, half of the round trip is taken for the way there, half for the way back.
    ahead = their_time - (asked_at + took / 2)
    return round(max(-MOST_AHEAD, min(ahead, MOST_AHEAD)), 6)
