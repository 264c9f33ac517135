"""Laws of choosing a way: an address that failed is tried again after a pause that doubles each time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from yarl import URL

from registry.records import PeerId
from registry.task_group import BackgroundTasks
from router.answer import Route
from router.http.pool import Objection
from router.peers.paths import NoneAnswered, PeerPath, Proven, Untried
from router.peers.pipes import NoMesh
from router.peers.tls import certificate_of, client_context
from tests.router.peer_node import THERE, PeerNode, peer_node
from tests.router.world import OWN, QUICK, until

NOBODY = URL("https://127.0.0.1:1")


@asynccontextmanager
async def way_to(
    node: PeerNode,
    *,
    straight: asyncio.Event | None = None,
    cut_off: bool = False,
    objection: Objection = lambda address, port: "",
) -> AsyncIterator[PeerPath]:
    """Yield a way to a node whose pipes run through a relay until `straight` is set."""
    crew = BackgroundTasks()

    class Relayed(NoMesh):
        async def connects_through_relay(self, _: PeerId) -> bool:
            return straight is None or not straight.is_set()

        def is_cut_off(self, _: PeerId) -> bool:
            return cut_off

    way = PeerPath(
        node.reach,
        client_context(OWN, certificate_of(THERE)),
        peers=Relayed(),
        peer=THERE.peer,
        tasks=crew,
        settings=QUICK,
        objection=objection,
    )
    try:
        yield way
    finally:
        way.close()
        await crew.cancel_all()


@pytest.fixture
async def node() -> AsyncIterator[PeerNode]:
    async with peer_node() as started:
        yield started


def address(node: PeerNode) -> URL:
    return URL(f"https://127.0.0.1:{node.port}")


async def test_without_an_address_a_pipe_is_used(node: PeerNode) -> None:
    async with way_to(node) as way:
        assert (await way.choose_link([])).route is Route.RELAY
        assert way._direct == Untried()


async def test_a_host_name_that_resolves_to_a_refused_address_is_not_connected_to(
    node: PeerNode,
) -> None:
    asked: list[tuple[str, int]] = []

    def objection(address: str, port: int) -> str:
        asked.append((address, port))
        return "loopback is our own" if address in ("127.0.0.1", "::1") else ""

    async with way_to(node, objection=objection) as way:
        assert (await way.choose_link([URL(f"https://localhost:{node.port}")])).route is Route.RELAY
        assert isinstance(way._direct, NoneAnswered)
    assert ("127.0.0.1", node.port) in asked


async def tried_again(way: PeerPath, *addresses: URL) -> Route:
    """Ask for a link once the pause is over, and let the new try end; return the route that was given meanwhile."""
    assert isinstance(way._direct, NoneAnswered)
    way._direct = NoneAnswered(until=0.0, pause=way._direct.pause, tried=way._direct.tried)
    link = await way.choose_link(list(addresses))
    await until(lambda: not len(way._tasks))
    return link.route


async def test_no_request_waits_twice_for_an_address_that_does_not_answer(node: PeerNode) -> None:
    async with way_to(node) as way:
        assert (await way.choose_link([NOBODY])).route is Route.RELAY
        assert isinstance(way._direct, NoneAnswered)
        first = way._direct.pause
        assert await tried_again(way, NOBODY) is Route.RELAY
        assert isinstance(way._direct, NoneAnswered)
        assert way._direct.pause == 2 * first
        assert way._direct.until > asyncio.get_running_loop().time() + first


async def test_the_pause_has_an_upper_bound(node: PeerNode) -> None:
    async with way_to(node) as way:
        way._direct = NoneAnswered(until=0.0, pause=320.0, tried=frozenset({NOBODY}))
        await tried_again(way, NOBODY)
        assert isinstance(way._direct, NoneAnswered)
        assert way._direct.pause == 320.0


async def test_an_address_that_came_back_is_used_after_it_was_tried_again(node: PeerNode) -> None:
    async with way_to(node) as way:
        later, tried = asyncio.get_running_loop().time() + 60, frozenset({address(node)})
        way._direct = NoneAnswered(until=later, pause=5.0, tried=tried)
        assert (await way.choose_link([address(node)])).route is Route.RELAY
        assert way._direct == NoneAnswered(until=later, pause=5.0, tried=tried)
        assert await tried_again(way, address(node)) is Route.RELAY
        link = await way.choose_link([address(node)])
        assert (link.route, link.base) == (Route.DIRECT, address(node))


async def test_a_new_address_is_waited_for_beside_one_that_failed(node: PeerNode) -> None:
    async with way_to(node) as way:
        await way.choose_link([NOBODY])
        link = await way.choose_link([NOBODY, address(node)])
        assert (link.route, link.base) == (Route.DIRECT, address(node))


async def test_at_first_contact_all_requests_wait_for_one_handshake(node: PeerNode) -> None:
    async with way_to(node) as way:
        found = await asyncio.gather(*(way.choose_link([address(node)]) for _ in range(5)))
        assert {link.route for link in found} == {Route.DIRECT}


async def test_a_failed_request_makes_only_a_proven_address_doubtful(
    node: PeerNode,
) -> None:
    async with way_to(node) as way:
        await way.choose_link([address(node)])
        assert isinstance(way._direct, Proven)
        way.recheck_address()
        assert way._direct == Untried()
        way._direct = NoneAnswered(1.0, 5.0)
        way.recheck_address()
        assert way._direct == NoneAnswered(1.0, 5.0)


async def test_an_address_that_the_record_no_longer_names_is_dropped(node: PeerNode) -> None:
    async with way_to(node) as way:
        await way.choose_link([address(node)])
        assert isinstance(way._direct, Proven)
        way._direct = Proven(replace(way._direct.link, base=NOBODY))
        assert (await way.choose_link([address(node)])).base == address(node)


async def test_addresses_of_a_forgiven_peer_are_waited_for_again(node: PeerNode) -> None:
    async with way_to(node) as way:
        way._direct = NoneAnswered(
            asyncio.get_running_loop().time() + 60, 5.0, frozenset({address(node)})
        )
        way.retry_addresses()
        assert (await way.choose_link([address(node)])).route is Route.DIRECT


async def test_addresses_of_a_peer_that_is_cut_off_are_not_waited_for(
    node: PeerNode,
) -> None:
    async with way_to(node, cut_off=True) as way:
        shut = NoneAnswered(asyncio.get_running_loop().time() + 60, 5.0, frozenset({address(node)}))
        way._direct = shut
        way.retry_addresses()
        assert way._direct is shut
        assert way._connect_timeout() < QUICK.connect_timeout


async def test_pipes_through_a_relay_are_not_reused_once_there_is_a_direct_way(
    node: PeerNode,
) -> None:
    straight = asyncio.Event()
    async with way_to(node, straight=straight) as way:
        before = await way.choose_link([])
        assert (await way.choose_link([])).pool is before.pool
        straight.set()
        after = await way.choose_link([])
        assert (before.route, after.route) == (Route.RELAY, Route.DIRECT)
        assert after.pool is not before.pool
        assert list(way._pipe_links) == [Route.DIRECT]
