"""Do twelve nodes that are killed at once come back on a machine without CPU to spare, and fall quiet?"""

import asyncio
import random
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from statistics import mean

import pytest

from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm, python
from tests.swarm.waiting import show, until

pytestmark = [pytest.mark.swarm, pytest.mark.alone, pytest.mark.timeout(300)]

NODES, BURNERS = 12, 4
BACK = 30.0
"""Seconds from the last start until all nodes list all."""

QUIET = 2000.0
"""Bytes that a node sends in a second at rest, at most; the goal is 1,000."""

LOOK = 5.0
"""Seconds over which they are counted."""

_COUNTED = re.compile(r"^COUNTED (\d+) (\d+)$", re.MULTILINE)
_BURN = "import time; print('ready', flush=True); end = time.monotonic() + 200\nwhile time.monotonic() < end: sum(range(10_000))"


async def counted(nodes: list[Node]) -> list[tuple[int, int]]:
    """Return how many bytes each node has sent, and how many messages of others it could not read."""
    counted_before = [len(_COUNTED.findall(node.log)) for node in nodes]
    for node in nodes:
        node.actor.process.send_signal(signal.SIGUSR1)

    def all_said() -> bool:
        return all(
            len(_COUNTED.findall(n.log)) > before
            for n, before in zip(nodes, counted_before, strict=True)
        )

    await until(all_said, within=10, otherwise="not every node says its counts")
    counts = [_COUNTED.findall(node.log)[-1] for node in nodes]
    return [(int(sent), int(garbled)) for sent, garbled in counts]


async def rate(nodes: list[Node]) -> float:
    """Return the bytes that a node sends in a second, on average."""
    before, began = await counted(nodes), time.monotonic()
    await asyncio.sleep(LOOK)
    after, took = await counted(nodes), time.monotonic() - began
    return mean(a[0] - b[0] for a, b in zip(after, before, strict=True)) / took


def all_again(swarm: Swarm, nodes: list[Node]) -> list[Node]:
    """Start all nodes again at once, at their old addresses."""
    with ThreadPoolExecutor(NODES) as pool:
        return [*pool.map(lambda node: swarm.again(node, known=nodes[:1]), nodes)]


def free_ports(count: int) -> list[int]:
    """Return ports that stay free while nothing listens: below those that the kernel gives to outgoing connections."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 10 * count):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found[:count]


@contextmanager
def starved(swarm: Swarm) -> Iterator[None]:
    """Have other processes compete for the CPU within the block."""
    burners = [swarm.start_program(f"burner{n}", *python("-c", _BURN)) for n in range(BURNERS)]
    try:
        yield
    finally:
        for burner in burners:
            swarm.kill(burner)


async def test_twelve_nodes_killed_at_once_are_back_and_quiet_on_a_starved_machine(
    swarm: Swarm, client: Client
) -> None:
    starts = [
        Start(f"n{port}", module="tests.swarm.counting_node", listen=f"/ip4/127.0.0.1/tcp/{port}")
        for port in free_ports(NODES)
    ]
    nodes = await asyncio.to_thread(swarm.start_all, *starts)
    await client.met(nodes)
    for node in nodes:
        node.actor.process.kill()
    for node in nodes:
        swarm.kill(node.actor)
    with starved(swarm):
        nodes = await asyncio.to_thread(all_again, swarm, nodes)
        met = await client.met(nodes, within=BACK)

        rates: list[float] = []

        async def are_quiet() -> bool:
            rates.append(await rate(nodes))
            return rates[-1] <= QUIET

        quiet = await until(are_quiet, within=20, otherwise="the nodes do not fall quiet")
    garbled = sum(garbled for _, garbled in await counted(nodes))
    show(
        "restarted",
        met=met,
        quiet=quiet,
        bytes_a_second=str(round(rates[-1])),
        garbled=str(garbled),
    )
    assert garbled == 0
    assert [line for node in nodes for line in node.log.splitlines() if "(/meshsub" in line] == []
