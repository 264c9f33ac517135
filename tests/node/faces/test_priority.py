"""Requests that nobody waits for, at the node of their worker and one hop away."""

import asyncio

import pytest

from tests.node.faces.assembly import told, until

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
BACKGROUND = {"x-modelvine-priority": "background"}


@pytest.mark.parametrize("place", ["serving", "asked"])
async def test_a_background_request_comes_after_one_that_somebody_waits_for(mesh, worker, place):
    node = await mesh.offers(place, worker, capacity=1)
    worker.fail(delay_first=0.05)
    order = []

    async def ask(name, headers):
        status, _ = await told(node.http.post("/v1/chat/completions", json=CHAT, headers=headers))
        order.append((name, status))

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(ask(f"line {number}", BACKGROUND))
        # One is at the worker, and the others are on their way to its queue.
        await until(lambda: worker.received)
        await asyncio.sleep(0.02)
        group.create_task(ask("ann", {}))
    assert order[1] == ("ann", 200)
    assert {status for _, status in order} == {200}


async def test_another_word_for_a_priority_is_none(served, worker):
    headers = {"x-modelvine-priority": "urgent"}
    status, _ = await told(served.http.post("/v1/chat/completions", json=CHAT, headers=headers))
    assert status == 200
    assert "x-modelvine-priority" not in worker.received[-1].headers
