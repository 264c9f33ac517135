"""Choice of peers to compare with: each peer once, and for a record its owner where that is connected."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest

from registry import sync, wire
from registry.comparison import FETCHES_AT_ONCE, REFRESH, Comparison
from registry.effects import Effect
from registry.mesh.memory import MemoryMesh, MemoryNet, address_of
from registry.records import PeerId, Record, Version
from registry.replica import Replica
from registry.settings import RegistrySettings
from tests.registry.test_service import A, B, C, no_pipes, until

SETTINGS = RegistrySettings(sync=60.0)


class Scene:
    """A compares with B and C, which count what they are asked."""

    def __init__(self) -> None:
        net = MemoryNet()
        self.now = 0.0
        self.asked: Counter[PeerId] = Counter()
        self.counters: Counter[str] = Counter()
        self.offenders: list[PeerId] = []
        self.peers = [MemoryMesh(i.peer, net) for i in (B, C)]
        addresses = tuple(address_of(i.peer) for i in (B, C))
        self.mesh = MemoryMesh(A.peer, net, bootstrap=addresses)
        self.replica = Replica(A, SETTINGS, epoch=1, jitter=lambda: 0.5)
        self.comparing = Comparison(
            self.replica,
            self.mesh,
            self,
            SETTINGS,
            now=lambda: self.now,
            random=lambda: 0.0,
            performer=self,
            counters=self.counters,
        )

    async def start(self) -> None:
        for mesh, owner in zip(self.peers, (B, C), strict=True):
            other = Replica(owner, SETTINGS, epoch=1, jitter=lambda: 0.5)
            await mesh.start(self.answering(other), no_pipes)
        await self.mesh.start(self.answering(self.replica), no_pipes)

    async def perform(self, effects: Sequence[Effect]) -> None:
        """Ignore the effects; the replica has changed already."""

    def have_asked(self, times: float) -> bool:
        return self.asked.total() >= times

    async def note_offence(self, peer: PeerId, *, weight: float) -> None:
        """Take the place of the admission."""
        self.offenders.append(peer)

    def answering(self, replica: Replica):
        async def answer(_: PeerId, question: bytes) -> bytes:
            self.asked[replica.peer] += 1
            return sync.answer(replica, question, 0.0)[0]

        return answer


async def test_a_peer_that_is_wanted_twice_is_asked_once() -> None:
    scene = Scene()
    await scene.start()
    for _ in range(5):
        scene.comparing.schedule(B.peer)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.comparing.run())
        await until(lambda: scene.asked[B.peer])
        running.cancel()
    assert scene.asked == {B.peer: 1}
    await scene.mesh.stop()


async def test_a_newer_record_is_fetched_from_its_owner_or_else_from_any_peer() -> None:
    scene = Scene()
    await scene.start()
    scene.comparing.fetch_record(C.peer, Version(1, 1))
    scene.comparing.fetch_record(PeerId("somebody else"), Version(1, 1))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.comparing.run())
        await until(lambda: scene.asked == {B.peer: 1, C.peer: 1})
        running.cancel()
    await scene.mesh.stop()


async def test_a_node_that_a_request_found_changed_is_asked_at_once_and_no_more_than_once_a_second() -> (
    None
):
    scene = Scene()
    await scene.start()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.comparing.run())
        for _ in range(20):
            scene.comparing.refresh_record(B.peer)
            scene.comparing.refresh_record(C.peer)
            await asyncio.sleep(0)
        await until(lambda: scene.asked == {B.peer: 1, C.peer: 1})
        scene.now = REFRESH
        scene.comparing.refresh_record(C.peer)
        await until(lambda: scene.asked == {B.peer: 1, C.peer: 2})
        running.cancel()
    await scene.mesh.stop()


@pytest.mark.parametrize("said", [0, 1, 2])
async def test_a_peer_that_has_no_record_as_new_as_it_claims_offends(said: int) -> None:
    scene = Scene()
    await scene.start()
    for sequence in range(1, said + 1):
        record = Record(C.peer, Version(1, sequence))
        scene.replica.merge_record(wire.encode_record(record, C), heard_at=0.0, now=0.0)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.comparing.run())
        scene.comparing.fetch_record(C.peer, Version(1, 2))
        await until(lambda: scene.counters["syncs"] + scene.counters["syncs_failed"])
        # B did not claim anything; it was merely compared with.
        scene.comparing.schedule(B.peer)
        await until(lambda: scene.asked[B.peer])
        running.cancel()
    assert scene.offenders == ([] if said == 2 else [C.peer])
    await scene.mesh.stop()


async def test_claims_of_unconnected_nodes_share_a_few_fetches_and_a_connected_one_has_its_own() -> (
    None
):
    scene = Scene()
    await scene.start()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.comparing.run())
        for number in range(20):
            scene.comparing.fetch_record(PeerId(f"somebody {number}"), Version(1, 1))
            await until(partial(scene.have_asked, min(number + 1, FETCHES_AT_ONCE)))
        assert scene.asked.total() == FETCHES_AT_ONCE
        # A connected node has an allowance of its own.
        scene.comparing.fetch_record(C.peer, Version(1, 1))
        await until(lambda: scene.asked[C.peer])
        running.cancel()
    await scene.mesh.stop()
