"""What if large packets vanish between two machines (an MTU black hole)? Requests go another way, then in small packets."""

import asyncio
import time

import pytest

from tests.lab.net import Network
from tests.swarm.client import PROMPT, Client, Seen
from tests.swarm.nodes import Node
from tests.swarm.waiting import show

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

PASSES = 1300
"""Bytes of the largest packet that passes."""

LARGE = 1_000_000

NOTICED = 18.0
"""Seconds after which a stuck connection is cut: two checks, and up to one before the first."""

AT_ONCE = 2.0


async def ask(client: Client, node: Node, model: str, size: int) -> Seen:
    content = "x" * size
    body = {"model": model, "messages": [{**PROMPT[0], "content": content}]}
    return await client.post(node, "/v1/chat/completions", body)


async def test_requests_that_are_stuck_where_large_packets_vanish_are_answered_and_later_ones_at_once(
    five: list[Node], workers: dict[int, str], network: Network, client: Client
) -> None:
    for host in (2, 3):
        await client.register(five[host - 1], "both", ["both"], workers[host])
    await client.register(five[1], "solo", ["solo"], workers[2])
    await client.listed(five, "both", "solo")
    for _ in range(4):
        assert (await ask(client, five[0], "both", 1)).status == 200
    network.narrow(1, 2, PASSES)
    began = time.monotonic()
    both = [ask(client, five[0], "both", LARGE) for _ in range(6)]
    small = [ask(client, five[0], model, 1) for model in ("both", "solo")]
    stuck = await asyncio.gather(*both, ask(client, five[0], "solo", LARGE), *small)
    took = time.monotonic() - began
    later = [await ask(client, five[0], "solo", LARGE) for _ in range(5)]
    show("MTU black hole", stuck_for=took, slowest_later=max(answer.seconds for answer in later))
    assert [answer.status for answer in stuck] == [200] * len(stuck)
    assert took < NOTICED
    assert all(answer.status == 200 and answer.seconds < AT_ONCE for answer in later)
    assert "check the MTU of the path" in five[0].log
    assert set((await client.states(five[0])).values()) == {"alive"}
