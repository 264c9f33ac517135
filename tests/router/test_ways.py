"""Laws of choosing a way: what failed is left alone for a while, longer each time, and then tried again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from registry.mesh.crew import Crew
from router.certificate import certificate_of, client_context
from router.dialects import Route
from router.ways import Proven, Shut, Untried, Way
from tests.router.peer_node import THERE, PeerNode, peer_node
from tests.router.world import OWN, QUICK, no_pipe

NOBODY = URL("https://127.0.0.1:1")


@asynccontextmanager
async def way_to(node: PeerNode) -> AsyncIterator[Way]:
    crew = Crew()
    way = Way(
        node.reach,
        client_context(OWN, certificate_of(THERE)),
        open_pipe=lambda: no_pipe(THERE.peer),
        relayed=lambda: True,
        crew=crew,
        settings=QUICK,
    )
    try:
        yield way
    finally:
        await way.close()
        await crew.dismiss()


@pytest.fixture
async def node() -> AsyncIterator[PeerNode]:
    async with peer_node() as started:
        yield started


def address(node: PeerNode) -> URL:
    return URL(f"https://127.0.0.1:{node.port}")


async def test_without_an_address_the_way_is_a_pipe(node: PeerNode) -> None:
    async with way_to(node) as way:
        assert (await way.link([])).route is Route.RELAY
        assert way._direct == Untried()


async def test_an_address_that_fails_again_is_left_alone_for_twice_as_long(node: PeerNode) -> None:
    async with way_to(node) as way:
        assert (await way.link([NOBODY])).route is Route.RELAY
        assert isinstance(way._direct, Shut)
        first = way._direct.pause
        way._direct = Shut(until=0.0, pause=first)
        await way.link([NOBODY])
        assert isinstance(way._direct, Shut)
        assert way._direct.pause == 2 * first
        assert way._direct.until > asyncio.get_running_loop().time() + first


async def test_the_pause_has_an_upper_bound(node: PeerNode) -> None:
    async with way_to(node) as way:
        way._direct = Shut(until=0.0, pause=320.0)
        await way.link([NOBODY])
        assert isinstance(way._direct, Shut)
        assert way._direct.pause == 320.0


async def test_an_address_that_came_back_is_taken_once_its_pause_is_over(node: PeerNode) -> None:
    async with way_to(node) as way:
        way._direct = Shut(until=asyncio.get_running_loop().time() + 60, pause=5.0)
        assert (await way.link([address(node)])).route is Route.RELAY
        way._direct = Shut(until=0.0, pause=5.0)
        link = await way.link([address(node)])
        assert (link.route, link.base) == (Route.DIRECT, address(node))


async def test_who_comes_while_an_address_is_tried_again_does_not_wait(node: PeerNode) -> None:
    async with way_to(node) as way:
        way._direct = Shut(until=0.0, pause=5.0)
        first, second = await asyncio.gather(way.link([address(node)]), way.link([address(node)]))
        assert (first.route, second.route) == (Route.DIRECT, Route.RELAY)


async def test_at_first_contact_everybody_waits_for_the_one_handshake(node: PeerNode) -> None:
    async with way_to(node) as way:
        found = await asyncio.gather(*(way.link([address(node)]) for _ in range(5)))
        assert {link.route for link in found} == {Route.DIRECT}


async def test_new_addresses_and_failed_requests_make_a_proven_address_doubtful(
    node: PeerNode,
) -> None:
    async with way_to(node) as way:
        way._direct = Proven(NOBODY)
        way.doubt()
        assert way._direct == Untried()
        way._direct = Shut(1.0, 5.0)
        way.doubt()
        assert way._direct == Shut(1.0, 5.0)
        way.learn(type(node.reach)(links=("192.0.2.1:1",), certificate=b""))
        assert way._direct == Untried()
