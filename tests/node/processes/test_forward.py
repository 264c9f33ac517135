"""Requests that a helper passes on: they arrive as sent, with the caller, and the answer returns unchanged."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import orjson
import pytest
from aiohttp import web

from node.auth.access import Access
from node.config.addresses import HostPort
from node.config.settings import KeylessAccess
from node.config.web import WebSettings
from node.faces.app import application
from node.faces.response_writer import StreamedResponse, cut
from node.listeners import Listener, bind, listening_address
from node.processes import forward
from node.processes.forward import (
    ConnectionUse,
    DescriptorReceiver,
    DescriptorSender,
    ForwardedAccess,
)
from registry.task_group import BackgroundTasks
from router.http.pool import ConnectionPool
from router.peers.headers import CALLER
from tests.node.faces.assembly import settings_of

SHARED = WebSettings(origins=("https://chat.example",))
JUDGE = ForwardedAccess(token="the token", settings=SHARED, keyless=KeylessAccess.EVERYBODY)


async def _told(request: web.Request) -> web.StreamResponse:
    payload = {
        "method": request.method,
        "path": request.raw_path,
        "length": len(await request.content.read()),
        "local": JUDGE.is_own_user(request),
        "id": request.headers["x-request-id"],
        "host": request.headers["host"],
        "two": request.headers.get("x-two", ""),
    }
    headers = {"x-own": "1", "content-type": "application/json"}
    return web.Response(status=207, headers=headers, body=orjson.dumps(payload))


async def _streamed(request: web.Request) -> web.StreamResponse:
    response = StreamedResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for number in range(3):
        await response.write(b"data: %d\n\n" % number)
        await asyncio.sleep(0)
    if "break" in request.query:
        cut(request)
    await asyncio.sleep(float(request.query.get("last", 0)))
    return response


async def _silent(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


@pytest.fixture
async def asked(request: pytest.FixtureRequest) -> AsyncIterator[aiohttp.ClientSession]:
    """Client of a helper's application; the first process answers with what it was asked."""
    tasks = BackgroundTasks()
    first = Listener(
        application(
            [
                web.get("/events", _streamed),
                web.get("/silent", _silent),
                *(web.route(method, "/{tail:.*}", _told) for method in ("GET", "POST")),
            ],
            JUDGE.admit,
        )
    )
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def let_in(door: ConnectionUse, connection: socket.socket) -> None:
        assert door is ConnectionUse.HTTP
        tasks.spawn(first.serve_connection(connection))

    async with AsyncExitStack() as closing:
        closing.push_async_callback(tasks.cancel_all)
        closing.push_async_callback(first.close)
        closing.callback(DescriptorReceiver(own, let_in).close)
        closing.enter_context(other)
        settings = settings_of(**getattr(request, "param", {}))
        pool = ConnectionPool(DescriptorSender(other).dial(), settings.router)
        closing.callback(pool.close)
        access = Access(token="", settings=SHARED, keyless=KeylessAccess.EVERYBODY)
        of_nodes = forward.link_routes(pool, settings)
        app = application([*of_nodes, *forward.routes(pool, access, settings)], access.admit)
        helper = Listener(app, SHARED)
        closing.push_async_callback(helper.close)
        (listener,) = bind(HostPort("127.0.0.1", 0), "node.http")
        await helper.listen_on(listener)
        session = aiohttp.ClientSession(f"http://{listening_address(listener)}")
        yield await closing.enter_async_context(session)


async def test_a_request_arrives_as_it_was_sent(asked: aiohttp.ClientSession) -> None:
    headers = [("x-request-id", "r-1"), ("x-two", "a"), ("x-two", "b")]
    async with asked.post("/api/x%20y?a=1&b=%26", data=b"x" * 300_000, headers=headers) as answer:
        assert (answer.status, answer.headers["x-own"]) == (207, "1")
        assert await answer.json() == {
            "method": "POST",
            "path": "/api/x%20y?a=1&b=%26",
            "length": 300_000,
            "local": True,
            "id": "r-1",
            "host": f"{answer.url.host}:{answer.url.port}",
            "two": "a, b",
        }


async def test_an_http_1_0_request_without_a_host_and_with_a_non_text_header_is_answered(
    asked: aiohttp.ClientSession,
) -> None:
    url = asked._base_url
    assert url is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"GET /api HTTP/1.0\r\nX-Two: \xff\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert b" 207 " in head
    payload = orjson.loads(body)
    assert (payload["host"], payload["two"]) == ("localhost", "?")


async def test_a_caller_cannot_claim_to_be_on_this_machine(asked: aiohttp.ClientSession) -> None:
    # A proxy on this machine forwards for a caller elsewhere.
    headers = {CALLER: "here", "X-Forwarded-For": "192.0.2.1"}
    async with asked.post("/api", headers=headers) as answer:
        assert (await answer.json())["local"] is False


async def test_a_node_that_asks_for_connections_is_told_those_of_the_first_process(
    asked: aiohttp.ClientSession,
) -> None:
    headers = {"X-Forwarded-For": "192.0.2.1"}
    async with asked.get("/api/v1/connections?x=1", headers=headers) as answer:
        payload = await answer.json()
    assert (payload["path"], payload["local"]) == ("/api/v1/connections", True)


async def test_headers_for_a_page_of_an_allowed_origin_are_sent_once(
    asked: aiohttp.ClientSession,
) -> None:
    headers = {"Origin": "https://chat.example"}
    for path in ("/api", "/events"):
        async with asked.get(path, headers=headers) as answer:
            assert answer.headers.getall("Access-Control-Allow-Origin") == ["https://chat.example"]
            assert answer.headers.getall("Vary") == ["Origin"]
            assert len(answer.headers.getall("X-Accel-Buffering", [])) == (path == "/events")


async def test_the_headers_of_all_answers_are_the_helpers_own(
    asked: aiohttp.ClientSession,
) -> None:
    for path in ("/api", "/events"):
        async with asked.get(path) as answer:
            assert answer.headers.getall("Server") == ["modelvine"]
            assert answer.headers.getall("X-Content-Type-Options") == ["nosniff"]
            # Pages of other origins may use this node.
            assert "Cross-Origin-Resource-Policy" not in answer.headers


async def test_a_head_request_is_answered_without_a_body(asked: aiohttp.ClientSession) -> None:
    async with asked.head("/api") as answer:
        assert (answer.status, await answer.read()) == (207, b"")
        assert int(answer.headers["Content-Length"]) > 0
    async with asked.get("/api") as answer:
        assert answer.status == 207


async def test_a_stream_is_passed_on_as_it_comes(asked: aiohttp.ClientSession) -> None:
    async with asked.get("/events") as answer:
        assert answer.content_type == "text/event-stream"
        assert await answer.read() == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize("asked", [{"total_timeout": 0.4}], indirect=True)
async def test_a_stream_may_last_but_its_beginning_may_not(asked: aiohttp.ClientSession) -> None:
    async with asked.get("/events?last=0.6") as answer:
        assert await answer.read() == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    async with asked.get("/silent") as answer:
        assert answer.status == 504


async def test_an_answer_that_breaks_off_breaks_off_for_the_caller_too(
    asked: aiohttp.ClientSession,
) -> None:
    async with asked.get("/events?break=1") as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_body_that_is_too_long_is_refused_by_the_helper(
    asked: aiohttp.ClientSession,
) -> None:
    async with asked.post("/api", headers={"Content-Length": str(1 << 40)}, data=b"x") as answer:
        assert answer.status == 413
