"""Heads of requests: which headers are passed on, and that no header is split into two."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import Service
from router.http.heads import (
    MOST_BYTES,
    forwarded_head,
    has_worker_lines,
    head_to,
    headers_to,
    repeated_head_of,
    request_head,
    split_worker_lines,
)
from router.requests import Kind, PassedHeaders, Request
from router.workers import Worker


def test_only_headers_on_the_allow_list_are_passed_on() -> None:
    passed = {
        "accept": "a/b",
        "traceparent": "00-1",
        "tracestate": "k=v",
        "x-modelvine-via": "a, b",
        "authorization": "Bearer k",
        "cookie": "c=1",
        "x-api-key": "k",
        "proxy-authorization": "k",
        "x-forwarded-for": "192.0.2.1",
        "host": "h",
        "transfer-encoding": "chunked",
    }
    request = Request("r-1", Kind.CHAT, "m", b"", "application/json", passed=PassedHeaders(passed))
    assert forwarded_head(request, b"POST / HTTP/1.1\r\n", 3, "x: y\r\n").split(b"\r\n") == [
        b"POST / HTTP/1.1",
        b"Content-Type: application/json",
        b"X-Request-Id: r-1",
        b"accept: a/b",
        b"traceparent: 00-1",
        b"tracestate: k=v",
        b"x-modelvine-via: a, b",
        b"x: y",
        b"Content-Length: 3",
        b"",
        b"",
    ]


@pytest.mark.parametrize("said", [{"id": "r-1\r\nx: y"}, {"content_type": "a/b\r\nx: y"}])
def test_a_line_break_in_a_passed_on_value_is_refused(said: dict[str, str]) -> None:
    request = Request("r-1", Kind.CHAT, "m", b"", "application/json")
    with pytest.raises(ValueError, match="line break"):
        forwarded_head(replace(request, **said), b"", 0)


def test_the_operators_headers_of_a_worker_override_the_callers() -> None:
    passed = {"tracestate": "a=b", "authorization": "Bearer caller"}
    request = Request("r-1", Kind.CHAT, "m", b"", "application/json", passed=PassedHeaders(passed))
    worker = Worker(
        Service("p", "m"),
        "http://w",
        headers=(("tracestate", "c=d"), ("authorization", "Bearer ours")),
    )
    expected = {"Content-Type": "application/json", "X-Request-Id": "r-1", **dict(worker.headers)}
    assert headers_to(worker, request) == expected
    assert head_to(worker, request, b"", 0) == request_head(b"", expected, 0)
    bare = replace(worker, headers=())
    assert head_to(bare, request, b"", 0) == request_head(b"", headers_to(bare, request), 0)


@pytest.mark.parametrize("value", ["a\r\nEvil: 1", "a\nb", "a\rb", "a\0b"])
def test_a_line_break_in_a_header_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        request_head(b"", {"X": value}, 0)


HEAD = b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: %b\r\nDate: y\r\n\r\n"


def seen():
    head = repeated_head_of(HEAD % b"12")
    assert head is not None
    return head


@given(st.integers(0, 9_999_999), st.binary(max_size=20))
def test_a_seen_head_is_recognised_with_any_content_length(length: int, body: bytes) -> None:
    again = HEAD % b"%d" % length
    assert seen().match(again + body) == (len(again), length, b"")


@pytest.mark.parametrize(
    "said",
    [b"", b"-1", b"+1", b"012", b"00", b"1 ", b" 1", b"1_0", b"0x1", b"12345678", b"\xb2", b"1\r"],
)
def test_a_head_with_an_odd_content_length_is_another_head(said: bytes) -> None:
    assert seen().match(HEAD % said) is None


@given(st.integers(0, len(HEAD) + 8), st.integers(0, 3), st.binary(max_size=3))
def test_a_head_that_differs_elsewhere_is_another_head(at: int, length: int, put: bytes) -> None:
    head = HEAD % b"12"
    changed = head[:at] + put + head[at + length :]
    found = seen().match(changed)
    if found is not None:
        assert changed[: found[0]] == HEAD % b"%d" % found[1]


def test_an_incomplete_head_is_not_recognised() -> None:
    head = HEAD % b"12"
    assert all(seen().match(head[:size]) is None for size in range(len(head)))


def test_a_head_without_a_length_or_a_long_head_is_not_remembered() -> None:
    assert repeated_head_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") is None
    assert repeated_head_of(b"HTTP/1.1 200 OK\r\nContent-Length:1\r\n\r\n") is None
    long = b"X: " + b"x" * MOST_BYTES
    assert repeated_head_of((HEAD % b"1").replace(b"Server: x", long)) is None


ID = b"0123456789abcdef" * 2
WITH_ID = b"POST / HTTP/1.1\r\nX-Request-Id: %b\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


def named():
    head = repeated_head_of(WITH_ID % (ID, 12))
    assert head is not None
    return head


@given(st.binary(min_size=16, max_size=16), st.integers(0, 9_999_999))
def test_a_seen_head_is_recognised_with_any_request_id(id_: bytes, length: int) -> None:
    request_id = id_.hex().encode()
    again = WITH_ID % (request_id, length)
    assert named().match(again + b"x") == (len(again), length, request_id)


@pytest.mark.parametrize(
    "said", [b"", ID[:-1], ID + b"0", ID.upper(), b" " + ID[1:], ID[1:] + b" ", ID[:-1] + b"\r", b"0" * 30 + b"\r\n"]
)  # fmt: skip
def test_a_head_with_an_odd_request_id_is_another_head(said: bytes) -> None:
    assert named().match(WITH_ID % (said, 1)) is None


@pytest.mark.parametrize(
    "said", [b"mine", ID.upper(), ID + b"\r\nx-request-ID: " + ID, ID + b"\r\nX-REQUEST-ID:b"]
)
def test_a_request_id_of_another_form_is_compared_like_other_bytes(said: bytes) -> None:
    head = WITH_ID % (said, 1)
    found = repeated_head_of(head)
    assert found is not None
    assert found.match(head) == (len(head), 1, b"")
    assert found.match(WITH_ID % (ID[::-1] + said[32:], 1)) is None


@given(st.integers(0, len(WITH_ID) + 40), st.integers(0, 3), st.binary(max_size=3))
def test_a_head_with_an_id_that_differs_elsewhere_is_another_head(
    at: int, length: int, put: bytes
) -> None:
    head = WITH_ID % (ID, 12)
    changed = head[:at] + put + head[at + length :]
    found = named().match(changed)
    if found is not None:
        assert changed[: found[0]] == WITH_ID % (found[2], found[1])


TOLD = b"\r\nx-modelvine-load: a=1"
TIMED = TOLD + b"\r\nx-modelvine-service-time: b=2"


def test_load_headers_are_cut_out_of_a_head() -> None:
    head = HEAD % b"12"
    offset = head.index(b"\r\ncontent")
    load, service_time = ("x-modelvine-load", "a=1"), ("x-modelvine-service-time", "b=2")
    assert split_worker_lines(head) is None
    assert split_worker_lines(head[:offset] + TOLD + head[offset:]) == (head, dict([load]), offset)
    assert split_worker_lines(head[:offset] + TIMED + head[offset:]) == (
        head,
        dict([load, service_time]),
        offset,
    )
    assert split_worker_lines(head[:offset] + TOLD) is None
    assert split_worker_lines(head[:offset] + TIMED) is None
    assert not has_worker_lines(head)
    assert has_worker_lines(head[:offset] + TOLD.upper() + head[offset:])


@pytest.mark.parametrize(
    "lines", [TOLD + b" b", TOLD + b"\r\n b", TOLD + b" ", b"x" + TOLD[2:], TOLD + b"\x80", TOLD + b"1" * 100]
)  # fmt: skip
def test_load_headers_that_no_node_would_write_are_left_in_place(lines: bytes) -> None:
    head = HEAD % b"12"
    offset = head.index(b"\r\ncontent")
    assert split_worker_lines(head[:offset] + lines + head[offset:]) is None


def test_a_request_with_another_date_is_another_head() -> None:
    dated = b"POST / HTTP/1.1\r\nDate: Sun, 29 Nov 2026 16:21:%02d GMT\r\nContent-Length: 1\r\n\r\n"
    head, answers = repeated_head_of(dated % 1), repeated_head_of(dated % 1, dated=True)
    assert head is not None
    assert answers is not None
    assert (head.match(dated % 1) is None, head.match(dated % 2)) == (False, None)
    assert answers.match(dated % 2) == (len(dated % 2), 1, b"")
