"""Wrong clocks, an hour ahead, an hour behind, or jumping: they have no effect, even where a disk was lost as well."""

import asyncio
import time
from email.utils import parsedate_to_datetime
from itertools import permutations
from pathlib import Path

import pytest

from tests.lab.asking import Asking, watch
from tests.lab.clock import HOUR, Clock, compiler
from tests.lab.lab import Lab
from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import show, until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(200)]

NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture(scope="module")
def clocks(lab: Lab) -> dict[int, Clock]:
    """A clock that is an hour ahead on host 2 and one that is an hour behind on host 3."""
    if compiler() is None:
        pytest.skip("THE TESTS OF WRONG CLOCKS DO NOT RUN: they need a C compiler (cc)")
    return {
        host: Clock(lab.folder, f"h{host}", ahead=ahead) for host, ahead in ((2, HOUR), (3, -HOUR))
    }


@pytest.fixture(scope="module")
def started(lab: Lab, clocks: dict[int, Clock]) -> list[Node]:
    """A node whose clock is right, one that is ahead, one that is behind."""
    return [lab.start(host, clock=clocks.get(host)) for host in (1, 2, 3)]


@pytest.fixture(scope="module")
def workers(lab: Lab) -> list[str]:
    """A worker on each of the three hosts."""
    return [lab.worker(host) for host in (1, 2, 3)]


async def _ahead(client: Client, node: Node) -> float:
    """Return how many seconds a node's answers are dated ahead of our clock."""
    async with client.session.get(f"{node.http}/healthz") as response:
        return parsedate_to_datetime(response.headers["Date"]).timestamp() - time.time()


async def test_nodes_with_clocks_an_hour_off_meet_list_and_route_as_usual(
    started: list[Node], workers: list[str], client: Client
) -> None:
    met = await client.met(started, within=30)
    ahead = [await _ahead(client, node) for node in started]
    assert ahead == pytest.approx([0.0, HOUR, -HOUR], abs=5)
    for node, url in zip(started, workers, strict=True):
        await client.register(node, "clock", [f"at-{node.name}"], url)
    listed = await client.listed(started, *(f"at-{node.name}" for node in started))
    for asked, by in permutations(started, 2):
        answer = await client.chat(asked, f"at-{by.name}")
        assert (answer.status, answer.node, answer.route) == (200, by.peer, "direct"), answer
    equal = await client.agreed(started)
    show("an hour wrong", met=met, listed=listed, digests_equal=equal)


async def test_a_clock_that_jumps_while_its_node_runs_disturbs_no_node_and_no_request(
    started: list[Node], clocks: dict[int, Clock], client: Client
) -> None:
    await client.met(started)
    jumping = started[1]
    asking = [
        Asking(client, started[0], f"at-{jumping.name}"),
        Asking(client, jumping, f"at-{started[2].name}"),
    ]
    began = time.monotonic()
    changes: list[tuple[float, str, str]] = []
    news: list[float] = []
    async with asyncio.TaskGroup() as group:
        for asker in asking:
            group.create_task(asker.run())
        group.create_task(watch(client, started, changes, seconds=12.0))
        for number, ahead in enumerate((-HOUR, 24 * HOUR, 0)):
            clocks[2].jump(ahead)
            assert await _ahead(client, jumping) == pytest.approx(ahead, abs=5)
            await client.register(jumping, "jump", [f"jump-{number}"], NOWHERE)
            news.append(await client.listed(started, f"jump-{number}"))
            await asyncio.sleep(3)
        for asker in asking:
            asker.end()
    longest = max(request.seen.seconds for asker in asking for request in asker.asked)
    for asker in asking:
        asker.check("a clock that jumps", since=began)
    show("a clock that jumps", news_visible_max=max(news), longest=longest)
    assert not changes
    await client.agreed(started)


async def test_a_node_that_lost_its_disk_and_runs_an_hour_behind_still_replaces_its_old_record(
    started: list[Node],
    clocks: dict[int, Clock],
    workers: list[str],
    lab: Lab,
    client: Client,
) -> None:
    others = started[:2]
    # Host 4's clock is right in its first run, so its next record seems an hour older than its last.
    first = await asyncio.to_thread(lab.start, 4)
    await client.met([*others, first])
    await client.register(first, "old", ["before"], NOWHERE)
    await client.listed([*others, first], "before")
    await asyncio.to_thread(lab.kill, first)
    _lose_disk(first.folder)
    clock = Clock(lab.folder, "h4", ahead=-HOUR)
    second = await asyncio.to_thread(lab.start, 4, clock=clock)
    assert second.peer == first.peer
    assert await _ahead(client, second) == pytest.approx(-HOUR, abs=5)
    began = time.monotonic()
    await client.register(second, "new", ["after"], workers[0])
    listed = await client.listed([*others, second], "after", within=15)

    async def forgotten() -> bool:
        lists = await asyncio.gather(*map(client.models, [*others, second]))
        return all("before" not in names for names in lists)

    gone = await until(forgotten, within=15, since=began, otherwise="the old word still stands")
    equal = await client.agreed([*others, second], within=15)
    show("disk lost, clock behind", listed=listed, old_word_gone=gone, digests_equal=equal)


def _lose_disk(folder: Path) -> None:
    """Leave a node nothing but its key."""
    key_file = folder / "identity.key"
    assert key_file.exists()
    for path in folder.iterdir():
        if path != key_file:
            path.unlink()
