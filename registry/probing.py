"""Does that node live? Rounds of probes over the mesh: asked directly, then through others, then dialled; and answers.

A probe of a connected peer is the comparison of digests, so that it repairs as well. Through others travels a challenge,
which the node signs: nobody can vouch for the dead.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from registry import claims, sync, wire
from registry.effects import Effect
from registry.errors import InvalidFrame, LimitReached, MeshError
from registry.liveness import Evidence
from registry.mesh import Connection, Mesh
from registry.records import PeerId, Reach
from registry.replica import Replica
from registry.settings import RegistrySettings

log = logging.getLogger("modelvine.registry")

PROVE, VOUCH = b"?", b"v"
"""First bytes of questions: sign this challenge; put this challenge to that node."""

HELPERS = 3
"""Other nodes that are asked to probe a silent one; memberlist asks as many."""

VOUCHING = 16
"""Challenges passed on for others at one time; more are refused."""

_AT_ONCE = 32
_WAITING = 256
# A dial costs a handshake of several round trips.
_DIALS_PER_PROBE = 2.0
_CUT_WITHIN = 3.0


class Probing:
    """Performs the probes that the replica wants, and tells it what came of them."""

    def __init__(
        self,
        replica: Replica,
        mesh: Mesh,
        settings: RegistrySettings,
        *,
        now: Callable[[], float],
        random: Callable[[], float],
        perform: Callable[[Sequence[Effect]], Awaitable[None]],
        differs: Callable[[PeerId], None],
        counters: Counter[str],
    ) -> None:
        self._replica = replica
        self._mesh = mesh
        self._settings = settings
        self._now = now
        self._random = random
        self._perform = perform
        self._differs = differs
        self._counters = counters
        self._wanted: asyncio.Queue[PeerId] = asyncio.Queue(maxsize=_WAITING)
        self._vouching = 0

    def want(self, node: PeerId) -> None:
        """Probe a node soon; when too many wait, the replica asks again."""
        if not self._wanted.full():
            self._wanted.put_nowait(node)

    async def run(self) -> None:
        """Probe until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(self._work())

    async def answer(self, question: bytes) -> bytes:
        """Answer a peer's `PROVE` or `VOUCH`; raise `InvalidFrame` for nonsense, `LimitReached` when busy."""
        if question[:1] == PROVE:
            return self._replica.prove(question[1:])
        challenge = question[1 : 1 + wire.CHALLENGE_BYTES]
        about = wire.peer_named(question[1 + wire.CHALLENGE_BYTES :])
        if about == self._replica.peer:
            return self._replica.prove(challenge)
        connection = self._connections().get(about)
        if connection is None:
            return b""
        return await self._vouch(connection, challenge)

    async def _vouch(self, connection: Connection, challenge: bytes) -> bytes:
        if self._vouching >= VOUCHING:
            raise LimitReached(f"{VOUCHING} challenges are being passed on already")
        self._vouching += 1
        try:
            proof = await self._mesh.ask(
                connection.peer, PROVE + challenge, timeout=self._patience(connection)
            )
        except MeshError:
            return b""
        finally:
            self._vouching -= 1
        return proof

    async def _work(self) -> None:
        while True:
            await self._round(await self._wanted.get())

    async def _round(self, node: PeerId) -> None:
        self._counters["probes"] += 1
        connection = self._connections().get(node)
        if connection is not None:
            if await self._directly(connection):
                return
            await self._observe(node, Evidence.MISSED)
        if await self._through_others(node):
            return
        if connection is None:
            await self._observe(node, Evidence.MISSED)
            if await self._by_dialling(node):
                return
        if not self._mesh.running():
            return
        self._counters["probes_failed"] += 1
        await self._observe(node, Evidence.UNREACHED)
        if connection is not None:
            # Silent for a whole round: the redial loop makes a new one as soon as the peer can be reached.
            await self._cut(node)

    async def _directly(self, connection: Connection) -> bool:
        question = sync.digest_question(self._replica)
        try:
            reply = await self._mesh.ask(
                connection.peer, question, timeout=self._patience(connection)
            )
        except MeshError:
            return False
        await self._observe(connection.peer, Evidence.ANSWERED)
        if reply == sync.EQUAL and not self._replica.lacks_hearsay():
            self._counters["syncs"] += 1
        else:
            self._differs(connection.peer)
        return True

    async def _through_others(self, node: PeerId) -> bool:
        others = [c for peer, c in self._connections().items() if peer != node]
        chosen = _some(others, HELPERS, self._random)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._through(helper, node)) for helper in chosen]
        return any(task.result() for task in asked)

    async def _through(self, helper: Connection, node: PeerId) -> bool:
        challenge = secrets.token_bytes(wire.CHALLENGE_BYTES)
        # The helper waits for the node as long as we would, and we wait for the helper.
        timeout = 2 * self._patience(helper)
        try:
            proof = await self._mesh.ask(
                helper.peer, VOUCH + challenge + node.encode(), timeout=timeout
            )
            wire.check_proof(proof, node=node, challenge=challenge)
        except (MeshError, InvalidFrame):
            return False
        await self._observe(node, Evidence.PROVEN)
        return True

    async def _by_dialling(self, node: PeerId) -> bool:
        held = self._replica.catalog.held.get(node)
        reach = held.record.reach if held else Reach()
        together = claims.among_ourselves(self._replica.own.reach)
        # One address, as the redial loop tries; each failed dial of a silent machine takes its whole time.
        own = claims.direct_addresses(reach, node, together=together)
        own += claims.relayed_addresses(reach, node, together=together)
        for address in own[:1]:
            try:
                await self._mesh.connect(
                    address, timeout=_DIALS_PER_PROBE * self._settings.probe_timeout
                )
            except MeshError:
                continue
            await self._observe(node, Evidence.LINKED)
            return True
        return False

    async def _cut(self, node: PeerId) -> None:
        try:
            async with asyncio.timeout(_CUT_WITHIN):
                await self._mesh.disconnect(node)
        except (MeshError, TimeoutError) as error:
            log.debug("could not cut the connection to %s: %s", node, error)

    async def _observe(self, node: PeerId, evidence: Evidence) -> None:
        await self._perform(self._replica.observe(node, evidence, self._now()))

    def _connections(self) -> dict[PeerId, Connection]:
        return {connection.peer: connection for connection in self._mesh.connections()}

    def _patience(self, connection: Connection) -> float:
        return self._settings.probe_timeout + 4 * connection.round_trip


def _some(
    among: Sequence[Connection], count: int, random: Callable[[], float]
) -> Sequence[Connection]:
    return sorted(among, key=lambda _: random())[:count]
