"""Comparison with peers (anti-entropy): runs `registry.sync` over the mesh, a few comparisons at a time."""

import asyncio
import logging
from collections import Counter

from registry import sync
from registry.admission import LIE, Admission
from registry.clock import Clock, RandomSource
from registry.effects import Performer
from registry.errors import InvalidFrame, MeshError
from registry.intake.rate import RateLimit
from registry.members.liveness import Evidence
from registry.mesh import Mesh
from registry.records import PeerId, Version
from registry.replica import Replica
from registry.settings import RegistrySettings

log = logging.getLogger("modelvine.registry")

# A peer that is slow to answer must not hold up the others.
_AT_ONCE = 4
_WAITING = 256

REFRESH = 1.0
"""Minimum seconds between two comparisons about one node because a request found our copy of its record outdated."""

FETCHES_PER_SECOND, FETCHES_AT_ONCE = 1.0, 5.0
"""Comparisons with one connected node for newer records that it claims; all other nodes together share one such limit."""

_ANYONE = ""


class Comparison:
    """Makes our registry and those of connected peers equal."""

    def __init__(
        self,
        replica: Replica,
        mesh: Mesh,
        admission: Admission,
        settings: RegistrySettings,
        *,
        now: Clock,
        random: RandomSource,
        performer: Performer,
        counters: Counter[str],
    ) -> None:
        self._replica = replica
        self._mesh = mesh
        self._admission = admission
        self._settings = settings
        self._now = now
        self._random = random
        self._performer = performer
        self._counters = counters
        self._queue: asyncio.Queue[PeerId] = asyncio.Queue(maxsize=_WAITING)
        self._queued: set[PeerId] = set()
        self._claims: dict[PeerId, Version] = {}
        self._refresh_limit = RateLimit(rate=1 / REFRESH, burst=1)
        self._fetch_limit = RateLimit(rate=FETCHES_PER_SECOND, burst=FETCHES_AT_ONCE)
        self._read_lock = asyncio.Lock()

    def schedule(self, peer: PeerId) -> None:
        """Compare with a peer soon."""
        # A full queue means that comparisons are under way already; one of them will do.
        if peer not in self._queued and not self._queue.full():
            self._queued.add(peer)
            self._queue.put_nowait(peer)

    def fetch_record(self, node: PeerId, claimed: Version) -> None:
        """Fetch a record that a node claims to have published; a flood of claims causes a few comparisons a second."""
        connected = node in self._peers()
        if self._fetch_limit.allows(node if connected else _ANYONE, self._now()):
            self._schedule_for(node)
            # A claim of a node that is not connected is not the fault of the peer that is asked instead.
            if connected and node in self._queued:
                self._claims[node] = claimed

    def refresh_record(self, node: PeerId) -> None:
        """Fetch a node's record because a request found our copy outdated, at most once a second for each node."""
        if self._refresh_limit.allows(node, self._now()):
            self._schedule_for(node)

    def _schedule_for(self, node: PeerId) -> None:
        """Compare with the node itself if it is connected, otherwise with a random peer."""
        connected = self._peers()
        if node in connected:
            self.schedule(node)
        elif connected:
            self.schedule(connected[int(self._random() * len(connected))])

    def _peers(self) -> list[PeerId]:
        return [connection.peer for connection in self._mesh.connections()]

    async def run(self) -> None:
        """Compare periodically, and with each peer that is wanted, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._compare_periodically())
            for _ in range(_AT_ONCE):
                group.create_task(self._compare_queued())

    async def _compare_periodically(self) -> None:
        while True:
            before = self._counters["syncs"]
            await asyncio.sleep(self._settings.sync * (0.5 + self._random()))
            peers = self._mesh.connections()
            # Probes compare too, so a comparison may have been made already.
            if peers and self._counters["syncs"] == before:
                self.schedule(peers[int(self._random() * len(peers))].peer)

    async def _compare_queued(self) -> None:
        while True:
            peer = await self._queue.get()
            self._queued.discard(peer)
            claimed = self._claims.pop(peer, None)
            try:
                await self._compare(peer)
                self._check_claim(peer, claimed)
            except InvalidFrame as error:
                self._counters["syncs_failed"] += 1
                log.debug("invalid answer of %s: %s", peer, error)
                await self._admission.note_offence(peer, weight=LIE)
            except MeshError as error:
                self._counters["syncs_failed"] += 1
                log.debug("comparing with %s failed: %s", peer, error)
            else:
                self._counters["syncs"] += 1

    def _check_claim(self, peer: PeerId, claimed: Version | None) -> None:
        signed = self._replica.catalog.held.get(peer)
        # Without a place for the record the claim cannot be checked.
        unplaced = signed is None and not self._replica.room_for_strangers(None, self._now())
        if claimed is None or unplaced:
            return
        if signed is None or signed.record.version < claimed:
            raise InvalidFrame("it does not have the version that it claims")

    async def _compare(self, peer: PeerId) -> None:
        exchange = sync.compare(self._replica, self._now, peer)
        step = next(exchange)
        while True:
            await self._performer.perform(step.effects)
            timeout, asked_at = self._settings.ask_timeout, self._now()
            reply = await self._mesh.ask(peer, step.question, timeout=timeout)
            effects = self._replica.observe(peer, Evidence.ANSWERED, self._now(), asked_at=asked_at)
            await self._performer.perform(effects)
            # One at a time, and the event loop runs in between: reading a long listing takes some 15 ms.
            async with self._read_lock:
                await asyncio.sleep(0)
                try:
                    step = exchange.send(reply)
                except StopIteration as done:
                    await self._performer.perform(done.value)
                    return
