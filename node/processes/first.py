"""Supervisor of helpers in the first process: it starts them, sends them all changes, and restarts those that end.

A helper's listeners stay open in this process as well. Before a helper is ready and after one has died, this process accepts
their connections, so none is lost.
"""

import asyncio
import logging
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import node
from node.agent import Agent
from node.assembly import NodeInputs, NodeParts, make_access
from node.auth.key_ring import KeyRing
from node.auth.key_table import KeyTable
from node.auth.keys import QuotaStanding
from node.auth.quota_sync import QuotaSync
from node.faces import Context
from node.faces.app import public_app
from node.listeners import Listener
from node.observe.aggregate import Aggregate
from node.processes.forward import ForwardedAccess
from node.processes.protocol import (
    Hello,
    KeysHeld,
    LoadHeard,
    NodeForgotten,
    NodeSeen,
    QuotaStandings,
    ToHelper,
    WorkersHeld,
)
from node.processes.session import HelperServices, HelperSession
from registry.records import Load, PeerId, Service
from router.workers import Workers

log = logging.getLogger("modelvine.processes")

PERIOD = 0.25
"""Seconds between two queries of a helper's state: the greatest age of the load that the node reports for its helpers."""

READY_WITHIN = 20.0
"""Seconds that a node waits for its helpers before it reports that it serves; after that it serves without them."""

LEAVE_WITHIN = 5.0
"""Seconds that helpers have to end."""

STARTS_WITHIN = 60.0
"""Seconds that a helper may take to its first answer: a slow machine reads the whole program from a cold disk."""

END_WITHIN = 1.0
"""Seconds that a helper has for its last log lines, once it is disconnected."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
# Seconds after which a helper's end is not taken for a failure to start.
_LIVED = 30.0


@dataclass(eq=False, slots=True)
class HelperListeners:
    """Listeners that one helper serves. This process holds them open too."""

    http: socket.socket
    link: socket.socket
    session: HelperSession | None = None
    copies: list[tuple[Listener, socket.socket]] = field(default_factory=list)


class Helpers:
    """The helpers of a node."""

    def __init__(
        self,
        posts: Sequence[HelperListeners],
        *,
        first_word: Hello,
        services: HelperServices,
        agent: Agent,
        keys: KeyRing,
        served: tuple[Listener, Listener],
        aggregate: Aggregate,
    ) -> None:
        """`served` are the listeners of the public application and of that for other nodes; they serve for a missing helper."""
        self._posts = posts
        self._first_word = first_word
        self._services = services
        self._agent = agent
        self._keys = keys
        self._listeners = served
        self._aggregate = aggregate
        self._sent_frames: dict[PeerId, bytes] = {}
        self._leaving = asyncio.Event()

    async def run(self) -> None:
        """Keep a helper running for each pair of listeners until `stop_accepting`."""
        async with asyncio.TaskGroup() as group:
            for post in self._posts:
                group.create_task(self._keep_running(post))

    async def ready(self) -> None:
        """Wait until all helpers serve, at most `READY_WITHIN` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_WITHIN):
                while not all(post.session and post.session.ready.is_set() for post in self._posts):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                return
        log.warning("not all helper processes are ready; this process serves meanwhile")

    async def send_workers(self, workers: Workers) -> None:
        """Send the workers to all helpers, and return when they have taken them in."""
        sessions = self._sessions()
        for session in sessions:
            session.send(WorkersHeld(tuple(workers)))
        queries = (session.ask() for session in sessions)
        # A helper that does not answer is ended by its `_watch`.
        await asyncio.gather(*queries, return_exceptions=True)

    def send_keys(self, table: KeyTable) -> None:
        """Send the keys to all helpers."""
        for session in self._sessions():
            session.send(KeysHeld(table.keys, table.rules))

    def send_standings(self, standings: tuple[QuotaStanding, ...]) -> None:
        """Send the standings of keys' quotas to all helpers."""
        for session in self._sessions():
            session.send(QuotaStandings(standings))

    def send_nodes(self, nodes: Iterable[PeerId]) -> None:
        """Send these nodes' presence and signed records to all helpers."""
        for each in nodes:
            message = self._node_message(each)
            for session in self._sessions():
                session.send(message)

    def send_load(self, node_id: PeerId, loads: Mapping[Service, Load]) -> None:
        """Send the load that a node reports of its replicas to all helpers."""
        message = LoadHeard(node_id, tuple(loads.items()))
        for session in self._sessions():
            session.send(message)

    def stop_accepting(self) -> None:
        """Have helpers accept no more connections of callers; one that dies is not replaced."""
        self._leaving.set()
        for post in self._posts:
            post.http.close()
        for session in self._sessions():
            session.request_exit(ends=False)

    async def stop(self) -> None:
        """End all helpers. This process alone serves connections from now on."""
        self.stop_accepting()
        for post in self._posts:
            post.link.close()
        for session in self._sessions():
            session.request_exit()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_WITHIN):
                await asyncio.gather(*(s.gone.wait() for s in self._sessions()))

    # Implementation.

    def _sessions(self) -> list[HelperSession]:
        return [post.session for post in self._posts if post.session is not None]

    async def _keep_running(self, post: HelperListeners) -> None:
        clock = asyncio.get_running_loop().time
        pause = _FIRST_PAUSE
        while not self._leaving.is_set():
            began = clock()
            await self._serve_meanwhile(post)
            code = await self._run_helper(post)
            if self._leaving.is_set():
                return
            if clock() - began > _LIVED:
                pause = _FIRST_PAUSE
            log.warning("a helper process ended with code %d; it restarts in %.1f s", code, pause)
            await self._serve_meanwhile(post)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _run_helper(self, post: HelperListeners) -> int:
        session = HelperSession(self._services)
        process = await _spawn(post, session)
        post.session = session
        self._aggregate.join(session)
        try:
            self._send_initial_state(session)
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch(session))
                relief = group.create_task(self._release_listeners(post, session))
                await session.wait_closed()
                watch.cancel()
                relief.cancel()
        finally:
            post.session = None
            self._aggregate.part(session)
            await session.end()
            code = await _wait_exit(process)
            session.gone.set()
        return code

    async def _watch(self, session: HelperSession) -> None:
        """Query a helper's state periodically; end one that does not answer."""
        try:
            await session.ask(within=STARTS_WITHIN)
            while True:
                busy = self._aggregate.busy_loads().items()
                session.other_requests = {
                    s: load.in_flight - session.requests_at(s) for s, load in busy
                }
                await session.ask()
                await asyncio.sleep(PERIOD)
        except TimeoutError:
            log.error("a helper process is stuck, and is ended")  # noqa: TRY400 (a sentence for the operator)
            await session.end()
        except ConnectionError:
            return

    async def _release_listeners(self, post: HelperListeners, session: HelperSession) -> None:
        await session.ready.wait()
        for served, copy in post.copies:
            served.stop_listening(copy)
        post.copies.clear()

    async def _serve_meanwhile(self, post: HelperListeners) -> None:
        """Serve a helper's listeners in this process."""
        if post.copies or self._leaving.is_set():
            return
        for served, listener in zip(self._listeners, (post.http, post.link), strict=True):
            copy = listener.dup()
            await served.listen_on(copy)
            post.copies.append((served, copy))

    def _send_initial_state(self, session: HelperSession) -> None:
        session.send(self._first_word)
        session.send(WorkersHeld(tuple(self._agent.workers)))
        table = self._keys.table
        session.send(KeysHeld(table.keys, table.rules))
        registry = self._services.registry
        for node_id, signed in registry.catalog.held.items():
            session.send(NodeSeen(node_id, registry.presence(node_id), signed.frame))

    def _node_message(self, node_id: PeerId) -> ToHelper:
        registry = self._services.registry
        signed = registry.catalog.held.get(node_id)
        if signed is None:
            self._sent_frames.pop(node_id, None)
            return NodeForgotten(node_id)
        news = self._sent_frames.get(node_id) is not signed.frame
        self._sent_frames[node_id] = signed.frame
        return NodeSeen(node_id, registry.presence(node_id), signed.frame if news else b"")


def helpers_of(
    inputs: NodeInputs,
    parts: NodeParts,
    context: Context,
    posts: Iterable[tuple[socket.socket, socket.socket]],
    served: tuple[Listener, Listener],
    sync: QuotaSync,
) -> Helpers:
    """Create a node's helpers, each with its two listeners, and tell them of every change."""
    registry, listening, aggregate = parts.registry, context.listening, context.aggregate
    forwarded = make_access(inputs, parts.keys, ForwardedAccess)
    helpers = Helpers(
        [HelperListeners(http, link) for http, link in posts],
        first_word=Hello(
            inputs.identity.seed, inputs.settings, listening.http, listening.link, inputs.grant
        ),
        services=HelperServices(
            registry=registry,
            lending=parts.router.lent_slots,
            peers=parts.peers,
            quotas=sync,
            usage=parts.usage.book,
            receipts=parts.receipts.book,
            metrics=parts.metrics,
            control=Listener(public_app(replace(context, access=forwarded))),
        ),
        agent=parts.agent,
        keys=parts.keys,
        served=served,
        aggregate=aggregate,
    )
    registry.on_change(helpers.send_nodes)
    registry.load_exchange.on_load(helpers.send_load)
    registry.load_exchange.set_source(aggregate.busy_loads)
    parts.agent.on_change(helpers.send_workers)
    parts.keys.on_change(helpers.send_keys)
    sync.on_standing(helpers.send_standings)
    return helpers


async def _spawn(post: HelperListeners, session: HelperSession) -> Process:
    """Start a helper's process. It inherits four descriptors and no others."""
    ours, theirs = socket.socketpair()
    doors, their_doors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, their_doors:
        descriptors = [end.fileno() for end in (theirs, their_doors, post.http, post.link)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # Keep the working directory off the module search path.
            *("-P", "-m", "node.processes", *map(str, descriptors)),
            pass_fds=descriptors,
            stdin=DEVNULL,
            stdout=DEVNULL,
            env={**os.environ, "PYTHONPATH": _path()},
        )
    await session.begin(ours, doors)
    return process


async def _wait_exit(process: Process) -> int:
    """Return a helper's exit code; kill a helper that does not end within `END_WITHIN` seconds."""
    try:
        async with asyncio.timeout(END_WITHIN):
            return await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()


def _path() -> str:
    root = str(Path(node.__file__).parent.parent)
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
