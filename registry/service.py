"""The registry at work: performs a replica's effects, and feeds it frames, answers and time."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from registry import sync
from registry.catalog import Catalog
from registry.errors import InvalidFrame, LimitReached, MeshError, RegistryError, StoreUnavailable
from registry.liveness import Evidence, Presence, Pulse
from registry.mesh import Arrived, Joined, Mesh, Parted, PipeHandler, Restarted
from registry.pace import Pace
from registry.records import PeerId, Reach, Record, Service, Standing
from registry.replica import (
    Changed,
    Contested,
    Effect,
    Fetch,
    Forget,
    Persist,
    Publish,
    Replica,
)
from registry.settings import RegistrySettings
from registry.signing import Identity
from registry.store import Change, Delete, Put, Space, Store

log = logging.getLogger("modelvine.registry")

EPOCH_KEY = "epoch"

# One neighbour forwards what many authors say, so it may send more than any of them.
_FORWARDED_PER_SECOND = 2_000.0
# The longest exchange that makes sense is about 70 questions; an answer may take a pass over the whole registry.
_QUESTIONS_PER_SECOND = 20.0
_QUESTIONS_AT_ONCE = 100.0
# Lapses are noticed at this grain; finer wakes an idle node for nothing.
_GRAIN = 0.25
_STORE_RETRY = 2.0
# An idle node saves nothing, and would say that it is well for as long as nobody registers.
_STORE_CHECK = 5.0
# A peer that is slow to answer must not hold up the others.
_COMPARISONS_AT_ONCE = 4
_KEPT_NODES = 64


async def next_epoch(store: Store, wall_clock: float) -> int:
    """Return an epoch above all that were used before, durable already; raise `StoreUnavailable`.

    The wall clock only matters when the store was lost: it makes a fresh node speak louder than its old self.
    """
    kept = (await store.read(Space.SELF)).get(EPOCH_KEY, b"0")
    last = int(kept) if kept.isdigit() and len(kept) < 16 else 0
    epoch = max(last + 1, int(wall_clock))
    await store.write(Put(Space.SELF, EPOCH_KEY, str(epoch).encode()))
    return epoch


class Registry:
    """Who serves what, as the rest of the node sees it. Lives on one event loop."""

    def __init__(
        self,
        identity: Identity,
        settings: RegistrySettings,
        *,
        store: Store,
        mesh: Mesh,
        epoch: int,
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self.peer = identity.peer
        self.mesh = mesh
        self.counters: Counter[str] = Counter()
        self._epoch = str(epoch).encode()
        self._replica = Replica(identity, settings, epoch=epoch, jitter=random)
        self._settings = settings
        self._store = store
        self._now = now
        self._random = random
        self._unsaved: dict[PeerId, Change] = {}
        self._saving = asyncio.Lock()
        self._degraded: dict[str, str] = {}
        self._neighbours = Pace(rate=_FORWARDED_PER_SECOND, burst=_FORWARDED_PER_SECOND * 2)
        self._askers = Pace(rate=_QUESTIONS_PER_SECOND, burst=_QUESTIONS_AT_ONCE)
        self._wanted: asyncio.Queue[PeerId] = asyncio.Queue(maxsize=256)
        self._waiting: set[PeerId] = set()
        self._pinned: tuple[str, ...] = ()
        self._kept: tuple[str, ...] = ()
        self._wake = asyncio.Event()
        self._listeners: list[Callable[[frozenset[PeerId]], None]] = []

    # What others read.

    @property
    def catalog(self) -> Catalog:
        """The newest snapshot."""
        return self._replica.catalog

    @property
    def own(self) -> Record:
        """Our own newest word."""
        return self._replica.own

    def presence(self, node: PeerId) -> Presence:
        """Say what a node is to us."""
        return self._replica.presence(node)

    def pulse(self, node: PeerId) -> Pulse | None:
        """Return what we know of another node's life."""
        return self._replica.pulses().get(node)

    def degraded(self) -> Mapping[str, str]:
        """Return the parts that do not work now, each with a sentence."""
        parts = dict(self._degraded)
        if not self.mesh.running():
            parts["mesh"] = "the mesh is being restarted; other nodes do not hear this one"
        return MappingProxyType(parts)

    def on_change(self, listener: Callable[[frozenset[PeerId]], None]) -> None:
        """Call `listener` with the nodes whose record or presence changed; it must not block."""
        self._listeners.append(listener)

    # What others do.

    async def restore(self) -> None:
        """Load what the store kept of others. Serving does not depend on it."""
        try:
            frames = (await self._store.read(Space.RECORDS)).values()
        except StoreUnavailable as error:
            self._store_failed(error)
            return
        bad = self._replica.restore(frames, self._now())
        if bad:
            log.warning("ignored %d unreadable records in the store", bad)

    async def introduce(self, *, services: Sequence[Service], reach: Reach, agent: str) -> None:
        """Say our first word of this run; raise `LimitReached`."""
        self._replica.describe(agent)
        effects = self._replica.announce(
            self._now(), services=services, reach=reach, standing=Standing.SERVING
        )
        await self._perform(effects)

    async def announce(self, services: Sequence[Service]) -> None:
        """Change what we serve; raise `LimitReached`, and change nothing, when it does not fit."""
        await self._perform(self._replica.announce(self._now(), services=services))

    def fits(self, services: Sequence[Service]) -> None:
        """Raise `LimitReached` unless these services could be announced."""
        self._replica.fits(services)

    def pin(self, addresses: Sequence[str]) -> None:
        """Keep these addresses connected whatever else happens, besides the nodes that we know."""
        self._pinned = tuple(addresses)
        self._keep()

    async def readdress(self, reach: Reach) -> None:
        """Change how we are reached."""
        await self._perform(self._replica.announce(self._now(), reach=reach))

    async def stand(self, standing: Standing) -> None:
        """Change our standing, and publish it at once: draining and leaving travel ahead of everything."""
        await self._perform(self._replica.announce(self._now(), standing=standing))
        await self._hurry()

    def observe(self, node: PeerId, evidence: Evidence) -> None:
        """Take in what a request showed about a node."""
        self._notify(self._replica.observe(node, evidence, self._now()))

    async def start(self, serve_pipe: PipeHandler) -> None:
        """Join the mesh; raise `MeshDown` when it cannot be had at all, a port in use for example."""
        await self.mesh.start(self._answer, serve_pipe)

    async def run(self) -> None:
        """Keep the registry true until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._tick())
            group.create_task(self._compare_now_and_then())
            group.create_task(self._save_again())
            for _ in range(_COMPARISONS_AT_ONCE):
                group.create_task(self._fetch())

    async def stop(self) -> None:
        """Leave the mesh, and save what is unsaved."""
        await self.mesh.stop()
        with suppress(StoreUnavailable):
            await self._save()

    # How.

    async def _listen(self) -> None:
        async for event in self.mesh.events():
            match event:
                case Arrived(frame, via):
                    await self._receive(frame, via)
                case Joined(peer):
                    await self._perform(self._replica.observe(peer, Evidence.LINKED, self._now()))
                    self._want(peer)
                case Parted(peer):
                    await self._perform(self._replica.observe(peer, Evidence.PARTED, self._now()))
                case Restarted():
                    await self._hurry()

    async def _receive(self, frame: bytes, via: PeerId) -> None:
        self.counters["frames_in"] += 1
        if not self._neighbours.allows(via, self._now()):
            self.counters["frames_dropped"] += 1
            return
        try:
            effects = self._replica.receive(frame, self._now())
        except LimitReached as error:
            self.counters["refused"] += 1
            log.warning("refused a record: %s", error)
        except InvalidFrame as error:
            self.counters["frames_bad"] += 1
            log.warning("dropped a frame that came by %s: %s", via, error)
        else:
            await self._perform(effects)

    async def _answer(self, peer: PeerId, question: bytes) -> bytes:
        if not self._askers.allows(peer, self._now()):
            self.counters["questions_refused"] += 1
            raise LimitReached(f"{peer} asks too often")
        reply, effects = sync.answer(self._replica, question, self._now())
        self._notify(self._replica.observe(peer, Evidence.ANSWERED, self._now()))
        await self._perform(effects)
        return reply

    async def _hurry(self) -> None:
        self._replica.hurry(self._now())
        await self._perform(self._replica.tick(self._now()))

    async def _tick(self) -> None:
        while True:
            await self._perform(self._replica.tick(self._now()))
            wait = min(max(self._replica.due() - self._now(), 0.005), _GRAIN)
            self._wake.clear()
            await _within(self._wake.wait(), wait)

    async def _compare_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sync * (0.5 + self._random()))
            peers = self.mesh.connections()
            if peers:
                self._want(peers[int(self._random() * len(peers))].peer)

    def _want(self, peer: PeerId) -> None:
        # A full queue means that comparisons are under way already; one of them will do.
        if peer not in self._waiting and not self._wanted.full():
            self._waiting.add(peer)
            self._wanted.put_nowait(peer)

    async def _fetch(self) -> None:
        while True:
            peer = await self._wanted.get()
            self._waiting.discard(peer)
            try:
                await self._compare(peer)
            except (MeshError, InvalidFrame) as error:
                self.counters["syncs_failed"] += 1
                log.debug("comparing with %s failed: %s", peer, error)
            else:
                self.counters["syncs"] += 1

    async def _compare(self, peer: PeerId) -> None:
        exchange = sync.compare(self._replica, self._now)
        step = next(exchange)
        while True:
            await self._perform(step.effects)
            timeout = self._settings.ask_timeout
            reply = await self.mesh.ask(peer, step.question, timeout=timeout)
            self._notify(self._replica.observe(peer, Evidence.ANSWERED, self._now()))
            try:
                step = exchange.send(reply)
            except StopIteration as done:
                await self._perform(done.value)
                return

    async def _perform(self, effects: Sequence[Effect]) -> None:
        self._notify(effects)
        if any(isinstance(effect, Changed) for effect in effects):
            self._keep()
            self._wake.set()
        for effect in effects:
            match effect:
                case Persist(signed):
                    node = signed.record.node
                    self._unsaved[node] = Put(Space.RECORDS, node, signed.frame)
                case Forget(node):
                    self._unsaved[node] = Delete(Space.RECORDS, node)
                case Publish(frame):
                    await self._publish(frame)
                case Fetch(node):
                    self._want_from(node)
                case Contested(version):
                    log.error(
                        "another machine speaks with this node's key (at %s): give one of them a key of its own",
                        version,
                    )
                case Changed():
                    continue

    def _want_from(self, node: PeerId) -> None:
        connected = [c.peer for c in self.mesh.connections()]
        if node in connected:
            self._want(node)
        elif connected:
            self._want(connected[int(self._random() * len(connected))])

    def _keep(self) -> None:
        known = [
            address
            for node, signed in self.catalog.held.items()
            if node != self.peer and signed.record.standing is not Standing.LEFT
            for address in signed.record.reach.mesh[:1]
            if _leads_to(node, address)
        ]
        kept = (*self._pinned, *known[:_KEPT_NODES])
        if kept != self._kept:
            self._kept = kept
            self.mesh.keep(kept)

    async def _publish(self, frame: bytes) -> None:
        try:
            await self.mesh.publish(frame)
        except MeshError as error:
            # The next comparison carries what gossip could not.
            log.debug("could not publish: %s", error)
        else:
            self.counters["frames_out"] += 1

    def _notify(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Changed):
                for listener in self._listeners:
                    listener(effect.nodes)

    async def _save(self) -> None:
        """Write what is unsaved, in one batch with what others wait for; raise `StoreUnavailable`."""
        async with self._saving:
            if not self._unsaved:
                return
            batch = dict(self._unsaved)
            try:
                await self._store.write(*batch.values())
            except StoreUnavailable as error:
                self._store_failed(error)
                raise
            # Struck off only now: a write that failed or was cancelled is made again.
            self._unsaved = {n: c for n, c in self._unsaved.items() if batch.get(n) is not c}
            self._store_works()

    async def _save_again(self) -> None:
        proven = self._now()
        while True:
            pause = _GRAIN
            try:
                await self._save()
                if "store" in self._degraded or self._now() >= proven + _STORE_CHECK:
                    await self._prove_store()
                    proven = self._now()
            except StoreUnavailable:
                pause = _STORE_RETRY
            await asyncio.sleep(pause)

    async def _prove_store(self) -> None:
        """See whether the store works when there is nothing to save; raise `StoreUnavailable`."""
        try:
            if "store" in self._degraded:
                await self._store.write(Put(Space.SELF, EPOCH_KEY, self._epoch))
            else:
                # Reading wears out no disk, and shows a server that is gone.
                await self._store.read(Space.SELF)
        except StoreUnavailable as error:
            self._store_failed(error)
            raise
        self._store_works()

    def _store_failed(self, error: RegistryError) -> None:
        if "store" not in self._degraded:
            log.error("the store does not work, serving goes on: %s", error)
        self._degraded["store"] = str(error)

    def _store_works(self) -> None:
        if self._degraded.pop("store", None):
            log.info("the store works again")


def _leads_to(node: PeerId, address: str) -> bool:
    # What else a record may name as its address, it does not have us dial.
    where, _, peer = address.rpartition("/p2p/")
    return bool(where) and peer == node


async def _within(wait: Awaitable[object], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await wait
    except TimeoutError:
        return
