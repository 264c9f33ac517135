"""Requests that kill their workers, over hops: at most two workers die, wherever they are."""

from contextlib import AsyncExitStack

import pytest

from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import World, node, settings_of, until
from tests.workers import openai_worker

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("homes", [(1, 1, 1), (3,), (2, 1)], ids=str)
async def test_exactly_two_workers_die_of_a_request_wherever_they_are(homes, stream) -> None:
    """`homes` are the numbers of workers of each node; the node that is asked has none."""
    settings, world = settings_of(attempts=6), World(MemoryNet())
    async with AsyncExitStack() as closing:
        workers = []
        asked_node = await closing.enter_async_context(node(world, settings))
        for count in homes:
            home = await closing.enter_async_context(node(world, settings))
            await until(
                lambda home=home: home.context.peer in asked_node.context.registry.catalog.held
            )
            for number in range(count):
                worker = await closing.enter_async_context(openai_worker.running())
                worker.fail(die_before_headers=True)
                await home.register(worker, cid=str(number))
                workers.append(worker)
        await until(
            lambda: len(asked_node.context.registry.catalog.offers.get("tiny", ())) == len(workers)
        )
        async with asked_node.http.post(
            "/v1/chat/completions", json={**CHAT, "stream": stream}
        ) as answer:
            payload = await answer.json()
        assert answer.status == 502
        assert payload["error"]["code"] == "poisonous_request"
        assert answer.headers["x-should-retry"] == "false"
        assert sum(len(worker.received) for worker in workers) == 2
