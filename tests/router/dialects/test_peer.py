"""How a request is sent on to another node."""

import pytest

from registry.records import PeerId, Service
from router.candidates import Candidate
from router.dialects.peer import create
from router.errors import WorkerStale, WorkerUnreachable
from router.requests import Kind, Request
from tests.router.peer_node import at, peer_node, way_to
from tests.router.world import MODEL, OWN, chat, own, whole
from tests.workers.openai_worker import running


async def test_the_other_node_learns_who_asks_for_which_replica_and_nothing_of_the_caller() -> None:
    passed = {"traceparent": "00-1", "authorization": "Bearer k", "cookie": "c=1"}
    request = Request(
        "r-9", Kind.CHAT, f"p/{MODEL}", b'{"model":"p/llama"}', "application/json", passed=passed
    )
    async with (
        running() as worker,
        peer_node(own(worker.url, cid="2")) as node,
        way_to(node) as links,
    ):
        candidate = Candidate(node.identity.peer, Service("p", MODEL, "2"))
        async with create(links).answer(request, candidate) as answer:
            assert b'"llama"' in await whole(answer)
    [headers] = node.received
    assert node.callers == [OWN.peer]
    assert headers["x-modelvine-hop"] == OWN.peer
    assert (headers["x-modelvine-project"], headers["x-modelvine-cid"]) == ("p", "2")
    assert (headers["x-request-id"], headers["traceparent"]) == ("r-9", "00-1")
    assert not {"authorization", "cookie"} & {name.lower() for name in headers}


async def test_a_node_that_has_lost_the_model_says_that_we_are_behind() -> None:
    async with peer_node() as node, way_to(node) as links:
        with pytest.raises(WorkerStale):
            async with create(links).answer(chat(), at(node)):
                pass


async def test_a_node_that_nothing_is_known_of_is_unreachable() -> None:
    async with peer_node() as node, way_to(node) as links:
        with pytest.raises(WorkerUnreachable):
            async with create(links).answer(
                chat(), Candidate(PeerId("nobody"), Service("p", MODEL))
            ):
                pass
