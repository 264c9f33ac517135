"""Background requests, at the node of their worker and one hop away."""

import asyncio

import pytest

from node.auth.keys import Allowance
from tests.node.faces.assembly import told, until

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
BACKGROUND = {"x-modelvine-priority": "background"}


@pytest.mark.parametrize("place", ["serving", "asked"])
async def test_a_background_request_is_served_after_an_interactive_one(mesh, worker, place):
    node = await mesh.offers(place, worker, capacity=1)
    worker.fail(delay_first=0.2)
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


async def test_an_unknown_priority_is_ignored(served, worker):
    headers = {"x-modelvine-priority": "urgent"}
    status, _ = await told(served.http.post("/v1/chat/completions", json=CHAT, headers=headers))
    assert status == 200
    assert "x-modelvine-priority" not in worker.received[-1].headers


@pytest.mark.parametrize("place", ["serving", "asked"])
@pytest.mark.parametrize("how", ["service_tier", "key"])
async def test_a_service_tier_or_a_key_makes_requests_background_over_a_hop_too(
    mesh, worker, place, how
):
    node = await mesh.offers(place, worker, capacity=1)
    worker.fail(delay_first=0.2)
    made = await node.context.keys.create({"batch": Allowance(background=True)})
    order = []
    later = {"Authorization": f"Bearer {made['batch']}"} if how == "key" else {}
    tier = {"service_tier": "flex"} if how == "service_tier" else {}

    async def ask(name, body, headers):
        await told(node.http.post("/v1/chat/completions", json=body, headers=headers))
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(ask(f"line {number}", CHAT | tier, later))
        await until(lambda: worker.received)
        await asyncio.sleep(0.02)
        group.create_task(ask("ann", CHAT, {}))
    assert order[1] == "ann"
