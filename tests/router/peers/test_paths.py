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
from router.http.dial import Objection
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
    tasks = BackgroundTasks()

    class Relayed(NoMesh):
        async def connects_through_relay(self, _: PeerId) -> bool:
            return straight is None or not straight.is_set()

        def is_cut_off(self, _: PeerId) -> bool:
            return cut_off

    path = PeerPath(
        node.reach,
        client_context(OWN, certificate_of(THERE)),
        peers=Relayed(),
        peer=THERE.peer,
        tasks=tasks,
        settings=QUICK,
        objection=objection,
    )
    try:
        yield path
    finally:
        path.close()
        await tasks.cancel_all()


@pytest.fixture
async def node() -> AsyncIterator[PeerNode]:
    async with peer_node() as started:
        yield started


def address(node: PeerNode) -> URL:
    return URL(f"https://127.0.0.1:{node.port}")


async def test_without_an_address_a_pipe_is_used(node: PeerNode) -> None:
    async with way_to(node) as path:
        assert (await path.choose_link([])).route is Route.RELAY
        assert path._direct == Untried()


async def test_a_host_name_that_resolves_to_a_refused_address_is_not_connected_to(
    node: PeerNode,
) -> None:
    checked: list[tuple[str, int]] = []

    def objection(address: str, port: int) -> str:
        checked.append((address, port))
        return "loopback is our own" if address in ("127.0.0.1", "::1") else ""

    async with way_to(node, objection=objection) as path:
        assert (
            await path.choose_link([URL(f"https://localhost:{node.port}")])
        ).route is Route.RELAY
        assert isinstance(path._direct, NoneAnswered)
    assert ("127.0.0.1", node.port) in checked


async def tried_again(path: PeerPath, *addresses: URL) -> Route:
    """Ask for a link once the pause is over, and let the new try end; return the route that was given meanwhile."""
    assert isinstance(path._direct, NoneAnswered)
    path._direct = NoneAnswered(until=0.0, pause=path._direct.pause, tried=path._direct.tried)
    link = await path.choose_link(list(addresses))
    await until(lambda: not len(path._tasks))
    return link.route


async def test_no_request_waits_twice_for_an_address_that_does_not_answer(node: PeerNode) -> None:
    async with way_to(node) as path:
        assert (await path.choose_link([NOBODY])).route is Route.RELAY
        assert isinstance(path._direct, NoneAnswered)
        first = path._direct.pause
        assert await tried_again(path, NOBODY) is Route.RELAY
        assert isinstance(path._direct, NoneAnswered)
        assert path._direct.pause == 2 * first
        assert path._direct.until > asyncio.get_running_loop().time() + first


async def test_the_pause_has_an_upper_bound(node: PeerNode) -> None:
    async with way_to(node) as path:
        path._direct = NoneAnswered(until=0.0, pause=320.0, tried=frozenset({NOBODY}))
        await tried_again(path, NOBODY)
        assert isinstance(path._direct, NoneAnswered)
        assert path._direct.pause == 320.0


async def test_an_address_that_came_back_is_used_after_it_was_tried_again(node: PeerNode) -> None:
    async with way_to(node) as path:
        later, tried = asyncio.get_running_loop().time() + 60, frozenset({address(node)})
        path._direct = NoneAnswered(until=later, pause=5.0, tried=tried)
        assert (await path.choose_link([address(node)])).route is Route.RELAY
        assert path._direct == NoneAnswered(until=later, pause=5.0, tried=tried)
        assert await tried_again(path, address(node)) is Route.RELAY
        link = await path.choose_link([address(node)])
        assert (link.route, link.base) == (Route.DIRECT, address(node))


async def test_a_new_address_is_waited_for_beside_one_that_failed(node: PeerNode) -> None:
    async with way_to(node) as path:
        await path.choose_link([NOBODY])
        link = await path.choose_link([NOBODY, address(node)])
        assert (link.route, link.base) == (Route.DIRECT, address(node))


async def test_at_first_contact_all_requests_wait_for_one_handshake(node: PeerNode) -> None:
    async with way_to(node) as path:
        links = await asyncio.gather(*(path.choose_link([address(node)]) for _ in range(5)))
        assert {link.route for link in links} == {Route.DIRECT}


async def test_a_failed_request_makes_only_a_proven_address_doubtful(
    node: PeerNode,
) -> None:
    async with way_to(node) as path:
        await path.choose_link([address(node)])
        assert isinstance(path._direct, Proven)
        path.recheck_address()
        assert path._direct == Untried()
        path._direct = NoneAnswered(1.0, 5.0)
        path.recheck_address()
        assert path._direct == NoneAnswered(1.0, 5.0)


async def test_an_address_that_the_record_no_longer_names_is_dropped(node: PeerNode) -> None:
    async with way_to(node) as path:
        await path.choose_link([address(node)])
        assert isinstance(path._direct, Proven)
        path._direct = Proven(replace(path._direct.link, base=NOBODY))
        assert (await path.choose_link([address(node)])).base == address(node)


async def test_addresses_of_a_forgiven_peer_are_waited_for_again(node: PeerNode) -> None:
    async with way_to(node) as path:
        path._direct = NoneAnswered(
            asyncio.get_running_loop().time() + 60, 5.0, frozenset({address(node)})
        )
        path.retry_addresses()
        assert (await path.choose_link([address(node)])).route is Route.DIRECT


async def test_addresses_of_a_peer_that_is_cut_off_are_not_waited_for(
    node: PeerNode,
) -> None:
    async with way_to(node, cut_off=True) as path:
        shut = NoneAnswered(asyncio.get_running_loop().time() + 60, 5.0, frozenset({address(node)}))
        path._direct = shut
        path.retry_addresses()
        assert path._direct is shut
        assert path._connect_timeout() < QUICK.connect_timeout


async def test_pipes_through_a_relay_are_not_reused_once_there_is_a_direct_way(
    node: PeerNode,
) -> None:
    straight = asyncio.Event()
    async with way_to(node, straight=straight) as path:
        before = await path.choose_link([])
        assert (await path.choose_link([])).pool is before.pool
        straight.set()
        after = await path.choose_link([])
        assert (before.route, after.route) == (Route.RELAY, Route.DIRECT)
        assert after.pool is not before.pool
        assert list(path._pipe_links) == [Route.DIRECT]
