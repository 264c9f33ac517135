"""What becomes of the ways to a node, and of its loads, when it is lost and when it is back."""

from collections.abc import AsyncIterator

import pytest

from node.following import follow_loads, follow_ways
from registry.liveness import Presence
from registry.records import Load, PeerId, Service
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
