"""Whom to compare with: each peer once, a word from its owner where it is connected."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from registry import sync
from registry.comparison import Comparison
from registry.effects import Effect
from registry.mesh.memory.mesh import MemoryMesh
from registry.mesh.memory.network import MemoryNet, address_of
from registry.records import PeerId
from registry.replica import Replica
from registry.settings import RegistrySettings
from tests.registry.test_service import A, B, C, no_pipes, until

SETTINGS = RegistrySettings(sync=60.0)


async def ignore(effects: Sequence[Effect]) -> None:
    """Perform nothing."""


async def forgive(peer: PeerId) -> None:
    """Blame nobody."""


class Scene:
    """A compares with B and C, which count what they are asked."""

    def __init__(self) -> None:
        net = MemoryNet()
        self.asked: Counter[PeerId] = Counter()
        self.peers = [MemoryMesh(i.peer, net) for i in (B, C)]
        known = tuple(address_of(i.peer) for i in (B, C))
        self.mesh = MemoryMesh(A.peer, net, bootstrap=known)
        self.replica = Replica(A, SETTINGS, epoch=1, jitter=lambda: 0.5)
        self.comparing = Comparison(
            self.replica,
            self.mesh,
            SETTINGS,
            now=asyncio.get_running_loop().time,
            random=lambda: 0.0,
            perform=ignore,
            offended=forgive,
            counters=Counter(),
        )

    async def start(self) -> None:
        for mesh, owner in zip(self.peers, (B, C), strict=True):
            other = Replica(owner, SETTINGS, epoch=1, jitter=lambda: 0.5)
            await mesh.start(self.answering(other), no_pipes)
        await self.mesh.start(self.answering(self.replica), no_pipes)

    def answering(self, replica: Replica):
        async def answer(_: PeerId, question: bytes) -> bytes:
            self.asked[replica.peer] += 1
            return sync.answer(replica, question, 0.0)[0]

        return answer


async def test_a_peer_that_is_wanted_twice_is_asked_once() -> None:
    scene = Scene()
    await scene.start()
    for _ in range(5):
        scene.comparing.want(B.peer)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.comparing.run())
        await until(lambda: scene.asked[B.peer])
        running.cancel()
    assert scene.asked == {B.peer: 1}
    await scene.mesh.stop()


async def test_a_newer_word_is_fetched_from_its_owner_or_else_from_anyone() -> None:
    scene = Scene()
    await scene.start()
    scene.comparing.want_word_of(C.peer)
    scene.comparing.want_word_of(PeerId("somebody else"))
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
            scene.comparing.refresh(B.peer)
            scene.comparing.refresh(C.peer)
            await asyncio.sleep(0)
        await until(lambda: scene.asked == {B.peer: 1, C.peer: 1})
        running.cancel()
    await scene.mesh.stop()
