"""What an asker brings back from its node: an answer, however it is, or that there was none."""

import pytest
from aiohttp import web

from node.provide import asker as askers
from node.provide.asker import Asker, Heard
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


async def test_an_answer_is_brought_as_it_is(url):
    async with Asker(url, background=True) as asker:
        assert await asker.get("/v1/models") == Heard(429, b"GET background", "r", "7")
    async with Asker(url) as asker:
        assert (await asker.post("/v1/models", b"{}")).body == b"POST None"


async def test_what_is_too_long_is_nothing(url, monkeypatch):
    monkeypatch.setattr(askers, "MAX_ANSWER_BYTES", 3)
    async with Asker(url) as asker:
        assert (await asker.get("/v1/models")).body == b""


async def test_nobody_there_is_no_answer():
    async with Asker("http://127.0.0.1:9") as asker:
        assert await asker.get("/v1/models") == Heard(0)
    with pytest.raises(RuntimeError):
        await Asker("http://127.0.0.1:9").get("/v1/models")
