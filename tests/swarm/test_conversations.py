"""Do conversations return to the machine that has them cached? Real nodes, three llama.cpp, and the figures of these."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import orjson
import pytest

from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm
from tests.swarm.waiting import show

pytestmark = [pytest.mark.swarm, pytest.mark.alone, pytest.mark.timeout(600)]

CHATS = 6
SLOTS = 8
"""Each slot of llama.cpp keeps one conversation, so that none loses its cache where many are sent to one machine."""

TURNS = 4
AT_ONE_TIME = 3
SYSTEM = {"role": "system", "content": "Answer in a few words."}


@dataclass
class Chat:
    """One conversation, about something of its own."""

    name: str
    said: list[dict[str, str]] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    found: list[bool] = field(default_factory=list)

    async def turn(self, client: Client, entry: Node, model: str) -> None:
        prompt = f"And what else, {self.name}?"
        if not self.said:
            prompt = f"This is a letter of {self.name} about the sea. " * 30 + "What is it about?"
        self.said.append({"role": "user", "content": prompt})
        body = {"model": model, "messages": [SYSTEM, *self.said], "max_tokens": 12}
        response = await client.post(entry, "/v1/chat/completions", body)
        assert response.status == 200, response.body
        answer = orjson.loads(response.body)
        usage = answer["usage"]
        if self.nodes:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            self.found.append(2 * cached >= usage["prompt_tokens"])
        self.nodes.append(response.node)
        text = answer["choices"][0]["message"]["content"] or "-"
        self.said.append({"role": "assistant", "content": text})


@pytest.fixture
async def model(three: list[Node], swarm: Swarm, client: Client) -> AsyncIterator[str]:
    """The name of a model that all three nodes serve, each with a worker that all of them have asked before."""
    workers = [
        swarm.start_worker(name, "--threads", "1", "--slots", str(SLOTS), module="node.demo.worker")
        for name in ("first", "second", "third")
    ]
    name = workers[0].fields["model"]
    for node, worker in zip(three, workers, strict=True):
        await client.register(node, "read", [name], worker.ready.split()[1], capacity=SLOTS)
    await client.listed(three, name)
    for entry in three:
        for node in three:
            # What an answer shows, the next one tells.
            for prompt in ("Hello", "word " * 200, "Hello again"):
                body = {"model": name, "messages": [{"role": "user", "content": prompt}]}
                pinned = {"x-modelvine-node": node.peer}
                answer = await client.post(
                    entry, "/v1/chat/completions", body | {"max_tokens": 4}, headers=pinned
                )
                assert answer.status == 200
    yield name
    for node in three:
        await client.unregister(node, "read")


async def found(client: Client, entries: Sequence[Node], model: str, names: str) -> float:
    """Return the share of all turns that found their cache, where turns are sent to these nodes in rotation."""
    chats = [Chat(f"{names} {number}") for number in range(CHATS)]
    slots = asyncio.Semaphore(AT_ONE_TIME)

    async def go_on(chat: Chat, number: int) -> None:
        turns = cycle([*entries[number % len(entries) :], *entries[: number % len(entries)]])
        for _ in range(TURNS):
            async with slots:
                await chat.turn(client, next(turns), model)

    await asyncio.gather(*(go_on(chat, number) for number, chat in enumerate(chats)))
    hits = [hit for chat in chats for hit in chat.found]
    load = Counter(node for chat in chats for node in chat.nodes)
    show(
        f"conversations by {len(entries)} nodes",
        found=sum(hits) / len(hits),
        machines=str(sorted(load.values())),
    )
    return sum(hits) / len(hits)


async def test_turns_of_a_chat_find_their_cache_whichever_node_they_are_sent_to(
    three: list[Node], client: Client, model: str
) -> None:
    at_one = await found(client, three[:1], model, "Anna")
    all_three = await found(client, three, model, "Berta")
    assert at_one >= 0.7
    assert all_three >= 0.7 * at_one
