"""Comparison with peers (anti-entropy): carries `registry.sync` over the mesh, a few comparisons at one time."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from registry import sync
from registry.clock import Chance, Clock
from registry.effects import Effect
from registry.errors import InvalidFrame, MeshError
from registry.members.liveness import Evidence
from registry.mesh import Mesh
from registry.records import PeerId
from registry.replica import Replica
from registry.settings import RegistrySettings

log = logging.getLogger("modelvine.registry")

# A peer that is slow to answer must not hold up the others.
_AT_ONCE = 4
_WAITING = 256

REFRESH = 1.0
"""Seconds between two comparisons with one node that was found to be behind what we hold of it, at least."""

_REFRESHED = 1_024  # nodes whose last one is remembered


class Comparison:
    """Makes our registry and those of connected peers equal."""

    def __init__(
        self,
        replica: Replica,
        mesh: Mesh,
        settings: RegistrySettings,
        *,
        now: Clock,
        random: Chance,
        perform: Callable[[Sequence[Effect]], Awaitable[None]],
        offended: Callable[[PeerId], Awaitable[None]],
        counters: Counter[str],
    ) -> None:
        self._replica = replica
        self._mesh = mesh
        self._settings = settings
        self._now = now
        self._random = random
        self._perform = perform
        self._offended = offended
        self._counters = counters
        self._wanted: asyncio.Queue[PeerId] = asyncio.Queue(maxsize=_WAITING)
        self._waiting: set[PeerId] = set()
        self._refreshed: dict[PeerId, float] = {}
        self._reading = asyncio.Lock()

    def want(self, peer: PeerId) -> None:
        """Compare with a peer soon."""
        # A full queue means that comparisons are under way already; one of them will do.
        if peer not in self._waiting and not self._wanted.full():
            self._waiting.add(peer)
            self._wanted.put_nowait(peer)

    def want_word_of(self, node: PeerId) -> None:
        """Fetch a node's newer word: from itself where it is connected, else from anyone."""
        connected = [connection.peer for connection in self._mesh.connections()]
        if node in connected:
            self.want(node)
        elif connected:
            self.want(connected[int(self._random() * len(connected))])

    def refresh(self, node: PeerId) -> None:
        """Fetch a node's word because a request found ours to be behind, at most once a second for each node."""
        now = self._now()
        if now - self._refreshed.get(node, float("-inf")) < REFRESH:
            return
        self._refreshed.pop(node, None)
        if len(self._refreshed) >= _REFRESHED:
            del self._refreshed[next(iter(self._refreshed))]
        self._refreshed[node] = now
        self.want_word_of(node)

    async def run(self) -> None:
        """Compare now and then, and whenever somebody is wanted, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._now_and_then())
            for _ in range(_AT_ONCE):
                group.create_task(self._work())

    async def _now_and_then(self) -> None:
        while True:
            before = self._counters["syncs"]
            await asyncio.sleep(self._settings.sync * (0.5 + self._random()))
            peers = self._mesh.connections()
            # Probes compare too; what they have done need not be done again.
            if peers and self._counters["syncs"] == before:
                self.want(peers[int(self._random() * len(peers))].peer)

    async def _work(self) -> None:
        while True:
            peer = await self._wanted.get()
            self._waiting.discard(peer)
            try:
                await self._compare(peer)
            except InvalidFrame as error:
                self._counters["syncs_failed"] += 1
                log.debug("what %s answered makes no sense: %s", peer, error)
                await self._offended(peer)
            except MeshError as error:
                self._counters["syncs_failed"] += 1
                log.debug("comparing with %s failed: %s", peer, error)
            else:
                self._counters["syncs"] += 1

    async def _compare(self, peer: PeerId) -> None:
        exchange = sync.compare(self._replica, self._now, peer)
        step = next(exchange)
        while True:
            await self._perform(step.effects)
            timeout = self._settings.ask_timeout
            reply = await self._mesh.ask(peer, step.question, timeout=timeout)
            await self._perform(self._replica.observe(peer, Evidence.ANSWERED, self._now()))
            # One at a time, and the loop turns in between: to read a long listing takes some 15 ms.
            async with self._reading:
                await asyncio.sleep(0)
                try:
                    step = exchange.send(reply)
                except StopIteration as done:
                    await self._perform(done.value)
                    return
