"""Prober: runs the probes of `registry.members.probe` over the mesh, and answers those of other nodes.

A probe of a connected peer is a comparison of digests, so that it repairs as well. A probe through an intermediary carries a
challenge, which the node signs: no intermediary can vouch for a dead node.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from registry import sync, wire
from registry.clock import Clock
from registry.comparison import Comparison
from registry.effects import Performer
from registry.errors import InvalidFrame, LimitReached, MeshError
from registry.intake import dialable
from registry.intake.shares import Shares
from registry.members.liveness import Evidence
from registry.members.probe import (
    CloseConnection,
    Found,
    NoteEvidence,
    OwnProbe,
    ProbeStep,
    answer_timeout,
    dial_timeout,
)
from registry.mesh import Mesh, PeerConnection
from registry.records import PeerId, Reach
from registry.replica import Replica
from registry.settings import RegistrySettings

log = logging.getLogger("modelvine.registry")

PROVE, VOUCH = b"?", b"v"
"""First bytes of questions: sign this challenge; forward this challenge to that node."""

VOUCHING = 16
"""Challenges forwarded for other nodes at one time; more, and those of a peer that has its share, are refused."""

_AT_ONCE = 32
_WAITING = 256
_CUT_WITHIN = 3.0


class Prober:
    """Performs the probes that the replica wants, and passes their results to it."""

    def __init__(
        self,
        replica: Replica,
        mesh: Mesh,
        comparison: Comparison,
        settings: RegistrySettings,
        *,
        now: Clock,
        performer: Performer,
        counters: Counter[str],
    ) -> None:
        self._replica = replica
        self._mesh = mesh
        self._comparison = comparison
        self._settings = settings
        self._now = now
        self._performer = performer
        self._counters = counters
        self._queue: asyncio.Queue[PeerId] = asyncio.Queue(maxsize=_WAITING)
        self._vouch_shares = Shares(VOUCHING)

    def schedule(self, node: PeerId) -> None:
        """Queue a probe of a node; when too many wait, it is dropped, and the replica asks again."""
        if not self._queue.full():
            self._queue.put_nowait(node)

    async def run(self) -> None:
        """Probe until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(self._probe_queued())

    async def answer(self, peer: PeerId, question: bytes) -> bytes:
        """Answer a peer's `PROVE` or `VOUCH`; raise `InvalidFrame` if it is malformed, `LimitReached` when busy."""
        if question[:1] == PROVE:
            return self._replica.sign_challenge(question[1:])
        challenge = question[1 : 1 + wire.CHALLENGE_BYTES]
        about = wire.peer_named(question[1 + wire.CHALLENGE_BYTES :])
        if about == self._replica.peer:
            return self._replica.sign_challenge(challenge)
        if about not in self._connections():
            return b""
        try:
            with self._vouch_shares.hold_place(peer):
                return await self._vouch(about, challenge)
        except LimitReached:
            self._counters["questions_refused"] += 1
            raise

    async def _vouch(self, about: PeerId, challenge: bytes) -> bytes:
        try:
            return await self._mesh.ask(
                about, PROVE + challenge, timeout=self._answer_timeout(about)
            )
        except MeshError:
            return b""

    async def _probe_queued(self) -> None:
        while True:
            await self._run_round(await self._queue.get())

    async def _run_round(self, node: PeerId) -> None:
        self._counters["probes"] += 1
        trips = {peer: c.round_trip for peer, c in self._connections().items()}
        steps = self._replica.members.probe_round(node, trips)
        found = Found()
        try:
            step = next(steps)
            while self._mesh.is_running():
                match step:
                    case ProbeStep(own_probe, intermediaries):
                        found = await self._attempt(node, own_probe, intermediaries)
                    case NoteEvidence(evidence):
                        self._counters["probes_failed"] += evidence is Evidence.UNREACHED
                        await self._observe(node, evidence)
                    case CloseConnection():
                        await self._disconnect(node)
                step = steps.send(found)
        except StopIteration:
            pass
        finally:
            self._replica.members.end_probe(node, self._now())

    async def _attempt(
        self, node: PeerId, own_probe: OwnProbe, intermediaries: Sequence[PeerId]
    ) -> Found:
        async with asyncio.TaskGroup() as group:
            proofs = [
                group.create_task(self._probe_through(intermediary, node))
                for intermediary in intermediaries
            ]
            match own_probe:
                case OwnProbe.ASK:
                    reached = await self._probe_directly(node)
                case OwnProbe.DIAL:
                    reached = await self._dial(node) and await self._probe_directly(node)
                case OwnProbe.NOTHING:
                    reached = False
            if reached:
                # The answers of the intermediaries are not needed any more.
                for proof in proofs:
                    proof.cancel()
        return Found(reached, any(not p.cancelled() and p.result() for p in proofs))

    async def _probe_directly(self, node: PeerId) -> bool:
        question = sync.digest_question(self._replica)
        asked_at = self._now()
        try:
            reply = await self._mesh.ask(node, question, timeout=self._answer_timeout(node))
        except MeshError:
            return False
        await self._observe(node, Evidence.ANSWERED, asked_at=asked_at)
        if reply == sync.EQUAL and not self._replica.lacks_hearsay():
            self._counters["syncs"] += 1
        else:
            self._comparison.schedule(node)
        return True

    async def _probe_through(self, intermediary: PeerId, node: PeerId) -> bool:
        challenge = secrets.token_bytes(wire.CHALLENGE_BYTES)
        # The intermediary waits for the node as long as this node would, and this node waits for the intermediary.
        timeout = 2 * self._answer_timeout(intermediary)
        asked_at = self._now()
        try:
            proof = await self._mesh.ask(
                intermediary, VOUCH + challenge + node.encode(), timeout=timeout
            )
            wire.check_proof(proof, node=node, challenge=challenge)
        except (MeshError, InvalidFrame):
            return False
        await self._performer.perform(
            self._replica.note_proof(node, intermediary, self._now(), asked_at=asked_at)
        )
        return True

    async def _dial(self, node: PeerId) -> bool:
        reach = self._replica.catalog.reach_of(node) or Reach()
        together = dialable.is_local_only(self._replica.own_record.reach)
        trips = {peer: c.round_trip for peer, c in self._connections().items()}
        timeout = dial_timeout(self._settings.probe_timeout, trips)
        # One address, as the redial loop tries: a failed dial of a silent machine takes the whole timeout.
        addresses = dialable.direct_addresses(reach, node, together=together)
        addresses += dialable.relayed_addresses(reach, node, together=together)
        for address in addresses[:1]:
            with suppress(MeshError, TimeoutError):
                # A name may stand for several IP addresses, each with this time limit.
                async with asyncio.timeout(timeout):
                    await self._mesh.connect(address, timeout=timeout)
                return True
        return False

    async def _disconnect(self, node: PeerId) -> None:
        try:
            async with asyncio.timeout(_CUT_WITHIN):
                await self._mesh.disconnect(node)
        except (MeshError, TimeoutError) as error:
            log.debug("could not cut the connection to %s: %s", node, error)

    async def _observe(
        self, node: PeerId, evidence: Evidence, *, asked_at: float | None = None
    ) -> None:
        await self._performer.perform(
            self._replica.observe(node, evidence, self._now(), asked_at=asked_at)
        )

    def _connections(self) -> dict[PeerId, PeerConnection]:
        return {connection.peer: connection for connection in self._mesh.connections()}

    def _answer_timeout(self, node: PeerId) -> float:
        connection = self._connections().get(node)
        trip = connection.round_trip if connection else 0.0
        return answer_timeout(self._settings.probe_timeout, trip)
