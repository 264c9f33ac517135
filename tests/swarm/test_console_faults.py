"""Can an operator find a fault in the console alone: a dead worker, a node with another swarm key, one slow machine?"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from node.secrets.secret_files import write_new_swarm_key
from tests.swarm import browser
from tests.swarm.browser import Page
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.test_console import go, violations

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.skipif(
        browser.found() is None and "CI" not in os.environ,
        reason="there is no chromium here: apt-get install chromium",
    ),
]

SLOW = 1.0
"""Seconds to the first token on the slow machine."""


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    """A swarm of its own for each fault."""
    with Swarm(tmp_path) as swarm:
        yield swarm


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """A page of a browser of its own."""
    async with browser.page(tmp_path / "browser") as opened:
        await opened.look()
        yield opened


async def started(swarm: Swarm, *starts: Start) -> list[Node]:
    return await asyncio.to_thread(swarm.start_all, *starts)


def named(name: str) -> Start:
    return Start(name, {"node": {"name": name}})


async def ask_all(page: Page) -> None:
    await go(page, "Playground")
    await page.shows("document.querySelector('[name=model] option')")
    await page.run("document.querySelector('[name=model]').value = 'tiny'")
    await page.type("prompt", "What grows on a vine?")
    await page.click("button", "Send to all replicas")


async def test_a_dead_worker_is_found(swarm: Swarm, page: Page, client: Client) -> None:
    first, second = await started(swarm, named("atlas"), named("borealis"))
    worker = await asyncio.to_thread(swarm.start_worker, "worker")
    await client.register(second, "lab", ["tiny"], worker.fields["url"])
    await client.listed([first], "tiny")
    swarm.kill(worker)

    # Seen from the node that was asked: the request, and the node that failed it.
    await page.open(f"{first.http}/")
    await ask_all(page)
    await go(page, "Requests")
    await page.click("td .open", "")
    # A request waits for a worker that may come back.
    await page.says("Failed attempts", within=15)
    failed = await page.run("document.querySelector('[aria-label=\"Failed attempts\"]').innerText")
    assert "borealis" in failed
    assert "cannot be reached: connection refused" in failed
    # Seen from the worker's node: which of its models has no answer.
    await page.open(f"{second.http}/#models")
    await page.says("no answer for")


async def test_a_node_with_another_swarm_key_is_found_at_either_end(
    swarm: Swarm, page: Page, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours.key", tmp_path / "theirs.key"
    for key in (ours, theirs):
        write_new_swarm_key(key)
    private = {"node": {"name": "private", "swarm_key": str(ours)}}
    strange = {"node": {"name": "strange", "swarm_key": str(theirs)}}
    first, second = await started(swarm, Start("private", private), Start("strange", strange))

    await page.open(f"{second.http}/")
    await page.says("Addresses that do not answer")
    await page.says(first.p2p)
    await page.says("the swarm keys differ", within=20)
    assert await violations(page) == []
    await page.open(f"{first.http}/")
    await page.says("failed in the handshake since this node started", within=20)
    await page.says("the swarm keys differ, only one side has one")


async def test_one_slow_machine_is_found(swarm: Swarm, page: Page, client: Client) -> None:
    first, second = await started(swarm, named("atlas"), named("borealis"))
    for node, delay in ((first, 0.01), (second, SLOW)):
        worker = await asyncio.to_thread(
            swarm.start_worker, f"worker-{node.name}", "--delay-first", str(delay)
        )
        await client.register(node, "lab", ["tiny"], worker.fields["url"])
    await client.met([first, second])
    await client.listed([first], "tiny")
    await page.open(f"{first.http}/")
    for _ in range(3):
        await ask_all(page)
        await page.shows(
            "document.querySelectorAll('.answers .card').length === 2 && "
            "document.querySelector('.answers').innerText.split('done after').length === 3"
        )
    await go(page, "Models")
    await page.says("borealis is slow with tiny", within=10)
    assert await violations(page) == []
    assert "atlas is slow" not in await page.run("document.getElementById('main').innerText")
