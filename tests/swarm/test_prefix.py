"""Do conversations return to the machine that has read them, while load stays even? Real nodes and workers, policy `prefix`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import pytest

from router.select.weights import GRACE, SLACK
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import show
from tests.workers.openai_worker import running

pytestmark = pytest.mark.swarm

MODEL = "remembered"
SYSTEM = {"role": "system", "content": "Answer as the handbook says. " * 1_000}
CHATS = 24
TURNS = 5
AT_ONE_TIME = 6
HELD = 12


@dataclass
class Chat:
    """One conversation: all share the system's long message and nothing else."""

    name: str
    said: list[dict[str, str]] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)

    @property
    def body(self) -> dict[str, Any]:
        return {"model": MODEL, "messages": [SYSTEM, *self.said]}

    async def turn(self, client: Client, entry: Node) -> None:
        self.said.append({"role": "user", "content": f"Question {len(self.said)} of {self.name}?"})
        seen = await client.post(entry, "/v1/chat/completions", self.body)
        assert seen.status == 200
        self.nodes.append(seen.node)
        self.said.append({"role": "assistant", "content": f"An answer to {self.name}."})


@pytest.fixture(scope="module")
def nodes(swarm: Swarm) -> list[Node]:
    return swarm.start_all(Start("entry", {"router": {"policy": "prefix"}}), "second", "third")


@pytest.fixture
async def entry(nodes: list[Node], client: Client) -> AsyncIterator[Node]:
    """A node among three that serve the model, each with a worker of its own whose streams do not end."""
    async with AsyncExitStack() as stack:
        for node in nodes:
            worker = await stack.enter_async_context(running())
            # Long beside what a busy machine adds, so that the workers are alike to the nodes as well.
            worker.fail(delay_headers=0.1, delay_between=60)
            await client.register(node, f"of-{node.name}", [MODEL], worker.url)
        await client.listed(nodes, MODEL)
        await client.agreed(nodes)
        yield nodes[0]
        for node in nodes:
            await client.unregister(node, f"of-{node.name}")


async def explained(client: Client, entry: Node, chat: Chat) -> list[dict[str, Any]]:
    asked = await client.session.post(f"{entry.http}/api/v1/route", json=chat.body)
    body = await asked.json()
    assert asked.status == 200, body
    return list(body["candidates"])


async def test_two_chats_return_to_their_own_machines_and_the_explanation_says_why(
    entry: Node, client: Client
) -> None:
    homes: dict[str, Chat] = {}
    for number in count():
        chat = Chat(f"long chat {number}")
        await chat.turn(client, entry)
        homes.setdefault(chat.nodes[0], chat)
        if len(homes) == 2:
            break
    for _ in range(TURNS):
        for chat in homes.values():
            await chat.turn(client, entry)
    for home, chat in homes.items():
        assert chat.nodes == [home] * (TURNS + 1)
        first, *others = await explained(client, entry, chat)
        assert (first["node"], first["chosen"]) == (home, True)
        # The system's message, and all turns but the answer to the last.
        assert f"it has read {2 * TURNS + 2} of this conversation's" in first["why"]
        assert all("has read" not in other["why"] for other in others)


async def test_chats_that_share_only_what_the_system_says_are_spread_and_each_stays_at_home(
    entry: Node, client: Client
) -> None:
    chats = [Chat(f"chat {number}") for number in range(CHATS)]
    places = asyncio.Semaphore(AT_ONE_TIME)

    async def go_on(chat: Chat) -> None:
        for _ in range(TURNS):
            async with places:
                await chat.turn(client, entry)

    await asyncio.gather(*map(go_on, chats))
    load = Counter(node for chat in chats for node in chat.nodes)
    moves = [then == now for chat in chats for then, now in pairwise(chat.nodes)]
    returns = sum(moves) / len(moves)
    shares = sorted(count / load.total() for count in load.values())
    show("prefix", returned=returns, least_share=shares[0], largest_share=shares[-1])
    assert len(load) == 3
    assert returns >= 0.9
    # A third each on a quiet machine; on a busy one chats do not take turns so evenly.
    assert shares[0] >= 0.05
    assert shares[-1] <= 0.75


async def test_many_requests_of_one_conversation_are_shared_out(
    entry: Node, client: Client, nodes: list[Node]
) -> None:
    chat = Chat("popular")
    await chat.turn(client, entry)
    load: Counter[str] = Counter()
    body = chat.body | {"stream": True}
    async with AsyncExitStack() as held:
        for _ in range(HELD):
            asked = client.session.post(f"{entry.http}/v1/chat/completions", json=body)
            response = await held.enter_async_context(asked)
            assert response.status == 200
            load[response.headers["x-modelvine-node"]] += 1
    show("one conversation", requests_at_each=str(sorted(load.values())))
    assert max(load.values()) <= SLACK * HELD / len(nodes) + GRACE + 1
    assert load.most_common(1)[0][0] == chat.nodes[0]
