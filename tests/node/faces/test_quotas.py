"""Limits of keys over real HTTP: what passes, how every face refuses the rest, and which tokens are settled, over hops too."""

import asyncio

import orjson
import pytest

from node.auth.keys import Allowance, ModelLimit
from node.auth.rate_limit import tokens_a_minute
from node.config.web import WebSettings
from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import Pair, World, node, settings_of, until

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
async def test_every_face_answers_429_with_retry_after_above_the_rate_limit(served, path):
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
    """Have a worker report its usage, in a whole answer too."""
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


async def test_concurrent_requests_are_limited_and_a_caller_that_leaves_makes_room(served, worker):
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
@pytest.mark.parametrize("more", [{}, {"TE": "trailers"}], ids=["lane", "aiohttp"])
async def test_a_caller_that_leaves_before_the_answer_pays_for_the_prompt(
    served, worker, stream, more
):
    headers = await key_for(served, tokens_per_day=100_000)
    worker.fail(hang=True)
    body = {**ASKED, "stream": stream, "max_tokens": 5_000}
    asking = asyncio.ensure_future(served.http.post(CHAT, json=body, headers=headers | more))
    await until(lambda: len(worker.received) == 1)
    asking.cancel()
    await until(lambda: books(served).under_way == 0)
    assert 0 < books(served).day.used < 100


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
@pytest.mark.parametrize("away", [False, True], ids=["here", "a hop away"])
async def test_tokens_are_settled_by_the_usage_of_the_answer(mesh, worker, path, stream, away):
    tell(worker)
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    asked_node = mesh.two if away else mesh.one
    headers = await key_for(asked_node, tokens_per_day=1_000_000, tpm=1_000_000)
    body = {**BODIES[path], "stream": stream}
    async with asked_node.http.post(path, json=body, headers=headers) as response:
        assert response.status == 200
        text = await response.text()
    await until(lambda: books(asked_node).under_way == 0)
    assert books(asked_node).day.used == 42
    if path == CHAT:
        # The stream's caller did not ask for usage.
        assert ("prompt_tokens" in text) is not stream


async def test_a_caller_that_asks_for_a_streams_usage_gets_it_over_a_hop_too(mesh, worker):
    tell(worker)
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    headers = await key_for(mesh.two, tokens_per_day=1_000)
    body = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
    async with mesh.two.http.post(CHAT, json=body, headers=headers) as response:
        assert "prompt_tokens" in await response.text()
    await until(lambda: books(mesh.two).under_way == 0)
    assert books(mesh.two).day.used == 42


async def test_a_days_spent_tokens_are_an_insufficient_quota(served, worker):
    tell(worker)
    headers = await key_for(served, tokens_per_day=42)
    async with served.http.post(CHAT, json=ASKED, headers=headers) as response:
        assert response.status == 200
    async with served.http.post(CHAT, json=ASKED, headers=headers) as response:
        assert response.status == 429
        assert (await response.json())["error"]["code"] == "insufficient_quota"


async def test_a_stream_without_usage_costs_the_reserved_tokens(served, worker):
    worker.fail(refuses_usage=True)
    headers = await key_for(served, tokens_per_day=1_000)
    body = {**ASKED, "stream": True, "max_tokens": 100}
    async with served.http.post(CHAT, json=body, headers=headers) as response:
        assert response.status == 200
        await response.read()
    await until(lambda: books(served).under_way == 0)
    # Counting its events alone would leave out the prompt.
    assert books(served).day.used > 100


async def test_a_stream_without_usage_costs_its_events_if_these_are_more(served, worker):
    worker.fail(refuses_usage=True)
    headers = await key_for(served, tokens_per_day=1)
    async with served.http.post(CHAT, json={**ASKED, "stream": True}, headers=headers) as response:
        assert response.status == 200
        events = (await response.read()).count(b"data: ") - 1
    await until(lambda: books(served).under_way == 0)
    assert 1 < books(served).day.used <= events


@pytest.mark.parametrize("path", BODIES)
async def test_every_face_reports_the_limit_of_a_model(served, path):
    headers = await key_for(served, rpm=600, model_limits=[ModelLimit(model="t*", rpm=1)])
    for status in (200, 429):
        async with served.http.post(path, json=BODIES[path], headers=headers) as response:
            assert response.status == status, await response.text()
            assert response.headers["x-ratelimit-limit-requests"] == "1"
            text = await response.text()
    assert 50 < int(response.headers["retry-after"]) <= 60
    assert "for t* this key allows 1 requests a minute" in text


@pytest.fixture
async def proxied(worker):
    """Yield a node behind a proxy on this machine, which serves callers without keys too."""
    web = WebSettings(trusted_proxies=("127.0.0.1",), rpm_per_address=1)
    async with node(World(MemoryNet()), settings_of(web=web)) as running:
        await running.register(worker)
        yield running


def told(*hops):
    return {"X-Forwarded-For": ", ".join(hops)}


async def ask(running, path, headers):
    async with running.http.post(path, json=BODIES[path], headers=headers) as response:
        await response.read()
        return response


@pytest.mark.parametrize("path", BODIES)
async def test_callers_behind_one_proxy_are_limited_separately(proxied, path):
    for caller in ("192.0.2.7", "192.0.2.8", "2001:db8::1"):
        assert (await ask(proxied, path, told(caller))).status == 200
        # Addresses left of the caller's may be made up by the caller, a new one each time.
        refused = await ask(proxied, path, told("198.51.100.1", caller))
        assert refused.status == 429
        assert 50 < int(refused.headers["retry-after"]) <= 60
    assert (await ask(proxied, path, told("2001:db8::ffff"))).status == 429


@pytest.mark.parametrize(
    "more", [{}, {"Connection": "close"}, {"TE": "trailers"}], ids=["lane", "anew", "aiohttp"]
)
async def test_both_http_servers_attribute_a_request_to_its_caller(proxied, more):
    for caller in ("192.0.2.7", "192.0.2.8"):
        assert (await ask(proxied, CHAT, {**told(caller), **more})).status == 200
        assert (await ask(proxied, CHAT, {**told(caller), **more})).status == 429


async def test_a_caller_with_a_key_has_the_limits_of_the_key_alone(proxied):
    headers = await key_for(proxied)
    for _ in range(3):
        assert (await ask(proxied, CHAT, {**told("192.0.2.7"), **headers})).status == 200
    # A key that the node does not know counts as none.
    unused = {"Authorization": "Bearer sk-unused", **told("192.0.2.7")}
    assert [(await ask(proxied, CHAT, unused)).status for _ in "ab"] == [200, 429]


async def test_callers_on_the_same_machine_are_not_limited_by_address(proxied):
    for _ in range(3):
        assert (await ask(proxied, CHAT, {})).status == 200


async def test_an_untrusted_proxy_is_one_address_whatever_it_forwards(worker):
    web = WebSettings(trusted_proxies=("10.0.0.1",), rpm_per_address=1)
    async with node(World(MemoryNet()), settings_of(web=web)) as running:
        await running.register(worker)
        # It claims to forward for other addresses, so it does not count as a caller on this machine.
        statuses = [(await ask(running, CHAT, told(f"192.0.2.{host}"))).status for host in range(3)]
    assert statuses == [200, 429, 429]


@pytest.mark.parametrize("goes_on", ["0", "1"])
async def test_tokens_of_an_address_are_settled_over_a_hop(worker, goes_on):
    tell(worker)
    world = World(MemoryNet())
    web = WebSettings(trusted_proxies=("127.0.0.1",), tpm_per_address=1_000)
    async with node(world) as there, node(world, settings_of(web=web)) as here:
        tell(worker)
        await there.register(worker)
        await Pair(there, here).knows(here, "tiny")
        streamed = {**ASKED, "stream": True}
        headers = {**told("192.0.2.7"), "x-modelvine-continue": goes_on}
        for body in (ASKED, streamed, {**streamed, "stream_options": {"include_usage": True}}):
            async with here.http.post(CHAT, json=body, headers=headers) as response:
                assert response.status == 200
                await response.read()
        books = here.context.quotas._addresses["192.0.2.7"]
        await until(lambda: books.under_way == 0)
        now = here.context.quotas._now()
        assert books.tokens.left(now, tokens_a_minute(1_000)) in range(
            1_000 - 3 * 42, 1_000 - 2 * 42
        )
