"""Laws of links to peers: only the peer's key is accepted, and no request waits for a way that failed."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from registry.records import PeerId, Reach
from registry.signing import Identity
from router.answer import Route
from router.dialects.peer import create
from router.errors import WorkerDied, WorkerError, WorkerFailed, WorkerUnreachable
from router.peers.links import Links
from router.peers.pipes import NoMesh
from router.peers.tls import certificate_of
from router.select.candidates import Candidate
from tests.router.peer_node import PeerNode, at, peer_node, way_to
from tests.router.world import OWN, QUICK, chat, own, until, whole
from tests.workers.openai_worker import running

EVE = Identity(bytes([9]) * 32)
TOGETHER = Reach(links=("127.0.0.1:1",))


async def route(links: Links, peer: PeerId) -> Route:
    async with links.visit(peer) as link:
        return link.route


async def answered(links: Links, node: PeerNode) -> bytes:
    async with create(links).answer(chat(), at(node)) as answer:
        return await whole(answer)


@dataclass
class CutOff(NoMesh):
    """Peers with a fixed answer to whether the node is cut off from them."""

    cut: bool = True

    def is_cut_off(self, peer: PeerId) -> bool:
        return self.cut


class Silent:
    """Server that accepts connections and sends nothing."""

    def __init__(self) -> None:
        self.heard = b""
        self.accepted = 0

    async def __aenter__(self) -> "Silent":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        while chunk := await reader.read(1000):
            self.heard += chunk
        writer.close()


async def test_an_impostor_receives_no_byte_of_a_request() -> None:
    """Another node answers at the address in the peer's record."""
    async with running() as worker, peer_node(own(worker.url), identity=EVE) as eve:
        reach = Reach(links=eve.reach.links, certificate=certificate_of(Identity(bytes([7]) * 32)))
        peer = Identity(bytes([7]) * 32).peer
        async with way_to(eve, reach={peer: reach}) as links:
            with pytest.raises(WorkerError):
                async with create(links).answer(chat(), Candidate(peer, own("").service)):
                    pass
        assert eve.received == []


async def test_a_record_with_the_address_and_certificate_of_another_node_leads_nowhere() -> None:
    """Peer ids are keys: a node with another certificate is not the peer that was asked."""
    async with running() as worker, peer_node(own(worker.url), identity=EVE) as eve:
        peer = Identity(bytes([7]) * 32).peer
        async with way_to(eve, reach={peer: eve.reach}) as links:
            with pytest.raises(WorkerUnreachable):
                async with create(links).answer(chat(), Candidate(peer, own("").service)):
                    pass
        assert eve.callers == []


@pytest.mark.parametrize(
    "certificate", [certificate_of(EVE), b"junk", b"", certificate_of(EVE)[:-1]]
)
async def test_a_record_with_an_invalid_or_foreign_certificate_leads_nowhere(
    certificate: bytes,
) -> None:
    async with peer_node() as node:
        reach = Reach(links=node.reach.links, certificate=certificate)
        async with way_to(node, reach={node.identity.peer: reach}) as links:
            with pytest.raises(WorkerUnreachable):
                await answered(links, node)
        assert node.callers == []


async def test_a_caller_that_the_node_does_not_trust_is_refused() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node:
        stranger = Links(
            identity=EVE,
            peers=NoMesh({EVE.peer: TOGETHER, node.identity.peer: node.reach}),
            settings=QUICK,
        )
        with pytest.raises(WorkerFailed):
            await answered(stranger, node)
        await stranger.close()
        assert node.received == []


ODD = ("xn--:5", "xn--a(:0", "[::ffff:1.2.3.4]@^@", "[", "a@b:1", ":1", "é:1", "\u2100:1")


async def test_the_one_address_that_answers_is_found_and_remembered() -> None:
    async with Silent() as silent, running() as worker, peer_node(own(worker.url)) as node:
        links_ = ("127.0.0.1:1", silent.address, "no address", "0.0.0.0:1", *ODD, *node.reach.links)
        reach = Reach(links=links_, certificate=node.reach.certificate)
        async with way_to(node, reach={node.identity.peer: reach}) as links:
            for _ in range(3):
                assert await answered(links, node)
                assert await route(links, node.identity.peer) is Route.DIRECT
        assert silent.accepted == 1
        assert b"HTTP" not in silent.heard


async def test_when_no_address_answers_a_pipe_is_used_and_the_addresses_are_not_tried_again() -> (
    None
):
    quick = QUICK.model_copy(update={"connect_timeout": 0.3})
    async with Silent() as silent, running() as worker, peer_node(own(worker.url)) as node:
        reach = Reach(links=(silent.address,), certificate=node.reach.certificate)
        async with way_to(
            node, settings=quick, relayed=True, reach={node.identity.peer: reach}
        ) as links:
            for _ in range(3):
                assert await answered(links, node)
                assert await route(links, node.identity.peer) is Route.RELAY
        assert silent.accepted == 1


async def test_a_node_that_moved_is_found_at_its_new_address() -> None:
    reaches = {OWN.peer: TOGETHER}
    async with running() as worker, peer_node(own(worker.url)) as after:
        async with peer_node(own(worker.url)) as before, way_to(after) as piped:
            links = Links(
                identity=OWN,
                peers=replace(piped._peers, reaches=reaches),
                settings=QUICK,
            )
            reaches[before.identity.peer] = before.reach
            assert await answered(links, before)
        # Its old address is refused once, without a wait; the next request looks up the addresses again.
        with pytest.raises(WorkerError):
            await answered(links, after)
        reaches[after.identity.peer] = after.reach
        assert await answered(links, after)
        assert await route(links, after.identity.peer) is Route.DIRECT
        await links.close()


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (TOGETHER, Route.DIRECT),
        (Reach(links=("127.0.0.1:1", "192.0.2.1:6102")), Route.RELAY),
        (Reach(links=("node.example:6102",)), Route.RELAY),
    ],
)
async def test_a_loopback_address_of_a_peer_is_used_only_if_all_own_addresses_are_loopback(
    ours: Reach, expected: Route
) -> None:
    async with (
        running() as worker,
        peer_node(own(worker.url)) as node,
        way_to(node, relayed=True, reach={OWN.peer: ours}) as links,
    ):
        assert await answered(links, node)
        assert await route(links, node.identity.peer) is expected


async def test_connections_to_a_peer_that_left_the_registry_are_closed() -> None:
    reaches = {OWN.peer: TOGETHER}
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as piped:
        links = Links(
            identity=OWN,
            peers=replace(piped._peers, reaches=reaches),
            settings=QUICK,
        )
        reaches[node.identity.peer] = node.reach
        async with links.visit(node.identity.peer) as link:
            del reaches[node.identity.peer]
            with pytest.raises(WorkerUnreachable):
                await answered(links, node)
            assert not link.pool.closed
        await until(lambda: link.pool.is_unused)
        await links.close()


async def test_an_answer_from_a_peer_that_left_the_registry_is_finished() -> None:
    reaches = {OWN.peer: TOGETHER}
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as piped:
        links = Links(identity=OWN, peers=replace(piped._peers, reaches=reaches), settings=QUICK)
        reaches[node.identity.peer] = node.reach
        worker.fail(delay_between=0.05)
        async with create(links).answer(chat(stream=True), at(node)) as answer:
            del reaches[node.identity.peer]
            with pytest.raises(WorkerUnreachable):
                await answered(links, node)
            assert (await whole(answer)).endswith(b"[DONE]\n\n")
        await links.close()


async def test_a_proven_address_is_at_hand_until_a_newer_version_has_another() -> None:
    reaches = {OWN.peer: TOGETHER}
    peers = NoMesh(reaches, version=1)
    async with running() as worker, peer_node(own(worker.url)) as node:
        peer, links = node.identity.peer, Links(identity=OWN, peers=peers, settings=QUICK)
        reaches[peer] = node.reach
        assert links.known_link(peer) is None
        assert await answered(links, node)
        link = links.known_link(peer)
        assert link is not None
        peers.version = 2
        assert links.known_link(peer) is link
        reaches[peer], peers.version = replace(node.reach, links=("127.0.0.1:1",)), 3
        assert links.known_link(peer) is None
        await links.close()


async def test_closing_the_links_leaves_no_task() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node:
        before = len(asyncio.all_tasks())
        async with way_to(node, direct=False) as links:
            assert await answered(links, node)
            assert len(links.tasks) == 1
        assert len(links.tasks) == 0
        await until(lambda: len(asyncio.all_tasks()) <= before + 2)


@pytest.mark.parametrize(("cut_off", "error"), [(True, WorkerUnreachable), (False, WorkerDied)])
async def test_a_hang_up_of_a_peer_that_is_cut_off_is_unreachable_and_not_a_death(
    *, cut_off: bool, error: type[WorkerError]
) -> None:
    async with peer_node() as node:
        peers = CutOff({OWN.peer: TOGETHER, node.identity.peer: node.reach}, cut=cut_off)
        links = Links(identity=OWN, peers=peers, settings=QUICK)
        died = WorkerDied("hung up")
        died.hung_up = True
        with pytest.raises(error):
            async with links.visit(node.identity.peer):
                raise died
        await links.close()


async def test_requests_stop_waiting_for_a_peer_that_is_given_up() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as links:
        worker.fail(delay_first=60.0)
        waiting = asyncio.ensure_future(answered(links, node))
        await until(lambda: len(worker.received) == 1)
        links.end_waits(node.identity.peer)
        with pytest.raises(WorkerUnreachable, match="stopped answering"):
            await waiting


async def test_an_answer_that_has_begun_goes_on_after_its_peer_is_given_up() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as links:
        worker.fail(delay_between=0.05)
        async with create(links).answer(chat(stream=True), at(node)) as answer:
            links.end_waits(node.identity.peer)
            assert (await whole(answer)).endswith(b"data: [DONE]\n\n")


async def test_a_proven_address_that_its_node_has_left_is_used_no_more() -> None:
    async with peer_node() as before:
        reaches = {OWN.peer: TOGETHER, before.identity.peer: before.reach}
        links = Links(identity=OWN, peers=NoMesh(reaches), settings=QUICK)
        async with links.visit(before.identity.peer) as link:
            assert links.known_link(before.identity.peer) is link
        reaches[before.identity.peer] = replace(before.reach, links=("127.0.0.1:2",))
        links.follow(before.identity.peer)
        assert links.known_link(before.identity.peer) is None
        # No ping went over its connection, which carries one request alone: it goes on.
        assert not link.pool.is_unused
        await links.close()
