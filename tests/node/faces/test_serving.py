"""What aiohttp would answer by itself is answered in our shape: bytes that are no request, and odd expectations."""

import logging
import re

import orjson
import pytest

from tests.node.faces.assembly import raw, told

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a secret prompt"}]}
PATH = "/v1/chat/completions"


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
async def test_bytes_that_are_no_request_are_answered_in_our_shape_without_a_traceback(
    alone, status, code, sent, caplog
):
    head, _, body = (await raw(alone, sent)).partition(b"\r\n\r\n")
    assert re.match(rb"HTTP/1\.[01] %d " % status, head)
    assert b"Server: modelvine" in head
    assert orjson.loads(body)["error"]["code"] == code
    assert not [r for r in caplog.records if r.exc_info or r.levelno >= logging.WARNING]


async def test_an_expectation_that_cannot_be_met_is_417(alone):
    call = alone.http.post(PATH, json=CHAT, headers={"Expect": "miracles"})
    assert (await told(call))[0] == 417
