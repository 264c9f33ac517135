"""What if a machine cannot be dialled? Its models are asked for through a relay, and directly as soon as that is possible.

Hosts 1 and 2 are relays, 3 can be dialled as well; 4 and 5 sit behind routers of their own, with the same address inside.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.nat import INSIDE, NatNetwork
from tests.swarm.client import Client, Seen, events_of
from tests.swarm.nodes import Node
from tests.swarm.waiting import SLACK, few, show, until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(200)]

MODEL = "hidden"
SLOW = "slow"

DIALLED = 4.0
"""Seconds in which a first request finds out which addresses are dead."""


@pytest.fixture(scope="module")
def network(possible: None) -> Iterator[NatNetwork]:
    """Three hosts in the open, two behind routers."""
    with NatNetwork(hosts=5, hidden={4, 5}) as network:
        yield network


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Settings of a node that keeps two connections: with more, each of the five would be connected to all others."""
    written: Path = tmp_path_factory.mktemp("settings") / "sparse.toml"
    written.write_text("[mesh]\ndegree = 2\n")
    return f"--config={written}"


@pytest.fixture(scope="module")
def started(lab: Lab, sparse: str) -> list[Node]:
    """Nodes on hosts 1 to 5, that of host n at index n - 1."""
    relays = [lab.start(host, "--relay") for host in (1, 2)]
    open_ = lab.start(3, sparse, known=(1, 2))
    hidden = [lab.start(host, sparse, known=(1, 2), listen=INSIDE) for host in (4, 5)]
    return [*relays, open_, *hidden]


@pytest.fixture
async def nodes(lab: Lab, started: list[Node], client: Client) -> AsyncIterator[list[Node]]:
    """The five nodes, which know one another; host 4 serves a model, and is known to be reached through two relays."""
    await client.met(started, within=30)
    worker = lab.worker(4)
    await client.register(started[3], MODEL, [MODEL], worker)
    await client.listed(started, MODEL)
    await _at_relays(client, started[2], started[3], 2)
    yield started
    await client.unregister(started[3], MODEL)


async def _at_relays(client: Client, asked: Node, hidden: Node, count: int) -> float:
    """Wait until `asked` lists `count` addresses at relays for the hidden node."""

    async def told() -> bool:
        views = (await client.get(asked, "/api/v1/nodes"))["nodes"]
        (view,) = (v for v in views if v["node"] == hidden.peer)
        return sum("/p2p-circuit" in address for address in view["addresses"]) == count

    return await until(told, within=30, otherwise=f"{hidden.name} is not at {count} relays")


async def _routed(client: Client, asker: Node, by: Node, *, seconds: float) -> list[Seen]:
    """Ask a few times a second; every request is answered."""
    answers = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        answers.append(await client.chat(asker, MODEL))
        assert (answers[-1].status, answers[-1].node) == (200, by.peer), answers[-1]
        await asyncio.sleep(0.1)
    return answers


def _at_once(answers: Sequence[Seen]) -> None:
    """Check that no request waits for an address that is known to be dead."""
    assert few(sum(answer.seconds > 1 for answer in answers), len(answers))


def _show(label: str, answers: Sequence[Seen]) -> None:
    later = [answer.seconds for answer in answers[1:]]
    show(
        label,
        first=answers[0].seconds,
        second=answers[1].seconds,
        longest_after_the_first=max(later),
        routes=str(dict(Counter(answer.route for answer in answers))),
        first_direct=str(next((n for n, a in enumerate(answers) if a.route == "direct"), None)),
    )


async def test_a_hidden_node_is_asked_through_a_relay_and_soon_directly(
    nodes: list[Node], client: Client
) -> None:
    answers = await _routed(client, nodes[2], nodes[3], seconds=6)
    _show("open host asks a hidden one", answers)
    assert answers[0].route == "relay"
    assert answers[-1].route == "direct"
    _at_once(answers[1:])


async def test_two_hidden_nodes_talk_through_a_relay_and_wait_for_dead_addresses_once(
    nodes: list[Node], client: Client
) -> None:
    answers = await _routed(client, nodes[4], nodes[3], seconds=6)
    _show("hidden host asks a hidden one", answers)
    assert {answer.route for answer in answers} == {"relay"}
    assert answers[0].seconds < SLACK * DIALLED
    _at_once(answers[1:])


async def test_events_come_one_by_one_through_a_relay_and_hanging_up_reaches_the_worker(
    nodes: list[Node], lab: Lab, client: Client
) -> None:
    hidden, asker = nodes[3], nodes[4]
    worker = lab.worker(4, "--delay-between=3")
    await client.register(hidden, SLOW, [SLOW], worker)
    await client.listed(nodes, SLOW)

    async def busy() -> bool:
        return bool((await client.get(hidden, "/api/v1/status"))["in_flight"])

    async def idle() -> bool:
        return not await busy()

    async with client.stream(asker, SLOW) as response:
        assert response.headers["x-modelvine-route"] == "relay"
        async for _ in events_of(response):
            break
        assert await busy()
    free_after = await until(idle, within=2, otherwise="the worker goes on for nobody")
    show("hung up through a relay", worker_free_after=free_after)
    await client.unregister(hidden, SLOW)


async def test_a_relay_that_dies_is_replaced_by_the_other_one_then_by_a_member_then_requests_get_a_5xx(
    nodes: list[Node], lab: Lab, client: Client
) -> None:
    hidden, asker = nodes[3], nodes[4]
    assert (await client.chat(asker, MODEL)).route == "relay"
    began = time.monotonic()
    lab.kill(nodes[0])

    async def answered() -> bool:
        answer = await client.chat(asker, MODEL)
        return (answer.status, answer.node) == (200, hidden.peer)

    by_the_other = await until(answered, within=20, otherwise="the other relay does not help")
    await _at_relays(client, nodes[1], hidden, 1)
    forgotten = time.monotonic() - began
    await _routed(client, asker, hidden, seconds=2)
    lab.kill(nodes[1])
    by_a_member = await until(answered, within=20, otherwise="no member carries the circuit")
    lab.kill(nodes[2])
    none_left = await client.chat(asker, MODEL)
    assert none_left.status in (502, 503, 504), none_left
    back = lab.start(1, "--relay")
    again = await until(answered, within=40, otherwise="the relay came back for nothing")
    show(
        "relays die",
        answered_by_the_other_after=by_the_other,
        dead_one_out_of_the_record_after=forgotten,
        answered_by_a_member_after=by_a_member,
        without_any=str((none_left.status, none_left.body[:80])),
        answered_after_one_came_back=again,
    )
    assert back.running
