"""Supervisor of helpers in the first process: it starts them, tells them all that changes, and starts those anew that end.

A listener of a helper stays open here as well. While nobody else serves it, before a helper is ready and after one has died, its
connections are taken in here, so none is lost.
"""

import asyncio
import logging
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import node
from node.auth.key_table import KeyTable
from node.auth.quotas import QuotaStanding
from node.listeners import Listener
from node.observe.aggregate import Whole
from node.processes.protocol import (
    Forgotten,
    KeysHeld,
    LoadHeard,
    QuotaStandings,
    Seen,
    Table,
    Told,
    Welcome,
)
from node.processes.session import HelperSession, Offices
from registry.records import Load, PeerId, Service
from router.workers import Workers

log = logging.getLogger("modelvine.processes")

PERIOD = 0.25
"""Seconds between two questions to a helper how it is: so old is at most what the node says of its helpers' load."""

READY_WITHIN = 20.0
"""Seconds that a node waits for its helpers before it says that it serves; then it serves without them meanwhile."""

LEAVE_WITHIN = 5.0
"""Seconds that helpers get to end."""

STARTS_WITHIN = 60.0
"""Seconds that a helper may take to its first answer: a slow machine reads the whole program from a cold disk."""

END_WITHIN = 1.0
"""Seconds that a helper gets for its last lines of the log, once it is cut off."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
# A helper that lived for so long did not die of its start.
_LIVED = 30.0


@dataclass(eq=False, slots=True)
class Post:
    """Where one helper serves: its listeners, of which this process holds copies."""

    http: socket.socket
    link: socket.socket
    session: HelperSession | None = None
    copies: list[tuple[Listener, socket.socket]] = field(default_factory=list)


class Helpers:
    """The helpers of a node."""

    def __init__(
        self,
        posts: Sequence[Post],
        *,
        first_word: Welcome,
        offices: Offices,
        workers: Callable[[], Workers],
        keys: Callable[[], KeyTable],
        served: tuple[Listener, Listener],
        whole: Whole,
    ) -> None:
        """`served` are the public application and that for other nodes, which stand in where a helper is missing."""
        self._posts = posts
        self._first_word = first_word
        self._offices = offices
        self._workers = workers
        self._keys = keys
        self._served = served
        self._whole = whole
        self._told: dict[PeerId, bytes] = {}
        self._leaving = asyncio.Event()

    async def run(self) -> None:
        """Keep every post manned until `leave`."""
        async with asyncio.TaskGroup() as group:
            for post in self._posts:
                group.create_task(self._man(post))

    async def ready(self) -> None:
        """Wait until all serve, at most `READY_WITHIN` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_WITHIN):
                while not all(post.session and post.session.ready.is_set() for post in self._posts):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                return
        log.warning("not all helper processes are ready; this process serves meanwhile")

    async def register(self, workers: Workers) -> None:
        """Tell all helpers which workers there are, and return when they know."""
        sessions = self._sessions()
        for session in sessions:
            session.tell(Table(tuple(workers)))
        asked = (session.ask() for session in sessions)
        # Who does not answer is ended by whoever watches it.
        await asyncio.gather(*asked, return_exceptions=True)

    def keys_changed(self, table: KeyTable) -> None:
        """Tell all helpers which keys there are."""
        for session in self._sessions():
            session.tell(KeysHeld(table.keys, table.rules))

    def standings(self, standings: tuple[QuotaStanding, ...]) -> None:
        """Tell all helpers how keys stand."""
        for session in self._sessions():
            session.tell(QuotaStandings(standings))

    def changed(self, nodes: Iterable[PeerId]) -> None:
        """Tell all helpers what these nodes are to us now, and what they signed."""
        for each in nodes:
            word = self._word_of(each)
            for session in self._sessions():
                session.tell(word)

    def heard(self, node_id: PeerId, loads: Mapping[Service, Load]) -> None:
        """Tell all helpers how busy a node says that its replicas are."""
        word = LoadHeard(node_id, tuple(loads.items()))
        for session in self._sessions():
            session.tell(word)

    async def leave(self) -> None:
        """Have all end. Who comes from now on is served by this process alone."""
        self._leaving.set()
        for post in self._posts:
            post.http.close()
            post.link.close()
        for session in self._sessions():
            session.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_WITHIN):
                await asyncio.gather(*(s.gone.wait() for s in self._sessions()))

    # How.

    def _sessions(self) -> list[HelperSession]:
        return [post.session for post in self._posts if post.session is not None]

    async def _man(self, post: Post) -> None:
        clock = asyncio.get_running_loop().time
        pause = _FIRST_PAUSE
        while not self._leaving.is_set():
            began = clock()
            await self._stand_in(post)
            code = await self._one_life(post)
            if self._leaving.is_set():
                return
            if clock() - began > _LIVED:
                pause = _FIRST_PAUSE
            log.warning("a helper process ended with code %d; it restarts in %.1f s", code, pause)
            await self._stand_in(post)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _one_life(self, post: Post) -> int:
        session = HelperSession(self._offices)
        process = await _spawn(post, session)
        post.session = session
        self._whole.join(session)
        try:
            self._inform(session)
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch(session))
                relief = group.create_task(self._relieve(post, session))
                await session.ended()
                watch.cancel()
                relief.cancel()
        finally:
            post.session = None
            self._whole.part(session)
            await session.end()
            code = await _ended(process)
            session.gone.set()
        return code

    async def _watch(self, session: HelperSession) -> None:
        """Ask a helper how it is, time and again; cut off one that does not say it."""
        try:
            await session.ask(within=STARTS_WITHIN)
            while True:
                busy = self._whole.busy().items()
                session.beside = {s: load.in_flight - session.part_of(s) for s, load in busy}
                await session.ask()
                await asyncio.sleep(PERIOD)
        except TimeoutError:
            log.error("a helper process is stuck, and is ended")  # noqa: TRY400 (a sentence for the operator)
            await session.end()
        except ConnectionError:
            return

    async def _relieve(self, post: Post, session: HelperSession) -> None:
        await session.ready.wait()
        for served, copy in post.copies:
            served.off(copy)
        post.copies.clear()

    async def _stand_in(self, post: Post) -> None:
        """Serve where a helper should."""
        if post.copies or self._leaving.is_set():
            return
        for served, listener in zip(self._served, (post.http, post.link), strict=True):
            copy = listener.dup()
            await served.on(copy)
            post.copies.append((served, copy))

    def _inform(self, session: HelperSession) -> None:
        session.tell(self._first_word)
        session.tell(Table(tuple(self._workers())))
        table = self._keys()
        session.tell(KeysHeld(table.keys, table.rules))
        registry = self._offices.registry
        for node_id, held in registry.catalog.held.items():
            session.tell(Seen(node_id, registry.presence(node_id), held.frame))

    def _word_of(self, node_id: PeerId) -> Told:
        registry = self._offices.registry
        held = registry.catalog.held.get(node_id)
        if held is None:
            self._told.pop(node_id, None)
            return Forgotten(node_id)
        news = self._told.get(node_id) is not held.frame
        self._told[node_id] = held.frame
        return Seen(node_id, registry.presence(node_id), held.frame if news else b"")


async def _spawn(post: Post, session: HelperSession) -> Process:
    """Start a helper's process. It inherits four descriptors and nothing else."""
    ours, theirs = socket.socketpair()
    doors, their_doors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, their_doors:
        descriptors = [end.fileno() for end in (theirs, their_doors, post.http, post.link)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # The working directory is no place to find modules in.
            *("-P", "-m", "node.processes", *map(str, descriptors)),
            pass_fds=descriptors,
            stdin=DEVNULL,
            stdout=DEVNULL,
            env={**os.environ, "PYTHONPATH": _path()},
        )
    await session.begin(ours, doors)
    return process


async def _ended(process: Process) -> int:
    """Return a helper's exit code; one that does not end by itself is ended."""
    try:
        async with asyncio.timeout(END_WITHIN):
            return await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()


def _path() -> str:
    own = str(Path(node.__file__).parent.parent)
    return os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
