"""What a handler sees of a request, and what an answer looks like on the wire."""

import asyncio

import pytest

from node import web
from node.web.messages import head_of


class Wire:
    address = "192.0.2.1"

    """A connection of few words: notes what is wanted and sent."""

    def __init__(self):
        self.transport = self
        self.sent = b""
        self.wants = 0
        self.closing = False

    def wanted(self, request):
        self.wants += 1

    def begin(self, request, *, last):
        return "Connection: close\r\n" if last else ""

    async def drained(self):
        return

    def is_closing(self):
        return self.closing

    def write(self, data):
        self.sent += data


def request(headers=None, target="/"):
    return web.HttpRequest(Wire(), "POST", target, headers or {})


def test_a_target_is_a_path_and_a_query_whose_first_values_count():
    asked = request(target="/p?a=1&a=2&b=&c=%20")
    assert asked.path == "/p"
    assert asked.query == {"a": "1", "b": "", "c": " "}


def test_a_media_type_has_no_parameters_and_no_capitals():
    assert request({"content-type": "Text/Plain ; charset=x"}).content_type == "text/plain"
    assert request().content_type == ""


@pytest.mark.parametrize(
    ("headers", "announced"),
    [
        ({}, False),
        ({"content-length": "0"}, False),
        ({"content-length": "1"}, True),
        ({"transfer-encoding": "chunked"}, True),
    ],
)
def test_a_body_is_announced_by_its_length_or_its_coding(headers, announced):
    assert request(headers).body_exists is announced


def test_the_caller_is_known_while_it_is_there():
    asked = request()
    assert asked.remote == "192.0.2.1"
    asked.wire.transport = None
    assert asked.remote == ""


async def test_a_body_comes_as_it_comes_and_is_wanted_only_when_it_is_missing():
    asked = request()
    asked.take(b"a")
    asked.take(b"b")
    assert asked.waiting == 2
    assert await asked.some() == b"ab"
    assert (asked.waiting, asked.wire.wants, asked.ended) == (0, 0, False)
    reading = asyncio.ensure_future(asked.some())
    await asyncio.sleep(0)
    assert asked.wire.wants == 1
    asked.take(b"c")
    asked.finish()
    assert await reading == b"c"
    assert asked.ended
    assert await asked.some() == b""


async def test_a_body_that_breaks_off_says_so_after_what_came():
    asked = request()
    asked.take(b"a")
    asked.fail(web.BodyBroken("gone"))
    assert await asked.some() == b"a"
    with pytest.raises(web.BodyBroken):
        await asked.some()


def streamed(*chunks, length=None, old=False):
    asked = request()
    asked.old = old
    response = web.StreamResponse(status=201, headers={"x": "y"})
    response.length = length
    response.prepare(asked)
    assert asked.wire.sent == b""
    for chunk in chunks:
        response.write(chunk)
    response.end()
    assert response.ended
    head, _, body = asked.wire.sent.partition(b"\r\n\r\n")
    return head.decode().split("\r\n"), body


def test_a_stream_goes_out_in_chunks_and_its_head_with_the_first():
    head, body = streamed(b"one", b"", b"two" * 6)
    assert head == [
        "HTTP/1.1 201 Created",
        "x: y",
        "X-Accel-Buffering: no",
        "Transfer-Encoding: chunked",
    ]
    assert body == b"3\r\none\r\n12\r\n" + b"two" * 6 + b"\r\n0\r\n\r\n"


def test_a_stream_of_known_length_goes_out_as_it_is():
    head, body = streamed(b"one", b"two", length=6)
    assert "Content-Length: 6" in head
    assert body == b"onetwo"


def test_a_stream_to_http_1_0_ends_with_its_connection():
    head, body = streamed(b"one", b"two", old=True)
    assert head[-1] == "Connection: close"
    assert body == b"onetwo"


def test_an_empty_stream_has_a_head_all_the_same():
    assert streamed()[1] == b"0\r\n\r\n"
    assert streamed(length=0)[0][0] == "HTTP/1.1 201 Created"


def test_whoever_is_gone_is_sent_nothing():
    asked = request()
    response = web.StreamResponse()
    response.prepare(asked)
    asked.wire.closing = True
    with pytest.raises(ConnectionResetError):
        response.write(b"x")


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "a\0b"])
def test_a_header_cannot_be_two(value):
    with pytest.raises(ValueError, match="line break"):
        head_of(200, {"x": value}, "")


def test_a_status_nobody_knows_is_written_all_the_same():
    assert head_of(299, {}, "") == b"HTTP/1.1 299 Unknown\r\n\r\n"
