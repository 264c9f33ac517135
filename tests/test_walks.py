"""The paths of a request in docs/architecture.md: each module that the page names is entered, in the page's order."""

import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest

from node.compiled import is_compiled
from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import Running, World, node, until
from tests.workers.openai_worker import running

pytestmark = pytest.mark.skipif(is_compiled(), reason="machine code cannot be followed")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = tuple(f"{ROOT / package}/" for package in ("node", "registry", "router"))
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
HTTP = ("node/connections.py", "node/heads.py", "node/listeners.py")
"""The HTTP server, which is not counted: a walk is what happens between the handler and the worker."""

ROOMS, CALLS = 61, 296
"""Bounds of a warm chat: rooms (modules) that it enters, and calls from the handler to the end of the answer.

Calls are some twenty fewer where nothing is learnt from the answer: one in 10 ms is. Fifteen read the hash of a service.
"""


@dataclass
class Walk:
    """Rooms in the order in which they were entered, and the number of calls."""

    calls: int = 0
    steps: list[str] = field(default_factory=list)

    @property
    def rooms(self) -> set[str]:
        return set(self.steps)

    def see(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGES):
            module = path[len(str(ROOT)) + 1 :]
            if module.startswith(HTTP):
                return
            self.calls += 1
            if not self.steps or self.steps[-1] != module:
                self.steps.append(module)

    def goes_through(self, rooms: list[str]) -> None:
        """Check that these rooms are entered in this order, whatever lies between."""
        steps = iter(self.steps)
        for module in rooms:
            assert any(step.startswith(module) for step in steps), (module, self.steps)


async def walked(work: Callable[[], Awaitable[object]]) -> Walk:
    """Record every call in the event loop's thread while `work` runs, whichever task makes it."""
    walk = Walk()
    sys.setprofile(walk.see)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return walk


def named(title: str) -> list[str]:
    """Return the rooms of one path, as the page has them."""
    section = PAGE.partition(f"**{title}.**")[2].partition("\n\n\n")[0]
    rows = re.findall(r"^\| \d+ \| (.*?) \|", section, re.MULTILINE)
    numbers = re.findall(r"^\| (\d+) \|", section, re.MULTILINE)
    ends = next((index for index, n in enumerate(numbers) if index and n == "1"), len(rows))
    return [module for row in rows[:ends] for module in re.findall(r"`([\w/.]+)`", row)]


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[Running, Running]]:
    """Run two nodes that know each other; what the first publishes goes on at the second."""
    world = World(MemoryNet())
    async with node(world) as one, node(world) as two:
        await until(lambda: two.context.peer in one.context.registry.catalog.held)
        yield one, two


async def test_a_warm_chat_takes_the_path_that_the_page_describes() -> None:
    async with two_nodes() as (served, _), running() as worker, running() as other:
        await served.register(worker)
        await served.register(other, project="q")

        async def chat() -> None:
            async with served.http.post("/v1/chat/completions", json=CHAT) as response:
                assert response.status == 200
                await response.read()

        await chat()
        # Heartbeats are recorded too now and then: the shortest of several walks is the chat alone.
        walk = min([await walked(chat) for _ in range(15)], key=lambda walk: walk.calls)
    walk.goes_through(named("A chat completion"))
    print(f"{len(walk.rooms)} rooms, {walk.calls} calls, {len(walk.steps)} changes of room")  # noqa: T201
    assert len(walk.rooms) <= ROOMS
    assert walk.calls <= CALLS


async def test_a_stream_takes_the_path_that_the_page_describes() -> None:
    async with two_nodes() as (served, _), running() as worker:
        await served.register(worker)

        async def chat() -> None:
            async with served.http.post(
                "/v1/chat/completions", json={**CHAT, "stream": True}
            ) as response:
                assert response.status == 200
                await response.read()

        await chat()
        walk = await walked(chat)
    walk.goes_through(named("A stream"))


async def test_a_registration_takes_the_path_that_the_page_describes() -> None:
    async with two_nodes() as (served, other), running() as worker:

        async def register() -> None:
            await served.register(worker)
            registry = other.context.registry
            await until(
                lambda: any(signed.record.services for signed in registry.catalog.held.values())
            )

        walk = await walked(register)
    walk.goes_through(named("A registration"))


@pytest.mark.parametrize("title", ["A chat completion", "A registration"])
def test_the_page_describes_the_paths(title: str) -> None:
    assert len(named(title)) >= 5
