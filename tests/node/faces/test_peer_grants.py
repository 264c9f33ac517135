"""Requests of other nodes where they need a grant: each is bound to the grant's terms and to the node that it is for."""

import time

import pytest

from node.auth import grants
from node.auth.grants import Terms
from node.config.settings import NodeSettings
from registry.mesh.memory import MemoryNet
from registry.records import Revocation
from router.peers.headers import HOP
from tests.node.faces.assembly import Pair, World, node, settings_of, told, until
from tests.node.faces.test_peer_access import speaking_as

CHAT = {"model": "tiny", "messages": []}
PATH = "/v1/chat/completions"


@pytest.fixture
async def mesh(worker):
    """Yield two nodes, of which the first has a worker and requires grants of other nodes."""
    world, wanting = World(MemoryNet()), NodeSettings(open="everybody", peers_need_grant=True)
    async with (
        node(world, settings_of().model_copy(update={"node": wanting}), dialled=True) as one,
        node(world, dialled=True) as two,
    ):
        await one.register(worker)
        pair = Pair(one, two)
        await pair.knows(two, "tiny")
        yield pair


async def shows(mesh, holder=None, **fields):
    """Have the second node present a grant of the first, and return that grant."""
    terms = Terms(expires=int(time.time() + 60), **fields)
    grant = await mesh.one.context.keys.grant("site-two", terms)
    links = mesh.two.context.links
    sealed = grants.written(grants.seal(grant, holder or mesh.two.identity.peer))
    links.set_introduction(sealed)
    return grant


async def ask(mesh, model="tiny"):
    return await told(mesh.two.http.post(PATH, json={**CHAT, "model": model}))


async def test_a_request_without_a_grant_is_refused_and_reaches_no_worker(mesh, worker):
    status, _ = await ask(mesh)
    assert status == 503
    assert worker.received == []
    async with speaking_as(mesh.two.identity, mesh.one) as session:
        headers = {HOP: mesh.two.identity.peer}
        status, body = await told(session.post(PATH, json=CHAT, headers=headers))
    assert (status, "modelvine invite" in body["message"]) == (403, True)


async def test_a_request_with_a_grant_is_answered_by_the_lane_and_by_aiohttp(mesh, worker):
    await shows(mesh)
    assert (await ask(mesh))[0] == 200
    async with mesh.two.http.post(PATH, json={**CHAT, "stream": True}) as response:
        assert (response.status, b"[DONE]" in await response.read()) == (200, True)
    assert len(worker.received) == 2
    # Workers see nothing of the grant.
    assert "mv_grant" not in repr(worker.received)


async def test_a_grant_admits_only_its_models_and_its_rates(mesh, worker):
    await mesh.one.register(worker, model="other")
    await mesh.knows(mesh.two, "other")
    await shows(mesh, models=("tiny",), rpm=1)
    assert (await ask(mesh, "other"))[0] >= 400
    assert (await ask(mesh))[0] == 200
    assert (await ask(mesh))[0] == 429
    assert len(worker.received) == 1


async def test_a_grant_made_for_another_node_is_refused(mesh, worker):
    await shows(mesh, holder=mesh.one.identity.peer)
    assert (await ask(mesh))[0] == 503
    assert worker.received == []


async def test_a_revoked_grant_ends_at_once(mesh):
    await shows(mesh)
    assert (await ask(mesh))[0] == 200
    await mesh.one.context.keys.revoke("site-two")
    assert (await ask(mesh))[0] == 503


async def test_a_revocation_reaches_the_nodes_that_trust_its_issuer(mesh):
    one, two = mesh.one.context, mesh.two.context
    two.keys._rules = two.keys._rules.__class__(two.peer, frozenset({one.peer}))
    await one.registry.publish_revocations((Revocation("0f" * 16, 4_000_000_000),))
    two.keys._replace(two.keys.keys)
    await until(lambda: "0f" * 16 in two.keys.table.rules.revoked)
