"""The applications as wholes: whatever happens in a handler leaves as an answer of ours."""

import asyncio
import logging
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from node.faces.app import public_app
from node.faces.serving import runner


@asynccontextmanager
async def with_route(node, handler):
    """A session to the node's public application with one more path, `/more`."""
    app = public_app(node.context)
    app.add_routes([web.post("/more", handler)])
    serving = runner(app)
    await serving.setup()
    await web.TCPSite(serving, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{serving.addresses[0][1]}") as session:
            yield session
    finally:
        await serving.cleanup()


async def test_an_unforeseen_error_is_500_and_its_text_is_neither_told_nor_logged(alone, caplog):
    async def fail(request):
        raise KeyError(await request.text())

    async with (
        with_route(alone, fail) as session,
        session.post(
            "/more", data=b"a secret prompt", headers={"x-request-id": "id-7"}
        ) as response,
    ):
        body = await response.json()
        assert (response.status, body["code"]) == (500, 5000)
        assert body["error"]["type"] == "server_error"
        assert response.headers["x-request-id"] == "id-7"
    (record,) = (r for r in caplog.records if r.levelno == logging.ERROR)
    assert "id-7" in record.getMessage()
    assert "KeyError" in record.getMessage()
    assert "in fail" in record.getMessage()
    assert "secret" not in str(body) + caplog.text


async def test_a_caller_who_hangs_up_cancels_the_handler(alone):
    cancelled = asyncio.Event()

    async def wait(_):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with with_route(alone, wait) as session:
        with pytest.raises(TimeoutError):
            await session.post("/more", timeout=aiohttp.ClientTimeout(total=0.1))
        await asyncio.wait_for(cancelled.wait(), 5)


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/api/v0/id", "/api/v1/catalog"])
async def test_what_is_asked_under_another_name_than_ours_is_refused_even_for_reading(alone, path):
    async with alone.http.get(path, headers={"Host": "evil.example"}) as response:
        assert response.status == 403
        assert (await response.json())["code"] == 1010


async def test_pages_of_other_origins_cannot_use_the_models(alone, worker):
    await alone.register(worker)
    headers = {"Origin": "https://evil.example"}
    asked = {"model": "tiny", "messages": []}
    async with alone.http.post("/v1/chat/completions", json=asked, headers=headers) as response:
        assert response.status == 403
    assert worker.received == []
