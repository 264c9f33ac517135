"""Warnings of bootstrap addresses that do not answer: with the reason, soon, and rarely afterwards."""

import re
import socket

import pytest

from node.peers.bootstrap import (
    AGAIN,
    GRACE,
    NEWS,
    SILENCE,
    STEADY,
    Contact,
    ContactWaits,
    contacts,
    shown,
    summary,
)
from registry.mesh.memory import MemoryMesh, MemoryNet, MemoryPipe, address_of
from registry.signing import Identity
from tests.swarm.client import Client
from tests.swarm.nodes import Start, Swarm
from tests.swarm.waiting import SLACK, show, until

OWN, OTHER, THIRD = (Identity(bytes([n]) * 32).peer for n in (1, 2, 3))
REFUSED = "connection refused"


def at(number: int, *, answers: bool = False, reason: str = REFUSED) -> Contact:
    address = f"/ip4/192.0.2.{number}/tcp/6101/p2p/{OTHER}"
    return Contact(address, answers, "" if answers else reason)


async def _nothing(*_: object) -> bytes:
    return b""


async def _serve(_: MemoryPipe) -> None:
    return None


async def mesh_of(net: MemoryNet, peer: str, *bootstrap: str) -> MemoryMesh:
    mesh = MemoryMesh(peer, net, bootstrap=bootstrap)
    await mesh.start(_nothing, _serve)
    return mesh


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], ""),
        ([at(1, answers=True)], "1 of 1 bootstrap addresses answer"),
        ([at(1)], "0 of 1 bootstrap addresses answer: connection refused"),
        ([at(1), at(2)], "0 of 2 bootstrap addresses answer: connection refused"),
        (
            [at(1), at(2, answers=True), at(3, reason="timed out"), at(4, reason="")],
            "1 of 4 bootstrap addresses answer: connection refused; timed out; no answer yet",
        ),
        (
            [at(n, reason=f"reason {n}") for n in range(5)],
            "0 of 5 … reason 0; reason 1; reason 2; …",
        ),
    ],
)
def test_the_summary_counts_addresses_that_answer_and_says_why_the_rest_do_not(
    found: list[Contact], said: str
) -> None:
    first, _, last = said.partition(" … ")
    assert summary(found).startswith(first)
    assert summary(found).endswith(last)


async def test_a_connected_address_answers_and_an_unconnected_one_has_a_reason() -> None:
    net = MemoryNet()
    addresses = (address_of(OTHER), address_of(THIRD))
    mesh = await mesh_of(net, OWN, *addresses)
    await mesh_of(net, OTHER)
    found = contacts(addresses, mesh)
    assert found == (
        Contact(addresses[0], answers=True),
        Contact(addresses[1], answers=False, why="nobody is there"),
    )
    assert shown(found)["addresses"][1]["why"] == "nobody is there"


async def test_a_nodes_own_address_counts_only_if_it_has_no_other() -> None:
    mesh = await mesh_of(MemoryNet(), OWN)
    (alone,) = contacts([address_of(OWN)], mesh)
    assert alone.why == "it is this node's own address"
    (other,) = contacts([address_of(OWN), address_of(OTHER)], mesh)
    assert other.address == address_of(OTHER)


def test_the_first_warning_comes_soon_and_later_ones_rarely() -> None:
    waits, warned = ContactWaits(), []
    for second in range(int(2.5 * AGAIN)):
        warned += [second for _ in waits.overdue([at(1)], float(second))]
    assert warned == [GRACE, GRACE + AGAIN, GRACE + 2 * AGAIN]


def test_an_address_that_neither_answers_nor_fails_is_warned_of_too() -> None:
    waits = ContactWaits()
    silent = [at(1, reason="")]
    warned = [n for n in range(20) if waits.overdue(silent, float(n))]
    assert warned == [SILENCE]
    # Then the reason is known.
    assert not waits.overdue([at(1)], 20.0)
    assert waits.overdue([at(1)], SILENCE + NEWS) == [at(1)]


def test_a_restart_of_the_other_node_is_not_reported_but_its_return_after_a_warning_is() -> None:
    waits = ContactWaits()
    assert not waits.overdue([at(1)], 0.0)
    answering = [at(1, answers=True)]
    assert not waits.recovered(answering, 1.0)
    assert not waits.overdue(answering, 1.0)
    assert not waits.overdue([at(1)], 100.0)
    assert waits.overdue([at(1)], 100.0 + GRACE) == [at(1)]
    assert not waits.overdue(answering, 110.0)
    assert not waits.recovered(answering, 110.0 + STEADY - 1)
    assert waits.recovered(answering, 110.0 + STEADY) == answering
    waits.overdue(answering, 110.0 + STEADY)
    assert not waits.recovered(answering, 111.0 + STEADY)


@pytest.mark.parametrize("pause", [2, 20])
def test_a_node_that_ends_each_connection_is_warned_of_rarely_and_never_said_to_answer(
    pause: int,
) -> None:
    waits, warned = ContactWaits(), []
    for second in range(int(AGAIN)):
        answers = second % pause == 1
        # Some dials fail with a reason, as where the other end is late to close.
        current = [at(1, answers=answers, reason=REFUSED if second % 7 == 0 else "")]
        assert not waits.recovered(current, float(second))
        warned += [(second, c.why) for c in waits.overdue(current, float(second))]
    ((second, why),) = warned
    assert GRACE <= second <= GRACE + 1
    assert "may not admit this node" in why


# A real node.


async def test_a_node_whose_bootstrap_address_is_wrong_says_so_everywhere(
    swarm: Swarm, client: Client
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    wrong = f"/ip4/127.0.0.1/tcp/{port}/p2p/{OTHER}"
    node = swarm.start(Start("lonely", {"mesh": {"bootstrap": [wrong]}}))
    line = f"WARNING modelvine.node  bootstrap address {wrong} does not answer: connection refused"
    seconds = await until(lambda: line in node.log, within=10, otherwise="nothing is said")
    show("wrong bootstrap", warned_after=seconds)
    assert seconds < 10 * SLACK
    text = "0 of 1 bootstrap addresses answer: connection refused"
    ready = await client.get(node, "/readyz")
    assert (ready["status"], ready["parts"]["bootstrap"]) == ("degraded", text)
    status = await client.get(node, "/api/v1/status")
    assert status["bootstrap"]["summary"] == status["ready"]["bootstrap"] == text
    peers = await client.get(node, "/api/v1/nodes")
    assert peers["bootstrap"]["addresses"] == [{"address": wrong, "answers": False, "why": REFUSED}]
    assert node.log.count("does not answer") == 1


async def test_the_log_says_which_nodes_joined_and_which_have_left(
    swarm: Swarm, client: Client
) -> None:
    one = swarm.start(Start("one"))
    two = swarm.start(Start("two", {"node": {"name": "gpu-2"}}), known=[one])
    met = f"node {two.peer} (gpu-2) joined, with 0 models"
    await until(lambda: met in one.log, within=10, otherwise="nobody was met")
    other = re.compile(rf"node {one.peer} .*joined")
    await until(lambda: bool(other.search(two.log)), within=10, otherwise="nobody was met")
    ready = await client.get(two, "/readyz")
    assert (ready["status"], ready["parts"]["bootstrap"]) == ("ok", "ok")
    assert swarm.stop(two) == 0
    left = f"node {two.peer} (gpu-2) has left"
    await until(lambda: left in one.log, within=10, otherwise="nobody has left")
    assert not re.search(r"WARNING.*bootstrap", one.log + two.log)
