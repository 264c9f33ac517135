"""Nodes that die as soon as they have joined: all others see it, on busy machines, in virtual time, seed by seed."""

import asyncio
import random

import pytest

from bench.seeds.loop import VirtualLoop
from registry.members.liveness import Presence
from registry.mesh.memory import MemoryNet
from tests.registry.test_service import PATIENT, A, B, C, agree, node, until


class BusyLoop(VirtualLoop):
    """A loop whose turns take time, so that events are read some time after they happened, in any order."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._chance = rng
        self._mean = rng.choice([0.001, 0.004, 0.015])

    def _run_once(self) -> None:
        self._jump.now += self._chance.expovariate(1 / self._mean)
        super()._run_once()


async def dies_and_comes_back(rng: random.Random) -> None:
    """Let A die a few turns of the loop after all know each other; C is connected to B alone."""
    net = MemoryNet()
    async with (
        node(net, A, settings=PATIENT) as a,
        node(net, B, bootstrap=(A,), settings=PATIENT) as b,
        node(net, C, bootstrap=(B,), settings=PATIENT) as c,
    ):
        await until(lambda: agree(a, b, c) and len(c.catalog.held) == 3)
        for _ in range(rng.choice([0, 1, 2, 3, 5, 8, 13, 20, 30])):
            await asyncio.sleep(0)
        a.mesh.fail()
        await until(lambda: {b.presence(A.peer), c.presence(A.peer)} == {Presence.LOST})
        a.mesh.recover()
        await until(lambda: {b.presence(A.peer), c.presence(A.peer)} == {Presence.ALIVE})


@pytest.mark.parametrize("seed", range(60))
def test_every_node_sees_the_loss_of_one_that_dies_as_soon_as_it_has_joined(seed: int) -> None:
    rng = random.Random(seed)
    with asyncio.Runner(loop_factory=lambda: BusyLoop(rng)) as runner:
        runner.run(dies_and_comes_back(rng))
