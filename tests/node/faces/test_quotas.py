"""Limits of keys over real HTTP: what passes, what who is over them is told by every face, and what is settled, over hops too."""

import asyncio

import orjson
import pytest

from node.auth.keys import Allowance
from tests.node.faces.assembly import until

CHAT = "/v1/chat/completions"
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
BODIES = {
    CHAT: ASKED,
    "/v1/responses": {"model": "tiny", "input": "hi"},
    "/v1/messages": {**ASKED, "max_tokens": 4},
    "/tgi/p/tiny/generate": {"inputs": "hi"},
    "/inference/chat_completion": ASKED,
    "/api/v0/chat/completion/proxy": {"project": "p", **ASKED},
}


async def key_for(running, **limits):
    made = await running.context.keys.create({"ann": Allowance(**limits)})
    return {"Authorization": f"Bearer {made['ann']}"}


def books(running):
    return running.context.quotas._books["ann"]


@pytest.mark.parametrize("path", BODIES)
async def test_every_face_tells_who_asks_too_often_when_to_come_again(served, path):
    headers = await key_for(served, rpm=1)
    for status in (200, 429, 429):
        async with served.http.post(path, json=BODIES[path], headers=headers) as response:
            assert response.status == status, await response.text()
            assert response.headers["x-ratelimit-limit-requests"] == "1"
            assert response.headers["x-ratelimit-remaining-requests"] == "0"
            body = await response.json()
    assert 50 < int(response.headers["retry-after"]) <= 60
    if path in (CHAT, "/v1/responses"):
        assert body["error"]["code"] == "rate_limit_exceeded"
        assert body["error"]["type"] == "rate_limit_error"
    elif path == "/v1/messages":
        assert body["error"]["type"] == "rate_limit_error"
    elif path.startswith("/tgi"):
        assert body["error_type"] == "overloaded"


def tell(worker):
    """Have a worker say what it took, in a whole answer too."""
    usage = {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
    message = {"role": "assistant", "content": "Hello"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    worker.fail(
        usage=usage,
        answer=orjson.dumps({"id": "c", "model": "tiny", "choices": [choice], "usage": usage}),
    )


async def test_lists_and_views_are_not_counted(served):
    headers = await key_for(served, rpm=1)
    for _ in range(5):
        async with served.http.get("/v1/models", headers=headers) as response:
            assert response.status == 200


async def test_so_many_at_one_time_and_whoever_leaves_makes_room(served, worker):
    headers = await key_for(served, concurrency=1)
    worker.fail(hang=True)
    first = asyncio.ensure_future(served.http.post(CHAT, json=ASKED, headers=headers))
    await until(lambda: len(worker.received) == 1)
    async with served.http.post(CHAT, json=ASKED, headers=headers) as response:
        assert response.status == 429
        assert (await response.json())["error"]["code"] == "concurrency_limit_exceeded"
        assert response.headers["retry-after"] == "1"
    first.cancel()
    await until(lambda: books(served).under_way == 0)
    worker.fail()
    async with served.http.post(CHAT, json=ASKED, headers=headers) as response:
        assert response.status == 200


async def test_a_request_that_fails_before_its_first_byte_costs_no_tokens(served, worker):
    headers = await key_for(served, tokens_per_day=1_000)
    worker.fail(status=500)
    async with served.http.post(CHAT, json=ASKED, headers=headers) as response:
        assert response.status == 502
    assert (books(served).day.used, books(served).under_way) == (0, 0)
    unknown = {**ASKED, "model": "nobody"}
    async with served.http.post(CHAT, json=unknown, headers=headers) as response:
        assert response.status == 404
    assert (books(served).day.used, books(served).under_way) == (0, 0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
@pytest.mark.parametrize("away", [False, True], ids=["here", "a hop away"])
async def test_tokens_are_settled_by_what_the_answer_tells(mesh, worker, path, stream, away):
    tell(worker)
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    asked = mesh.two if away else mesh.one
    headers = await key_for(asked, tokens_per_day=1_000_000, tpm=1_000_000)
    body = {**BODIES[path], "stream": stream}
    async with asked.http.post(path, json=body, headers=headers) as response:
        assert response.status == 200
        text = await response.text()
    await until(lambda: books(asked).under_way == 0)
    assert books(asked).day.used == 42
    if path == CHAT:
        # Nobody asked for it.
        assert ("prompt_tokens" in text) is not stream


async def test_a_caller_who_asks_what_a_stream_took_is_told_over_a_hop_as_well(mesh, worker):
    tell(worker)
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    headers = await key_for(mesh.two, tokens_per_day=1_000)
    body = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
    async with mesh.two.http.post(CHAT, json=body, headers=headers) as response:
        assert "prompt_tokens" in await response.text()
    await until(lambda: books(mesh.two).under_way == 0)
    assert books(mesh.two).day.used == 42


async def test_a_days_tokens_are_told_as_spent(served, worker):
    tell(worker)
    headers = await key_for(served, tokens_per_day=42)
    async with served.http.post(CHAT, json=ASKED, headers=headers) as response:
        assert response.status == 200
    async with served.http.post(CHAT, json=ASKED, headers=headers) as response:
        assert response.status == 429
        assert (await response.json())["error"]["code"] == "insufficient_quota"


async def test_a_stream_that_does_not_tell_its_tokens_costs_what_was_reserved(served, worker):
    worker.fail(refuses_usage=True)
    headers = await key_for(served, tokens_per_day=1_000)
    body = {**ASKED, "stream": True, "max_tokens": 100}
    async with served.http.post(CHAT, json=body, headers=headers) as response:
        assert response.status == 200
        await response.read()
    await until(lambda: books(served).under_way == 0)
    # Its events alone would leave out all that was read.
    assert books(served).day.used > 100
