"""Probes over a mesh: the living answer at once, or through intermediaries where the link is cut, and the dead do not."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from registry import sync, wire
from registry.effects import Effect
from registry.errors import InvalidFrame, LimitReached
from registry.members.liveness import Evidence, Presence, Status
from registry.mesh.memory import MemoryMesh, MemoryNet, address_of
from registry.prober import PROVE, VOUCH, VOUCHING, Prober
from registry.records import PeerId, Reach
from registry.replica import Replica
from registry.settings import RegistrySettings
from registry.signing import Identity
from tests.registry.test_service import A, B, C, D, no_pipes, until

SETTINGS = RegistrySettings(probe=0.05, probe_timeout=0.05, suspicion=0.2)
CHALLENGE = b"0123456789abcdef"


class Party:
    """One node with its replica and its probes; it answers nothing until `thawed` is set."""

    def __init__(self, net: MemoryNet, owner: Identity, *bootstrap: Identity) -> None:
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.differing: list[PeerId] = []
        self.counters: Counter[str] = Counter()
        self.mesh = MemoryMesh(
            owner.peer, net, bootstrap=tuple(address_of(i.peer) for i in bootstrap)
        )
        self.replica = Replica(owner, SETTINGS, epoch=1, jitter=lambda: 0.5)
        self.replica.announce(0.0, reach=Reach(mesh=(address_of(owner.peer),)))
        self.probing = Prober(
            self.replica,
            self.mesh,
            self,
            SETTINGS,
            now=asyncio.get_running_loop().time,
            performer=self,
            counters=self.counters,
        )

    def schedule(self, peer: PeerId) -> None:
        """Take the place of the comparison."""
        self.differing.append(peer)

    async def perform(self, effects: Sequence[Effect]) -> None:
        """Ignore the effects; the replica has changed already."""

    async def answer(self, peer: PeerId, question: bytes) -> bytes:
        await self.thawed.wait()
        if question[:1] in (PROVE, VOUCH):
            return await self.probing.answer(peer, question)
        return sync.answer(self.replica, question, 0.0)[0]

    async def start(self) -> None:
        await self.mesh.start(self.answer, no_pipes)

    def contact(self, node: PeerId) -> Status:
        return self.replica.member_health()[node].contact

    async def look_for(self, node: PeerId, evidence: Evidence = Evidence.PARTED) -> None:
        """Perform the rounds of probes of one doubt, for as long as there is a doubt."""
        now = asyncio.get_running_loop().time
        self.replica.observe(node, evidence, now())
        while self.contact(node) is Status.SUSPECT:
            self.replica.tick(now())
            await self.probing._run_round(node)


@pytest.fixture
async def net() -> MemoryNet:
    return MemoryNet()


@pytest.fixture
async def three(net: MemoryNet) -> AsyncIterator[list[Party]]:
    """A is connected to B and C, these to each other; all hold the records of all."""
    parties = [Party(net, A), Party(net, B, A), Party(net, C, A, B)]
    now = asyncio.get_running_loop().time()
    for one in parties:
        await one.start()
        for other in parties:
            if other is not one:
                signed = other.replica.catalog.held[other.replica.peer]
                one.replica.merge_record(signed, heard_at=now, now=now)
                one.replica.observe(other.replica.peer, Evidence.LINKED, now)
    yield parties
    for one in parties:
        one.thawed.set()
        await one.mesh.stop()


async def test_a_living_node_answers_and_the_doubt_is_over(three: list[Party]) -> None:
    a = three[0]
    await a.look_for(B.peer)
    assert a.replica.member_health()[B.peer].why is Evidence.ANSWERED
    assert a.differing == []


async def test_a_probe_notices_that_registries_differ(three: list[Party]) -> None:
    a, b, _ = three
    b.replica.announce(1.0, reach=Reach())
    await a.look_for(B.peer)
    assert a.differing == [B.peer]


async def test_a_node_that_answers_no_other_is_lost_and_its_connection_is_cut(
    three: list[Party],
) -> None:
    a, b, _ = three
    # A frozen process takes no new connection either.
    b.replica.announce(1.0, reach=Reach())
    a.replica.merge_record(b.replica.catalog.held[B.peer], heard_at=0.0, now=0.0)
    b.thawed.clear()
    await a.look_for(B.peer)
    assert a.contact(B.peer) is Status.LOST
    assert B.peer not in [c.peer for c in a.mesh.connections()]


@pytest.mark.parametrize("through_an_intermediary", [False, True])
async def test_an_answer_that_was_on_its_way_when_the_connection_ended_leaves_the_doubt(
    three: list[Party], *, through_an_intermediary: bool
) -> None:
    a, b, _ = three
    probing = (
        a.probing._probe_through(C.peer, B.peer)
        if through_an_intermediary
        else a.probing._probe_directly(B.peer)
    )
    b.thawed.clear()
    async with asyncio.TaskGroup() as group:
        answered = group.create_task(probing)
        await asyncio.sleep(0)
        a.replica.observe(B.peer, Evidence.PARTED, asyncio.get_running_loop().time())
        b.thawed.set()
    assert answered.result()
    assert a.contact(B.peer) is Status.SUSPECT


async def test_a_node_that_answers_only_others_is_unreachable_and_its_connection_is_cut(
    three: list[Party],
) -> None:
    a, b, _ = three

    async def deaf_to_a(asker: PeerId, question: bytes) -> bytes:
        if asker == A.peer:
            await asyncio.sleep(1.0)
        return await Party.answer(b, asker, question)

    b.mesh._answer = deaf_to_a
    await a.look_for(B.peer)
    assert a.replica.presence(B.peer) is Presence.UNREACHABLE
    assert a.replica.member_health()[B.peer].why is Evidence.MISSED
    assert B.peer not in [c.peer for c in a.mesh.connections()]


async def test_a_program_that_hangs_is_lost_however_often_its_connection_is_made_again(
    three: list[Party],
) -> None:
    a, b, _ = three
    b.thawed.clear()
    await a.look_for(B.peer)
    for _ in range(3):
        await a.mesh.connect(address_of(B.peer), timeout=1.0)
        now = asyncio.get_running_loop().time()
        a.replica.observe(B.peer, Evidence.LINKED, now)
        a.replica.tick(now)
        await a.probing._run_round(B.peer)
        assert a.replica.presence(B.peer) is Presence.LOST


async def test_a_node_that_is_not_connected_to_us_is_proven_through_intermediaries_without_a_dial(
    three: list[Party], net: MemoryNet
) -> None:
    a = three[0]
    net.cut(A.peer, B.peer)
    await a.look_for(B.peer)
    assert a.replica.member_health()[B.peer].why is Evidence.PROVEN
    assert a.replica.presence(B.peer) is Presence.ALIVE
    assert B.peer not in [c.peer for c in a.mesh.connections()]


async def test_a_node_that_is_not_connected_to_any_node_is_dialled(
    three: list[Party], net: MemoryNet
) -> None:
    a = three[0]
    net.cut(A.peer, B.peer)
    net.cut(C.peer, B.peer)
    await a.look_for(B.peer)
    assert a.replica.member_health()[B.peer].why is Evidence.ANSWERED
    assert B.peer in [c.peer for c in a.mesh.connections()]


async def test_a_node_that_failed_us_is_dialled_though_intermediaries_prove_that_it_lives(
    three: list[Party], net: MemoryNet
) -> None:
    a = three[0]
    net.cut(A.peer, B.peer)
    await a.look_for(B.peer, Evidence.FAILED)
    assert B.peer in [c.peer for c in a.mesh.connections()]
    assert a.replica.presence(B.peer) is Presence.ALIVE


async def test_a_dead_node_is_reached_by_no_way_and_lost(three: list[Party]) -> None:
    a, b, _ = three
    b.mesh.fail()
    await a.look_for(B.peer)
    assert a.replica.presence(B.peer) is Presence.LOST
    b.mesh.recover()


async def test_an_intermediary_cannot_vouch_for_a_dead_node_with_its_own_or_an_old_signature(
    three: list[Party],
) -> None:
    a, b, c = three
    b.mesh.fail()

    async def lying(_: PeerId, question: bytes) -> bytes:
        # It signs the proof itself, or repeats what B once signed for it.
        if question[:1] == VOUCH:
            return repeated.pop() or wire.encode_proof(question[1:17], C)
        return sync.answer(c.replica, question, 0.0)[0]

    c.mesh._answer = lying
    for old in (b"", wire.encode_proof(CHALLENGE, B)):
        repeated = [old] * 1_000
        a.replica.observe(B.peer, Evidence.LINKED, 0.0)
        await a.look_for(B.peer)
        assert a.contact(B.peer) is Status.LOST
    b.mesh.recover()


async def test_a_challenge_is_signed_and_passed_on_to_a_connected_node(three: list[Party]) -> None:
    a, b, _ = three
    proof = await b.probing.answer(A.peer, PROVE + CHALLENGE)
    wire.check_proof(proof, node=B.peer, challenge=CHALLENGE)
    passed = await a.probing.answer(C.peer, VOUCH + CHALLENGE + B.peer.encode())
    wire.check_proof(passed, node=B.peer, challenge=CHALLENGE)
    assert await a.probing.answer(C.peer, VOUCH + CHALLENGE + D.peer.encode()) == b""


async def test_a_peer_cannot_take_all_places_for_challenges_that_are_passed_on(
    three: list[Party],
) -> None:
    a, b, _ = three
    question = VOUCH + CHALLENGE + B.peer.encode()
    b.thawed.clear()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(refused(a, C.peer, question)) for _ in range(2 * VOUCHING)]
        later = group.create_task(refused(a, D.peer, question))
    assert sum(task.result() for task in tasks) == 2 * VOUCHING - VOUCHING // 2
    assert not later.result()
    assert a.counters["questions_refused"] == 2 * VOUCHING - VOUCHING // 2


async def refused(party: Party, asker: PeerId, question: bytes) -> bool:
    """Return whether a question of a peer is refused for lack of a place."""
    try:
        await party.probing.answer(asker, question)
    except LimitReached:
        return True
    return False


@pytest.mark.parametrize(
    "question",
    [
        PROVE,
        PROVE + CHALLENGE[:-1],
        PROVE + CHALLENGE + b"x",
        VOUCH,
        VOUCH + CHALLENGE,
        VOUCH + CHALLENGE + b"nobody",
        VOUCH + CHALLENGE + b"\xff" * 52,
        VOUCH + CHALLENGE + b"x" * 100_000,
    ],
)
async def test_a_malformed_challenge_is_refused(three: list[Party], question: bytes) -> None:
    with pytest.raises(InvalidFrame):
        await three[0].probing.answer(C.peer, question)


async def test_probes_that_the_node_has_no_time_for_are_dropped(three: list[Party]) -> None:
    a = three[0]
    for _ in range(1_000):
        a.probing.schedule(B.peer)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(a.probing.run())
        await until(a.probing._queue.empty)
        running.cancel()
    assert a.counters["probes"] <= 256
