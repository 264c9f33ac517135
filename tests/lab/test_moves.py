"""What if a machine gets another address while its node runs? Requests that wait at the old one are answered at the new one."""

import time

import pytest

from tests.lab.lab import Lab
from tests.lab.net import Network
from tests.swarm.client import Client
from tests.swarm.waiting import SLACK, show

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

FOLLOWED = 10.0
"""Seconds until the new address is published, and the connection to the old one has left a ping unanswered."""


async def test_a_request_to_a_machine_whose_address_has_changed_is_answered_at_the_new_one(
    lab: Lab, network: Network, client: Client
) -> None:
    nodes = [lab.start(host, listen="0.0.0.0") for host in (1, 2, 3)]
    await client.met(nodes, within=30)
    await client.register(nodes[1], "moves", ["moves"], lab.worker(2))
    await client.listed(nodes, "moves")
    assert (await client.chat(nodes[0], "moves")).status == 200
    address = network.move(2)
    began = time.monotonic()
    first = await client.chat(nodes[0], "moves")
    later = await client.chat(nodes[0], "moves")
    told = (await client.told(nodes[0]))[nodes[1].peer]
    show("another address", first=first.seconds, later=later.seconds)
    assert (first.status, later.status) == (200, 200), first
    assert time.monotonic() - began < SLACK * FOLLOWED
    assert any(f"/ip4/{address}/" in known for known in told["addresses"])
