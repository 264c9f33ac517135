"""Faults between five machines: each side keeps serving, and all are one mesh again when the fault is over."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations, product

import pytest

from tests.lab.asking import Asking, watch
from tests.lab.lab import Lab, view_without
from tests.lab.net import Network
from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import show, until

LONG = bool(os.environ.get("LAB_LONG"))
PARTITIONS = (20.0, 90.0, 600.0) if LONG else (20.0,)
"""Seconds."""

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300 + max(PARTITIONS))]

NOWHERE = "http://127.0.0.1:9/v1"
ROUTED_ROUND = 3.0
"""Seconds after which no request waits for a node that fell silent, not even one that was on its way to it."""

ACROSS = 5.0
"""Seconds after which a path that was cut is used again."""

THROUGH_ANOTHER = 8.0
"""Seconds that a request may take that was on its way when its node was cut off, and goes through another."""

FAILURES = {"parted", "failed", "missed", "unreached"}
"""Evidence that a node may name as the reason for a doubt."""


async def _gone(client: Client, nodes: Sequence[Node], *models: str, within: float = 10.0) -> float:
    async def nowhere() -> bool:
        lists = await asyncio.gather(*map(client.models, nodes))
        return all(names.isdisjoint(models) for names in lists)

    return await until(nowhere, within=within, otherwise=f"{models} are still listed")


async def _ask_once(client: Client, node: Node, model: str, *, by: Node) -> float:
    answer = await client.chat(node, model)
    assert (answer.status, answer.node) == (200, by.peer), answer
    return answer.seconds


@pytest.mark.parametrize("seconds", PARTITIONS)
async def test_both_sides_of_a_partition_keep_serving_and_are_one_mesh_again_after_it(
    five: list[Node], workers: dict[int, str], network: Network, client: Client, seconds: float
) -> None:
    await client.register(five[1], "both", ["both"], workers[2])
    await client.register(five[3], "both", ["both"], workers[4])
    await client.register(five[1], "left-old", ["left-old"], workers[2])
    await client.register(five[4], "right-old", ["right-old"], workers[5])
    await client.listed(five, "both", "left-old", "right-old")
    await client.agreed(five)
    began = time.monotonic()
    network.partition({1, 2}, {3, 4, 5})
    asking = [Asking(client, five[0], "both"), Asking(client, five[2], "both")]
    async with asyncio.TaskGroup() as group:
        for asker in asking:
            group.create_task(asker.run())
        news = await _changes_on_both_sides(client, five, workers)
        await _sides_know_of_each_other(client, five[:2], five[2:], began)
        await asyncio.sleep(began + seconds - time.monotonic())
        assert "right-new" not in await client.models(five[0])
        assert "left-new" not in await client.models(five[2])
        for asker in asking:
            asker.end()
    for asker in asking:
        asker.check(f"{seconds:g} s partition", since=began)
    healed = time.monotonic()
    network.heal()
    equal = await client.agreed(five, within=10)
    await client.met(five, within=20)
    await client.listed(five, "both", "left-new", "right-new")
    crossed = await _ask_once(client, five[0], "right-new", by=five[4])
    show(
        f"{seconds:g} s partition",
        news_served_on_its_side_within=news,
        digests_equal_after=equal,
        all_alive_and_routed_after=time.monotonic() - healed,
        first_request_across=crossed,
    )
    await _no_ghosts(client, five, "left-old", "right-old", seconds=6.0)
    for node, project in ((1, "both"), (3, "both"), (1, "left-new"), (4, "right-new")):
        await client.unregister(five[node], project)


async def _sides_know_of_each_other(
    client: Client, left: Sequence[Node], right: Sequence[Node], began: float
) -> None:
    """Check that operators are told of the doubt while it lasts, then of the loss, with its time and reason."""
    across = [*product(left, right), *product(right, left)]
    within = [*permutations(left, 2), *permutations(right, 2)]
    doubted = set[tuple[str, str]]()

    async def all_lost() -> bool:
        lost = 0
        for node, other in across:
            row = (await client.told(node))[other.peer]
            assert row["since"] <= time.monotonic() - began or row["state"] == "alive", row
            if row["state"] in ("suspect", "unreachable"):
                doubted.add((node.name, other.name))
                assert row["evidence"] in FAILURES, row
            lost += row["state"] == "lost" and row["evidence"] in ("doubt", "silence")
        return lost == len(across)

    await until(all_lost, within=15, otherwise="not every node counts the other side as lost")
    assert len(doubted) >= len(across) / 2
    for node, other in within:
        assert (await client.told(node))[other.peer]["state"] == "alive"


async def _changes_on_both_sides(
    client: Client, nodes: Sequence[Node], workers: Mapping[int, str]
) -> float:
    """Register and unregister on either side; return after how many seconds each side had the news and served it."""
    began = time.monotonic()
    left, right = nodes[:2], nodes[2:]
    await client.register(nodes[1], "left-new", ["left-new"], workers[2])
    await client.register(nodes[4], "right-new", ["right-new"], workers[5])
    await client.unregister(nodes[1], "left-old")
    await client.unregister(nodes[4], "right-old")
    await client.listed(left, "left-new")
    await client.listed(right, "right-new")
    await _gone(client, left, "left-old")
    await _gone(client, right, "right-old")
    await _ask_once(client, nodes[0], "left-new", by=nodes[1])
    await _ask_once(client, nodes[2], "right-new", by=nodes[4])
    return time.monotonic() - began


async def _no_ghosts(client: Client, nodes: Sequence[Node], *models: str, seconds: float) -> None:
    """Check for a while that withdrawn models are listed nowhere, and that requests for them get a 404."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for node in nodes:
            assert (await client.models(node)).isdisjoint(models)
        await asyncio.sleep(0.2)
    for model in models:
        assert (await client.chat(nodes[0], model)).status == 404


async def test_a_frozen_node_is_routed_round_at_once_leaves_the_view_and_comes_back(
    five: list[Node], workers: dict[int, str], lab: Lab, client: Client
) -> None:
    frozen, others = five[1], [five[0], *five[2:]]
    await client.register(frozen, "cold", ["cold"], workers[2])
    await client.register(five[2], "cold", ["cold"], workers[3])
    await client.register(frozen, "icy", ["icy"], workers[2])
    await client.listed(five, "cold", "icy")
    await client.agreed(five)
    asking = Asking(client, five[0], "cold", every=0.1)
    async with asyncio.TaskGroup() as group:
        group.create_task(asking.run())
        await asyncio.sleep(2)
        began = time.monotonic()
        lab.freeze(frozen)

        async def out() -> bool:
            return await view_without(client, others, frozen.peer)

        gone = await until(out, within=15, otherwise="the frozen node is still in a live view")
        asking.end()
    asking.check("frozen node", since=began, routed_round=ROUTED_ROUND)
    assert "icy" not in await client.models(five[0])
    lab.thaw(frozen)
    back = await client.met(five, within=20)
    back += await client.listed(five, "icy")
    await _ask_once(client, five[0], "icy", by=frozen)
    await _ask_once(client, frozen, "icy", by=frozen)
    show("frozen node", out_of_every_live_view_after=gone, back_after_thaw=back)
    await client.agreed(five)
    for node, project in ((1, "cold"), (2, "cold"), (1, "icy")):
        await client.unregister(five[node], project)


async def test_a_node_whose_cable_was_pulled_rejoins_with_its_changes_once_the_cable_is_back(
    five: list[Node], workers: dict[int, str], network: Network, client: Client
) -> None:
    away = five[3]
    await client.register(away, "wired", ["wired"], workers[4])
    await client.listed(five, "wired")
    network.link(4, up=False)
    began = time.monotonic()
    await client.register(away, "meanwhile", ["meanwhile"], workers[4])
    await client.register(five[4], "elsewhere", ["elsewhere"], workers[5])
    alone = await _ask_once(client, away, "meanwhile", by=away)
    await asyncio.sleep(began + 15 - time.monotonic())
    assert "meanwhile" not in await client.models(five[0])
    plugged = time.monotonic()
    network.link(4, up=True)
    equal = await client.agreed(five, within=15)
    await client.listed(five, "wired", "meanwhile", "elsewhere", within=15)
    await client.met(five, within=20)
    await _ask_once(client, five[0], "meanwhile", by=away)
    await _ask_once(client, away, "elsewhere", by=five[4])
    show(
        "link down 15 s",
        served_itself_in=alone,
        digests_equal_after=equal,
        all_alive_and_routed_after=time.monotonic() - plugged,
    )
    for node, project in ((3, "wired"), (3, "meanwhile"), (4, "elsewhere")):
        await client.unregister(five[node], project)


async def _ends_know_of_the_cut(client: Client, nodes: Sequence[Node], *, elapsed: float) -> None:
    """Check what operators are told at both ends of a cut between the first two nodes, and at the other nodes."""
    for node, other in permutations(nodes, 2):
        row = (await client.told(node))[other.peer]
        if {node.peer, other.peer} == {end.peer for end in nodes[:2]}:
            assert row["state"] == "unreachable", row
            assert row["evidence"] in FAILURES, row
            assert elapsed - 10 < row["since"] < elapsed, row
            assert row["why"]
        else:
            assert row["state"] == "alive", row


async def test_after_a_cut_in_one_direction_no_node_counts_as_dead_and_requests_go_another_way(
    five: list[Node], workers: dict[int, str], network: Network, client: Client
) -> None:
    await client.register(five[1], "deaf", ["deaf"], workers[2])
    await client.register(five[2], "deaf", ["deaf"], workers[3])
    await client.register(five[1], "mute", ["mute"], workers[2])
    await client.listed(five, "deaf", "mute")
    await client.agreed(five)
    asking = Asking(client, five[0], "deaf")
    began = time.monotonic()
    network.cut_one_way(1, 2)
    changes: list[tuple[float, str, str]] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(asking.run())
        await watch(client, five, changes, seconds=30.0)
        asking.end()
    asking.check("one-way cut", since=began, routed_round=ROUTED_ROUND)
    by_node = Counter(name for _, name, _ in changes)
    late = [change for change in changes if change[0] > began + 10]
    for changed_at, name, change in changes:
        print(f"  {changed_at - began:5.1f} s {name}: {change}")
    show(
        "one-way cut",
        changes_of_a_view_in_30_s=str(len(changes)),
        at=str(dict(by_node)),
        in_the_last_20_s=str(len(late)),
    )
    await _ends_know_of_the_cut(client, five, elapsed=time.monotonic() - began)
    healed = time.monotonic()
    network.heal()
    met = await client.met(five, within=20)

    async def reached() -> bool:
        answer = await client.chat(five[0], "mute")
        return (answer.status, answer.node) == (200, five[1].peer)

    await until(reached, within=ACROSS, otherwise="requests do not cross what was cut")
    # Only the two ends of the cut may doubt, and only each other; no node is declared dead.
    assert set(by_node) <= {five[0].name, five[1].name}
    assert not [change for _, _, change in changes if "gone" in change]
    # Each end may be in doubt before it is unreachable, and no state changes beyond that.
    assert len(changes) <= 4
    assert not late
    show("one-way cut", all_alive_after=met, routed_across_after=time.monotonic() - healed)
    for node, project in ((1, "deaf"), (1, "mute"), (2, "deaf")):
        await client.unregister(five[node], project)


@pytest.mark.parametrize("forth", [True, False], ids=["requests lost", "answers lost"])
async def test_a_node_that_alone_serves_a_model_is_asked_through_another_when_one_direction_is_cut(
    five: list[Node], workers: dict[int, str], network: Network, client: Client, *, forth: bool
) -> None:
    await client.register(five[4], "far", ["far"], workers[5])
    await client.listed(five, "far")
    await _ask_once(client, five[0], "far", by=five[4])
    # A connection that is cut in its first seconds may end by its first pings, which is reported as the worker's death.
    await asyncio.sleep(6)
    network.cut_one_way(*((1, 5) if forth else (5, 1)))
    first = await _ask_once(client, five[0], "far", by=five[4])
    later = [await _ask_once(client, five[0], "far", by=five[4]) for _ in range(20)]
    show("one-way cut, one serves", first=first, slowest_of_20_later=max(later))
    assert first < THROUGH_ANOTHER
    assert max(later) < ROUTED_ROUND
    network.heal()
    await client.met(five, within=20)

    async def directly() -> bool:
        return (await client.chat(five[0], "far")).route == "direct"

    back = await until(directly, within=60, otherwise="requests still go through another")
    show("one-way cut, one serves", directly_after=back)
    await client.unregister(five[4], "far")
