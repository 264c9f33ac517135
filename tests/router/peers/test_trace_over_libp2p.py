"""A request's id and trace cross a real libp2p pipe unchanged, inside TLS from node to node."""

from dataclasses import replace
from functools import partial

from registry.mesh.libp2p.mesh import LibP2PMesh
from registry.records import Reach
from router.answer import Route
from router.dialects.peer import create
from router.peers.links import Links
from router.peers.pipes import serve_pipe
from router.peers.tls import certificate_of
from router.requests import PassedHeaders
from tests.registry.mesh.worlds import (
    LibP2PWorld,
    echo,
    identity,
    return_everything,
    settings,
    until,
    world_of,
)
from tests.router.peer_node import OverMesh, at, peer_node
from tests.router.world import OWN, QUICK, chat, own, whole
from tests.workers.openai_worker import running

TRACE = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "rojo=00f067aa0ba902b7",
}


async def test_id_and_trace_are_the_same_at_the_other_end_of_a_pipe() -> None:
    there = identity("there")
    reaches = {
        OWN.peer: Reach(links=("127.0.0.1:1",)),
        there.peer: Reach(certificate=certificate_of(there)),
    }
    async with (
        running() as worker,
        peer_node(own(worker.url), identity=there) as node,
        world_of(LibP2PWorld) as world,
    ):
        seat = await world.seat("there", serve_pipe=partial(serve_pipe, port=node.port))
        mesh = LibP2PMesh(OWN, settings(bootstrap=tuple(seat.mesh.addresses())))
        await mesh.start(echo, return_everything)
        links = Links(
            identity=OWN,
            peers=OverMesh(mesh, reaches),
            settings=QUICK,
        )
        try:
            await until(lambda: OWN.peer in seat.peers())
            request = replace(chat(), id="over-a-pipe-1", passed=PassedHeaders(TRACE))
            async with create(links).answer(request, at(node)) as answer:
                assert answer.route is Route.DIRECT
                assert await whole(answer)
        finally:
            await links.close()
            await mesh.stop()
        (headers,) = node.received
        assert headers["x-request-id"] == "over-a-pipe-1"
        assert {name: headers[name] for name in TRACE} == TRACE
        assert worker.received[-1].headers["x-request-id"] == "over-a-pipe-1"
