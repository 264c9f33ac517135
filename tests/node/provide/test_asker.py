"""What an asker returns from its node: the answer as it is, or that there was none."""

import pytest
from aiohttp import web

from node.provide import asker as askers
from node.provide.asker import Asker, NodeAnswer
from tests.workers.serving import served


async def said(request):
    headers = {"retry-after": "7", "x-request-id": "r"}
    text = f"{request.method} {request.headers.get('x-modelvine-priority')}"
    return web.Response(status=429, text=text, headers=headers)


@pytest.fixture
async def url():
    app = web.Application()
    app.add_routes([web.route("*", "/v1/models", said)])
    async with served(app) as found:
        yield found


async def test_an_answer_is_returned_unchanged(url):
    async with Asker(url, background=True) as asker:
        assert await asker.get("/v1/models") == NodeAnswer(429, b"GET background", "r", "7")
    async with Asker(url) as asker:
        assert (await asker.post("/v1/models", b"{}")).body == b"POST None"


async def test_an_answer_that_is_too_long_has_an_empty_body(url, monkeypatch):
    monkeypatch.setattr(askers, "MAX_ANSWER_BYTES", 3)
    async with Asker(url) as asker:
        assert (await asker.get("/v1/models")).body == b""


async def test_a_node_that_is_not_there_gives_no_answer():
    async with Asker("http://127.0.0.1:9") as asker:
        assert await asker.get("/v1/models") == NodeAnswer(0)
    with pytest.raises(RuntimeError):
        await Asker("http://127.0.0.1:9").get("/v1/models")


FULL, LEFT = "all its slots are in use", "its node has left"


@pytest.mark.parametrize(
    ("candidates", "excluded", "slots"),
    [
        ([{"slots": 4}, {"slots": 2}], [], 6),
        ([{"slots": 4}], [({"slots": 2}, FULL), ({"slots": 9}, LEFT)], 6),
        # A replica that was not asked yet takes at least one; one whose slots are unknown takes any number.
        ([{"slots": 4}, None], [], 5),
        ([{"slots": 4}, {"slots": None}], [], 0),
        ([], [], 0),
    ],
)
async def test_slots_are_summed_over_all_replicas_that_may_answer(candidates, excluded, slots):
    async def route(request):
        assert dict(request.query) == {"model": "a/b c", "kind": "chat/completions"}
        left = [{"load": load, "reason": reason} for load, reason in excluded]
        found = [{"load": load} for load in candidates]
        return web.json_response({"candidates": found, "excluded": left})

    app = web.Application()
    app.router.add_get("/api/v1/route", route)
    async with served(app) as url, Asker(url) as asker:
        assert await asker.slots("/v1/chat/completions", "a/b c") == slots


async def test_slots_are_unknown_if_the_node_does_not_tell_them(url):
    async with Asker(url) as asker:
        assert await asker.slots("/v1/chat/completions", "m") == 0


async def test_a_session_is_sent_where_there_is_one():
    async def session(request):
        return web.Response(text=request.headers.get("x-modelvine-session", "none"))

    app = web.Application()
    app.router.add_post("/v1/x", session)
    async with served(app) as url, Asker(url) as asker:
        assert (await asker.post("/v1/x", b"{}", session="s")).body == b"s"
        assert (await asker.post("/v1/x", b"{}")).body == b"none"


async def test_an_asker_sends_the_key_of_its_environment(monkeypatch):
    headers = []

    async def listing(request):
        headers.append(request.headers.get("authorization"))
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/v1/models", listing)
    for key in ("", "mv_mine"):
        monkeypatch.setenv("MODELVINE_KEY", key)
        async with served(app) as url, Asker(url) as asker:
            await asker.get("/v1/models")
    assert headers == [None, "Bearer mv_mine"]
