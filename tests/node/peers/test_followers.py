"""What the log says of nodes that come and go, and what becomes of the ways to them and of their loads."""

import logging
from collections.abc import AsyncIterator

import pytest

from node.peers.followers import follow_loads, follow_ways, tell_of
from registry import wire
from registry.members.liveness import Presence
from registry.mesh.memory.mesh import MemoryMesh
from registry.mesh.memory.network import MemoryNet
from registry.records import Load, PeerId, Record, Service, Standing, Version
from registry.service import Registry
from registry.settings import RegistrySettings
from registry.signing import Identity
from registry.store.memory import MemoryStore
from tests.router.test_dispatch import World
from tests.router.world import links

THEM = PeerId("them")
SERVICE = Service("p", "m")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with links() as ours:
        yield World(ours)


@pytest.mark.parametrize("away", [Presence.LOST, Presence.UNREACHABLE])
async def test_a_node_that_was_away_and_lives_is_tried_anew_once(
    world: World, away: Presence
) -> None:
    story = [Presence.ALIVE, away, Presence.SUSPECT, Presence.ALIVE, Presence.ALIVE]
    forgiven: list[PeerId] = []
    changed = follow_ways(world.links, lambda _: story[0], forgive=forgiven.append)
    while story:
        changed([THEM])
        del story[0]
    assert forgiven == [THEM]


async def test_an_address_of_a_node_that_we_do_not_reach_has_to_be_proven_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubted: list[PeerId] = []
    monkeypatch.setattr(world.links, "doubt", doubted.append)
    follow_ways(world.links, lambda _: Presence.UNREACHABLE, forgive=lambda _: None)([THEM])
    assert doubted == [THEM]


@pytest.mark.parametrize("gone", [Presence.LOST, Presence.LEFT])
async def test_what_a_node_said_of_its_load_is_forgotten_when_it_is_gone(
    world: World, gone: Presence
) -> None:
    presence = Presence.SUSPECT
    changed = follow_loads(world.router, lambda _: presence)
    world.router.hear(THEM, {SERVICE: Load(3)})
    changed([THEM])
    assert list(world.router.reports.of_node(THEM, 0.0))
    presence = gone
    changed([THEM])
    assert not list(world.router.reports.of_node(THEM, 0.0))


async def test_a_flood_of_new_nodes_is_a_few_lines_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 100.0
    registry = Registry(
        Identity(bytes(32)),
        RegistrySettings(strangers_per_second=100),
        store=MemoryStore(),
        mesh=MemoryMesh(Identity(bytes(32)).peer, MemoryNet()),
        epoch=1,
        now=lambda: now,
        random=lambda: 0.5,
    )
    registry.on_change(tell_of(registry, lambda: now))

    async def meet(number: int, standing: Standing = Standing.SERVING) -> None:
        other = Identity(number.to_bytes(32, "big"))
        said = Record(
            other.peer, Version(1, int(standing is Standing.LEFT)), standing, name=f"n{number}"
        )
        frame = wire.encode_record(said, other).frame
        await registry._perform(registry._replica.receive(frame, now, via=other.peer))

    with caplog.at_level(logging.INFO, "modelvine.node"):
        for number in range(1, 61):
            await meet(number)
        assert len(caplog.messages) == 20
        now += 1
        await meet(1, Standing.LEFT)
    gone = Identity((1).to_bytes(32, "big")).peer
    assert caplog.messages[0] == f"met node {gone} (n1), which serves 0 models"
    assert caplog.messages[20] == f"node {gone} (n1) has left (before that 40 more came or went)"
