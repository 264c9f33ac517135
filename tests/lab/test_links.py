"""Slow and lossy links between five machines: news is later, no node is declared dead, and silence is still noticed."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.lab.asking import Asking
from tests.lab.lab import Lab, view_without
from tests.lab.net import Network
from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import percentile, show, until

LOSSY = 600.0 if os.environ.get("LAB_LONG") else 60.0
"""Seconds on slow links that lose packets."""

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300 + LOSSY)]

NOWHERE = "http://127.0.0.1:9/v1"

ROUTED_ROUND = 4.0
"""Seconds after which no request waits for a node that fell silent; one of them is for what lost packets add."""


@pytest.mark.parametrize(("ms", "lost", "turns", "goal"), [(10, 0.0, 40, 1.0), (150, 1.0, 25, 3.0)])
async def test_a_model_registered_at_one_node_is_visible_at_all_nodes_in_time(
    five: list[Node],
    network: Network,
    client: Client,
    ms: int,
    lost: float,
    turns: int,
    goal: float,
) -> None:
    network.delay(ms, jitter=ms / 10)
    network.lose(lost)
    seconds: list[float] = []
    for turn in range(turns):
        node, model = five[turn % 5], f"far-{ms}-{turn}"
        began = time.monotonic()
        await client.register(node, "far", [model], NOWHERE)
        seconds += await asyncio.gather(*(_lists(client, n, model, began) for n in five))
        await client.unregister(node, "far")
    network.heal()
    show(
        f"links of {ms} ms, {lost:g} % loss",
        registered=str(turns),
        visible_p50=percentile(seconds, 0.5),
        p99=percentile(seconds, 0.99),
        most=max(seconds),
    )
    assert percentile(seconds, 0.99) <= goal


async def _lists(client: Client, node: Node, model: str, since: float) -> float:
    async def so() -> bool:
        return model in await client.models(node)

    return await until(so, within=15, since=since, otherwise=f"{node.name} does not list {model}")


async def test_no_node_is_declared_dead_on_slow_links_with_2_percent_loss(
    five: list[Node], workers: dict[int, str], network: Network, client: Client
) -> None:
    models = [f"lossy-{host}" for host in range(2, 6)]
    for host, model in zip(range(2, 6), models, strict=True):
        await client.register(five[host - 1], "lossy", [model], workers[host])
    await client.listed(five, *models)
    await client.agreed(five)
    network.delay(100, jitter=10)
    network.lose(2.0)
    began = time.monotonic()
    samples, absent, states = 0, Counter[str](), Counter[str]()
    asking = [Asking(client, five[0], model, every=1.0) for model in models]
    async with asyncio.TaskGroup() as group:
        for asker in asking:
            group.create_task(asker.run())
        while time.monotonic() < began + LOSSY:
            next_look = time.monotonic() + 0.2
            samples += len(five)
            for node in five:
                names, view = await asyncio.gather(client.models(node), client.states(node))
                absent.update(f"{model} at {node.name}" for model in models if model not in names)
                states.update(view.get(other.peer, "gone") for other in five if other != node)
            await asyncio.sleep(max(0.0, next_look - time.monotonic()))
        for asker in asking:
            asker.end()
    for asker in asking:
        asker.check("100 ms, 2 % loss", since=began)
    show(
        "100 ms, 2 % loss",
        seconds=time.monotonic() - began,
        samples=str(samples),
        absent=str(dict(absent)),
        states_seen=str(dict(states)),
    )
    assert not absent
    assert not states["gone"]
    network.heal()
    await client.agreed(five, within=15)
    for host in range(2, 6):
        await client.unregister(five[host - 1], "lossy")


@pytest.mark.parametrize("silence", ["frozen", "unplugged"])
async def test_silence_of_a_node_on_slow_lossy_links_diverts_requests_and_removes_it_from_the_view(
    five: list[Node],
    workers: dict[int, str],
    lab: Lab,
    network: Network,
    client: Client,
    silence: str,
) -> None:
    silent, others = five[1], [five[0], *five[2:]]
    for node, host in ((1, 2), (2, 3)):
        await client.register(five[node], "slow", ["slow"], workers[host])
    await client.listed(five, "slow")
    await client.agreed(five)
    network.delay(50, jitter=5)
    network.lose(2.0)
    asking = [Asking(client, node, "slow", every=0.2) for node in (five[0], five[3])]
    async with asyncio.TaskGroup() as group:
        for asker in asking:
            group.create_task(asker.run())
        await asyncio.sleep(3)
        began = time.monotonic()
        if silence == "frozen":
            lab.freeze(silent)
        else:
            network.isolate(2)
        gone = await _out_of_view(client, others, silent)
        for asker in asking:
            asker.end()
    label = f"{silence}, 50 ms, 2 % loss"
    for asker in asking:
        asker.check(label, since=began, routed_round=ROUTED_ROUND)
    network.heal()
    lab.thaw(silent)
    back = await client.met(five, within=30)
    show(
        label,
        out_of_every_live_view_after=gone,
        back_after=back,
    )
    await client.agreed(five, within=15)
    for node in (1, 2):
        await client.unregister(five[node], "slow")


async def _out_of_view(client: Client, nodes: Sequence[Node], silent: Node) -> float:
    async def out() -> bool:
        return await view_without(client, nodes, silent.peer)

    return await until(out, within=15, otherwise="the silent node is still in a live view")
