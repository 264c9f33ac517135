"""Service of the registry: performs a replica's effects, and feeds it frames, answers and time."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from registry import sync
from registry.admission import Admission
from registry.catalog import Catalog
from registry.clock import Clock, RandomSource
from registry.comparison import Comparison
from registry.direct_dial import DirectDial
from registry.effects import (
    Changed,
    Contested,
    Effect,
    Fetch,
    Forget,
    Loaded,
    Persist,
    Probe,
    Publish,
    RecordsKeptOut,
    RecordsRefused,
    Remember,
    sum_counts,
)
from registry.errors import InvalidFrame, LimitReached, MeshError, StoreUnavailable, UnknownKind
from registry.intake.validator import Validator
from registry.members.liveness import Evidence, MemberHealth, Presence
from registry.members.load import LoadExchange
from registry.members.neighbours import Neighbours
from registry.mesh import (
    Arrived,
    Direction,
    Joined,
    Mesh,
    PeerLeft,
    PeerMisbehaved,
    Pipe,
    PipeHandler,
    Restarted,
)
from registry.persistence import EPOCH_KEY, Persistence, beats_in, rows_of
from registry.prober import PROVE, VOUCH, Prober
from registry.records import PeerId, Reach, Record, Revocation, Service, Standing
from registry.replica import Replica
from registry.settings import RegistrySettings
from registry.signing import Identity
from registry.store import Put, Space, Store

log = logging.getLogger("modelvine.registry")

# Seconds: an event loop that wakes later than this was stopped, or has too much to do.
_STALL = 1.0
_CONTEST_SECONDS = 300.0
# Longest wait in seconds between ticks; a shorter one wakes an idle node for nothing.
_GRAIN = 0.25
# A tick may take this share of the loop's time, and no more: it takes a pass over the whole registry.
_TICK_SHARE = 0.1
_LONG_TICK = 0.005

_CONTESTED = "another machine uses this node's key: stop one of them, and give it its own key"


class Registry:
    """The registry as the rest of the node sees it: which node serves which model. Lives on one event loop."""

    def __init__(
        self,
        identity: Identity,
        settings: RegistrySettings,
        *,
        store: Store,
        mesh: Mesh,
        epoch: int,
        now: Clock,
        random: RandomSource,
    ) -> None:
        self.peer = identity.peer
        self.mesh = mesh
        self.counters: Counter[str] = Counter()
        self.replica = Replica(identity, settings, epoch=epoch, jitter=random)
        """Its core, for readers of each request; only the registry changes it."""
        self.load_exchange = LoadExchange(self.replica, now=now, counters=self.counters)
        self._now = now
        self.persistence = Persistence(store, Put(Space.SELF, EPOCH_KEY, str(epoch).encode()))
        self.persistence.add_source(lambda: rows_of(self.catalog, self.replica.member_health()))
        self._validator = Validator(settings, self.replica, now=now)
        self._admission = Admission(self.replica.access, mesh, now=now, counters=self.counters)
        self._comparison = Comparison(
            self.replica,
            mesh,
            self._admission,
            settings,
            now=now,
            random=random,
            performer=self,
            counters=self.counters,
        )
        self._prober = Prober(
            self.replica,
            mesh,
            self._comparison,
            settings,
            now=now,
            performer=self,
            counters=self.counters,
        )
        self._direct_dial = DirectDial(mesh, self.replica, now=now)
        self._key_conflict_at = float("-inf")
        self._neighbours = Neighbours()
        self._wake = asyncio.Event()
        self._listeners: list[Callable[[frozenset[PeerId]], None]] = []

    # Reading.

    @property
    def catalog(self) -> Catalog:
        """The newest snapshot."""
        return self.replica.catalog

    @property
    def own_record(self) -> Record:
        """The newest version of our own record."""
        return self.replica.own_record

    def presence(self, node: PeerId) -> Presence:
        """Return the presence of a node; an unknown node is lost."""
        return self.replica.presence(node)

    def health_of(self, node: PeerId) -> MemberHealth | None:
        """Return what is known about another node's life; `None` for an unknown node."""
        return self.replica.member_health().get(node)

    def degraded_parts(self) -> Mapping[str, str]:
        """Return the parts that do not work now, each with the reason as a sentence."""
        parts: dict[str, str] = {}
        if self.persistence.failure:
            parts["store"] = f"{self.persistence.failure}: no changes are saved"
        if not self.mesh.is_running():
            parts["mesh"] = "the mesh is restarting; other nodes cannot reach this one"
        if self._now() - self._key_conflict_at < _CONTEST_SECONDS or self.replica.is_silenced:
            parts["identity"] = _CONTESTED
        return MappingProxyType(parts)

    def event_counts(self) -> Mapping[str, int]:
        """Return the counts of all events since the start."""
        lost = {"frames_lost_in_queue": self.mesh.dropped_frames()}
        return sum_counts(self.counters, self._validator.counters, self.mesh.refusal_counts(), lost)

    def take_kept_out(self) -> Mapping[PeerId, str]:
        """Return the peers that were kept out since the last call, the last few of them, with the reasons."""
        return {**self._validator.kept_out.take(), **self._admission.kept_out.take()}

    def admits(self, peer: PeerId) -> bool:
        """Return whether a peer may take part here, according to `allow` and `deny`."""
        return self.replica.admits(peer)

    def on_change(self, listener: Callable[[frozenset[PeerId]], None]) -> None:
        """Call `listener` with the nodes whose record or presence changed; it must not block."""
        self._listeners.append(listener)

    # Changing.

    async def restore(self) -> None:
        """Load the records and heartbeats of other nodes from the store. Serving does not depend on it."""
        frames = (await self.persistence.read(Space.RECORDS)).values()
        beats = beats_in(await self.persistence.read(Space.SELF))
        bad = self.replica.restore(frames, self._now(), beats=beats)
        if bad:
            log.warning("ignored %d unreadable records in the store", bad)

    async def publish_first_record(
        self, *, services: Sequence[Service], reach: Reach, agent: str, name: str = ""
    ) -> None:
        """Publish the first record of this run; raise `LimitReached`."""
        self.replica.describe(agent, name)
        effects = self.replica.announce(
            self._now(), services=services, reach=reach, standing=Standing.SERVING
        )
        await self.perform(effects)

    async def announce(self, services: Sequence[Service]) -> None:
        """Change the services in our record; raise `LimitReached`, and change nothing, when they do not fit."""
        await self.perform(self.replica.announce(self._now(), services=services))

    def require_fit(self, services: Sequence[Service]) -> None:
        """Raise `LimitReached` unless these services could be announced."""
        self.replica.require_fit(services)

    async def change_addresses(self, reach: Reach) -> None:
        """Change the addresses in our record."""
        await self.perform(self.replica.announce(self._now(), reach=reach))

    async def publish_revocations(self, revoked: Sequence[Revocation]) -> None:
        """Change which of our grants are revoked, and publish it at once; raise `LimitReached` when they do not fit."""
        await self.perform(self.replica.announce(self._now(), revoked=revoked))
        await self._publish_now()

    async def set_standing(self, standing: Standing) -> None:
        """Change our standing, and publish it at once: draining and leaving go ahead of everything else."""
        await self.perform(self.replica.announce(self._now(), standing=standing))
        await self._publish_now()

    def observe(self, node: PeerId, evidence: Evidence) -> None:
        """Note what a request showed about a node."""
        self._notify(self.replica.observe(node, evidence, self._now()))

    def request_probe(self, node: PeerId) -> None:
        """Probe a node at once, because a request has been waiting for it for some time; at most once a second."""
        if self.replica.members.request_probe(node, self._now()):
            self._wake.set()

    def is_silent(self, node: PeerId) -> bool:
        """Return whether a node left this node's own probe unanswered, and has not answered since."""
        return self.replica.members.is_silent(node)

    def refresh_record(self, node: PeerId) -> None:
        """Fetch a node's record at once, because our copy of it is outdated; at most once a second for each."""
        self._comparison.refresh_record(node)

    async def start(self, serve_pipe: PipeHandler) -> None:
        """Join the mesh; raise `MeshDown` when it cannot start at all, for example because a port is in use."""

        async def serve(pipe: Pipe) -> None:
            # The listener for nodes refuses unknown ones, but a pipe to it would stay open until then.
            if self._admission.admits(pipe.peer) and pipe.peer in self.catalog.held:
                await serve_pipe(pipe)

        await self.mesh.start(
            self._answer_question, serve, self._validator.judge, self._validator.knows
        )

    async def run(self) -> None:
        """Keep the registry up to date until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._handle_mesh_events())
            group.create_task(self._tick())
            group.create_task(self._comparison.run())
            group.create_task(self._prober.run())
            group.create_task(self._direct_dial.run())
            group.create_task(self.persistence.run())

    async def stop(self) -> None:
        """Leave the mesh, and save what is unsaved."""
        await self.mesh.stop()
        with suppress(StoreUnavailable):
            await self.persistence.save()

    # Internals.

    async def _handle_mesh_events(self) -> None:
        async for event in self.mesh.events():
            match event:
                case Arrived(frame, via):
                    await self._receive_frame(frame, via)
                case Joined(peer) if not self._admission.admits(peer):
                    with suppress(MeshError):
                        await self.mesh.disconnect(peer)
                case Joined(peer):
                    chosen = any(
                        c.peer == peer and c.direction is Direction.OUTBOUND
                        for c in self.mesh.connections()
                    )
                    await self.perform(
                        self.replica.note_connected(peer, self._now(), chosen=chosen)
                    )
                    self._comparison.schedule(peer)
                    if len(self.mesh.connections()) == 1:
                        # What was published while no peer was connected is published again.
                        await self._publish_now()
                case PeerLeft(peer):
                    await self.perform(self.replica.note_disconnected(peer, self._now()))
                case PeerMisbehaved(peer):
                    await self._admission.note_offence(peer)
                case Restarted():
                    await self._publish_now()

    async def _receive_frame(self, frame: bytes, via: PeerId) -> None:
        self.counters["frames_in"] += 1
        if not self._admission.admits(via):
            return
        try:
            effects = self.replica.receive(frame, self._now(), via=via)
        except LimitReached as error:
            self.counters["refused"] += 1
            log.warning("refused a record: %s", error)
        except InvalidFrame as error:
            self.counters["frames_bad"] += 1
            log.warning("dropped a frame from %s: %s", via, error)
        else:
            await self.perform(effects)

    async def _answer_question(self, peer: PeerId, question: bytes) -> bytes:
        self._admission.require_admitted(peer)
        await self.perform(self.replica.observe(peer, Evidence.ASKED, self._now()))
        try:
            if question[:1] in (PROVE, VOUCH):
                return await self._prober.answer(peer, question)
            reply, effects = sync.answer(self.replica, question, self._now(), asker=peer)
        except InvalidFrame as error:
            if not isinstance(error, UnknownKind):
                await self._admission.note_offence(peer)
            raise
        await self.perform(effects)
        return reply

    async def _publish_now(self) -> None:
        self.replica.expedite_publication(self._now())
        await self.perform(self.replica.tick(self._now()))

    async def _tick(self) -> None:
        while True:
            began = self._now()
            await self.perform([*self.replica.tick(began), *self.load_exchange.publish_load()])
            if self._neighbours.stale:
                self._choose_neighbours()
            wait = min(max(self.replica.next_due() - self._now(), 0.005), _GRAIN)
            if (took := self._now() - began) > _LONG_TICK:
                await asyncio.sleep(took / _TICK_SHARE)
            self._wake.clear()
            before = self._now()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            late = self._now() - before - wait
            if late > _STALL:
                log.warning(
                    "this process was stopped for %.1f s; it allows other nodes as much more time",
                    late,
                )
                self.replica.note_stall(late, self._now())

    async def perform(self, effects: Sequence[Effect]) -> None:
        """Perform what the replica has decided, in that order."""
        self._notify(effects)
        if any(isinstance(effect, Changed) for effect in effects):
            self._choose_neighbours()
            self._wake.set()
        for effect in effects:
            match effect:
                case Publish(frame):
                    await self._publish(frame)
                case Fetch(node, claimed):
                    self._comparison.fetch_record(node, claimed)
                case Contested():
                    self._report_key_conflict()
                case Probe(node):
                    self._prober.schedule(node)
                case Persist() | Forget() | Remember():
                    self.persistence.queue_effect(effect)
                case Loaded():
                    self.load_exchange.notify_listeners(effect)
                case Changed() | RecordsRefused() | RecordsKeptOut():
                    continue

    def _choose_neighbours(self) -> None:
        neighbours = self._neighbours.choose(
            self.own_record, self.catalog, self.admits, self._now()
        )
        if neighbours is not None:
            self.mesh.set_neighbours(neighbours)

    def _report_key_conflict(self) -> None:
        now = self._now()
        if now - self._key_conflict_at >= _CONTEST_SECONDS:
            log.error(_CONTESTED)
        self._key_conflict_at = now

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
            elif isinstance(effect, RecordsRefused):
                self.counters["refused"] += effect.count
                log.warning("refused %d records: %s", effect.count, effect.why)
            elif isinstance(effect, RecordsKeptOut):
                for node in effect.nodes:
                    self._admission.note_kept_out(node, self.replica.access.objection(node))
