"""What if a firewall or NAT between machines forgets its connections? Requests on them move on once the nodes meet again."""

import asyncio
import time

import pytest

from tests.lab.lab import Lab
from tests.lab.net import Network
from tests.swarm.client import Client, events_of
from tests.swarm.nodes import Node
from tests.swarm.waiting import SLACK, show

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

MOVED_ON = 12.0
"""Seconds until the nodes have met over new connections, and the old ones were silent for five more."""


async def test_requests_on_connections_that_a_firewall_has_forgotten_are_answered_over_new_ones(
    five: list[Node], lab: Lab, network: Network, client: Client
) -> None:
    for host in (2, 3):
        worker = lab.worker(host, "--delay-between=0.5")
        await client.register(five[host - 1], "walled", ["walled"], worker)
    await client.listed(five, "walled")
    for _ in range(4):
        assert (await client.chat(five[0], "walled")).status == 200
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(read(client, five[0])) for _ in range(4)]
        await asyncio.sleep(1)
        network.forget_flows(1)
        began = time.monotonic()
        answers = await asyncio.gather(*(client.chat(five[0], "walled") for _ in range(6)))
        answered = time.monotonic() - began
    streamed = [stream.result() for stream in streams]
    show("forgotten by a firewall", answered=answered, streamed=time.monotonic() - began)
    # All paths of the node are dead for a moment: a request that tried both of them is told to come again.
    assert {answer.status for answer in answers} <= {200, 503}
    assert all(text.endswith("[DONE]") and "error" not in text for text in streamed), streamed
    assert time.monotonic() - began < SLACK * MOVED_ON
    assert (await client.chat(five[0], "walled")).status == 200


async def read(client: Client, node: Node) -> str:
    async with client.stream(node, "walled") as response:
        return "".join([event async for event in events_of(response)])
