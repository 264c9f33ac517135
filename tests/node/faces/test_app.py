"""The applications as wholes: whatever happens in a handler, the caller gets an answer of ours."""

import asyncio
import logging
import re
import socket
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import orjson
import pytest
from aiohttp import web

from node.config.settings import KeylessAccess
from node.faces.app import application
from node.listeners import serve
from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import World, node, raw, settings_of, told


@asynccontextmanager
async def having(node, handler):
    """Yield a session to an application of a node with one path, `/more`."""
    app = application([web.post("/more", handler)], node.context.access.admit)
    listener = socket.create_server(("127.0.0.1", 0))
    async with AsyncExitStack() as closing:
        await serve(app, listener, closing)
        session = aiohttp.ClientSession(f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield await closing.enter_async_context(session)


async def test_an_unforeseen_error_is_500_and_its_text_is_neither_sent_nor_logged(alone, caplog):
    async def fail(request):
        raise KeyError(await request.read())

    async with (
        having(alone, fail) as session,
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


async def test_a_caller_that_hangs_up_cancels_the_handler(alone):
    cancelled = asyncio.Event()

    async def wait(_):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with having(alone, wait) as session:
        with pytest.raises(TimeoutError):
            await session.post("/more", timeout=aiohttp.ClientTimeout(total=0.1))
        await asyncio.wait_for(cancelled.wait(), 5)


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/api/v0/id", "/api/v1/catalog"])
async def test_a_foreign_host_header_is_refused_even_for_reading(alone, path):
    async with alone.http.get(path, headers={"Host": "evil.example"}) as response:
        assert response.status == 403
        assert (await response.json())["code"] == 1010


async def test_pages_of_other_origins_cannot_use_the_models(alone, worker):
    await alone.register(worker)
    headers = {"Origin": "https://evil.example"}
    fields = {"model": "tiny", "messages": []}
    async with alone.http.post("/v1/chat/completions", json=fields, headers=headers) as response:
        assert response.status == 403
    assert worker.received == []


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a secret prompt"}]}


@pytest.mark.parametrize(
    ("status", "code", "sent"),
    [
        (400, "invalid_head", b"\x16\x03\x01\x02\x00\x01\x00"),
        (400, "invalid_head", b"GET / HTTP/9.9\r\n\r\n"),
        (400, "invalid_head", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"),
        (414, "url_too_long", b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n"),
        (431, "head_too_large", b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"),
    ],
    ids=["TLS", "version", "length", "line", "header"],
)
async def test_bytes_that_are_no_request_get_an_error_in_our_shape_without_a_traceback(
    alone, status, code, sent, caplog
):
    head, _, body = (await raw(alone, sent)).partition(b"\r\n\r\n")
    assert re.match(rb"HTTP/1\.[01] %d " % status, head)
    assert b"Server: modelvine" in head
    assert orjson.loads(body)["error"]["code"] == code
    assert not [r for r in caplog.records if r.exc_info or r.levelno >= logging.WARNING]


async def test_an_expectation_that_cannot_be_met_is_417(alone):
    call = alone.http.post("/v1/chat/completions", json=CHAT, headers={"Expect": "miracles"})
    assert (await told(call))[0] == 417


async def test_a_caller_that_waits_to_send_its_body_hears_at_once_that_the_path_is_unknown(alone):
    asks = b"POST /v1/chat HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    assert (await raw(alone, asks)).startswith(b"HTTP/1.1 404 ")


async def test_a_refusal_carries_the_request_id_if_it_could_be_read_or_a_new_one(alone):
    request = b"GET /#a HTTP/1.1\r\nX-Request-Id: id-8\r\nHost: localhost\r\n\r\n"
    assert b"x-request-id: id-8\r\n" in await raw(alone, request)
    assert re.search(rb"x-request-id: [0-9a-f]{32}\r\n", await raw(alone, b"BAD\r\n\r\n"))


async def test_while_a_node_drains_each_answer_ends_its_connection(served):
    fields = {"model": "tiny", "messages": []}
    for path, close in (("undrain", False), ("drain", True), ("undrain", False)):
        async with served.http.post(f"/api/v1/{path}"):
            pass
        for stream in (False, True):
            body = fields | {"stream": stream}
            async with served.http.post("/v1/chat/completions", json=body) as response:
                assert response.status == (503 if close else 200)  # no other node serves it
                assert (response.headers.get("Connection") == "close") is close
                await response.read()


ANTHROPIC, TGI, OPENAI = (
    {"type", "error", "request_id"},
    {"error", "error_type"},
    {"code", "message", "error"},
)
FORMS = {
    ("GET", "/v1/messages"): (405, ANTHROPIC),
    ("GET", "/v1/messages/batches"): (404, ANTHROPIC),
    ("POST", "/v1/messages/"): (404, ANTHROPIC),
    ("POST", "/v1/messages"): (415, ANTHROPIC),
    ("POST", "/v1/messagesx"): (404, OPENAI),
    ("GET", "/tgi/p/m/generate"): (405, TGI),
    ("PUT", "/tgi/p/m"): (405, TGI),
    ("POST", "/tgi"): (404, TGI),
    ("POST", "/tgi/m"): (404, TGI),
    ("PUT", "/generate"): (405, TGI),
    ("PUT", "/"): (405, OPENAI),
    ("GET", "/v1/responses"): (405, OPENAI),
    ("GET", "/v1/responses/r"): (404, OPENAI),
    ("DELETE", "/api/v0/ai/model/register"): (405, OPENAI),
}  # fmt: skip


@pytest.mark.parametrize(("method", "path"), FORMS)
async def test_a_wrong_method_or_path_is_refused_in_the_form_of_the_face_that_it_belongs_to(
    alone, method, path
):
    async with alone.http.request(method, path, data=b"x") as response:
        assert (response.status, set(await response.json())) == FORMS[method, path]
        assert ("allow" in response.headers) is (response.status == 405)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/messages/x"), ("PUT", "/v1/messages"), ("POST", "/v1/messages")],
)
async def test_a_caller_without_a_key_is_refused_in_that_form_too(method, path):
    settings = settings_of(keyless=KeylessAccess.NOBODY)
    async with (
        node(World(MemoryNet()), settings) as one,
        one.http.request(method, path) as response,
    ):
        assert response.status == 401
        assert (await response.json())["error"]["type"] == "authentication_error"
        assert set(await response.json()) == ANTHROPIC
