"""Heads that the lane accepts: a strict subset of those that aiohttp accepts, read alike."""

import asyncio

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser
from hypothesis import example, given
from hypothesis import strategies as st

from node.lane.request import MAX_BODY_BYTES, MAX_HEAD_BYTES, LaneRequest, read_head
from router.http.heads import repeated_head_of

BODY = b'{"model":"tiny"}'
PLAIN = (
    b"POST /v1/chat/completions HTTP/1.1\r\n"
    b"Host: localhost:8080\r\n"
    b"Content-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)
WHOLE = PLAIN % len(BODY) + BODY


def with_line(line: bytes) -> bytes:
    return WHOLE.replace(b"Content-Type", line + b"\r\nContent-Type", 1)


def as_aiohttp_reads(data: bytes):
    """Return the messages, and the body of the first."""
    loop = asyncio.new_event_loop()
    try:
        protocol = BaseProtocol(loop)
        parser = HttpRequestParser(protocol, loop, 2**16, max_headers=128)
        messages, _, _ = parser.feed_data(data)
        return [message for message, _ in messages], messages[0][1]
    finally:
        loop.close()


def test_a_plain_call_is_read() -> None:
    head = read_head(WHOLE + b"more")
    assert head is not None
    assert (head.path, head.end) == ("/v1/chat/completions", len(WHOLE))
    assert WHOLE[head.body_at : head.end] == BODY
    assert head.headers["content-type"] == "application/json"


def test_a_header_value_may_be_empty() -> None:
    # Nodes name replicas without a name like this.
    head = read_head(with_line(b"X-Y: "))
    assert head is not None
    assert head.headers["x-y"] == ""


def test_a_head_is_read_before_its_body_has_come() -> None:
    head = read_head(PLAIN % 100)
    assert head is not None
    assert head.end == len(PLAIN % 100) + 100


@pytest.mark.parametrize(
    "data",
    [
        b"",
        WHOLE[: len(PLAIN) // 2],
        WHOLE.replace(b"POST", b"GET"),
        WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        WHOLE.replace(b"/v1/chat/completions", b"/v1/chat/completions?a=b"),
        WHOLE.replace(b"/v1/chat/completions", b"/v1/chat/%63ompletions"),
        WHOLE.replace(b"/v1/chat/completions", b"http://a/v1/chat/completions"),
        WHOLE.replace(b"\r\n", b"\n"),
        WHOLE.replace(b"Host: localhost:8080\r\n", b""),
        WHOLE.replace(b"localhost:8080", b""),
        WHOLE.replace(b"Content-Length", b"Content-Size"),
        WHOLE.replace(b": 16", b": +16"),
        WHOLE.replace(b": 16", b": 016"),
        WHOLE.replace(b": 16", b": 16, 16"),
        WHOLE.replace(b": 16", b":16"),
        WHOLE.replace(b": 16", b": 16 "),
        WHOLE.replace(b": 16", b": %d" % (MAX_BODY_BYTES + 1)),
        with_line(b"Content-Length: 16"),
        with_line(b"Transfer-Encoding: chunked"),
        with_line(b"Content-Encoding: gzip"),
        with_line(b"Expect: 100-continue"),
        with_line(b"Connection: close"),
        with_line(b"Connection: keep-alive, upgrade"),
        with_line(b"Upgrade: h2c"),
        with_line(b"Origin: http://elsewhere"),
        with_line(b"X: " + b"x" * MAX_HEAD_BYTES),
        with_line(b"X-Y: \xc3\xa9"),
        with_line(b"X-Y:"),
        with_line(b"X-Y:  "),
        with_line(b"X_Y: z"),
        with_line(b"X-Y : z"),
        with_line(b"X-Y: z\r\n folded"),
        with_line(b"X-Y: z\r"),
        with_line(b"\r\nX-Y: z"),
        with_line(b"x-y: 1\r\nX-Y: 2"),
    ],
)
def test_anything_but_a_plain_call_is_left_to_aiohttp(data: bytes) -> None:
    assert read_head(data) is None


ANY = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(
        [b"\r\n", b"\n", b"\r", b":", b" ", b"\t", b"\0", b"\x0b", b"Content-Length: 3\r\n", b"\r\n\r\n"]
    ),
)  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 6), ANY), max_size=3))
@example([(len(WHOLE), 0, WHOLE)])
@example([(WHOLE.index(b"Content-Type"), 0, b"X-Y: \r\n")])
def test_aiohttp_reads_every_accepted_head_alike(changes) -> None:
    data = WHOLE
    for offset, length, put in changes:
        data = data[:offset] + put + data[offset + length :]
    head = read_head(data)
    if head is None or head.end > len(data):
        return
    (message,), body = as_aiohttp_reads(data[: head.end])
    assert (message.method, message.path, message.version) == ("POST", head.path, (1, 1))
    headers = {name.lower(): value for name, value in message.headers.items()}
    assert len(message.headers) == len(headers)
    assert int(headers.pop("content-length")) == head.end - head.body_at
    assert headers.pop("x-request-id", "") == head.id
    assert headers == head.headers
    assert not any((message.chunked, message.upgrade, message.should_close, message.compression))
    assert body.is_eof()
    assert body.total_bytes == head.end - head.body_at


ID = b"0123456789abcdef" * 2
NAMED = with_line(b"X-Request-Id: " + ID)


@given(
    st.sampled_from([WHOLE, NAMED]),
    st.lists(st.tuples(st.integers(0, len(PLAIN)), st.integers(0, 6), ANY), max_size=2),
)
@example(WHOLE, [(WHOLE.index(b"16"), 2, b"262145")])
@example(WHOLE, [(WHOLE.index(b"16"), 2, b"3")])
@example(NAMED, [(NAMED.index(ID), 32, ID[::-1])])
@example(NAMED, [(NAMED.index(ID), 32, ID[:30])])
@example(NAMED, [(NAMED.index(ID), 32, ID + b"\r\nX-Request-Id: " + ID)])
def test_a_repeated_head_is_read_as_a_new_one(whole, changes) -> None:
    first, data = read_head(whole), whole
    assert first is not None
    pattern = repeated_head_of(whole[: first.body_at])
    assert pattern is not None
    for offset, length, put in changes:
        data = data[:offset] + put + data[offset + length :]
    matched = pattern.match(data)
    if matched is None:
        return
    again, anew = first.again(*matched), read_head(data)
    if again is None or anew is None:
        assert again is anew
        return
    assert (again.path, again.headers, again.id, again.body_at, again.end) == (
        anew.path, anew.headers, anew.id, anew.body_at, anew.end,
    )  # fmt: skip
    assert again.derived is first.derived


class Line:
    address = "127.0.0.1"
    transport = None

    def head(self, status, headers, length):
        raise NotImplementedError

    def send_now(self, *parts):
        raise NotImplementedError

    async def drain(self):
        raise NotImplementedError


async def test_a_body_is_read_once() -> None:
    head = read_head(WHOLE)
    assert head is not None
    request = LaneRequest(head, BODY, None, Line())
    assert not request.content.at_eof()
    assert await request.content.readany() == BODY
    assert request.content.at_eof()
    assert request.content.is_eof()
    assert request.content_length == len(BODY)
    assert tuple(request.headers.getall("x-nothing")) == ()
    assert tuple(request.headers.getall("host")) == ("localhost:8080",)
