"""Heads of requests: which headers are passed on, and that no header is split into two."""

from dataclasses import replace

import pytest

from registry.records import Service
from router.http.heads import forwarded_head, head_to, headers_to, request_head
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
    ours = {"Content-Type": "application/json", "X-Request-Id": "r-1", **dict(worker.headers)}
    assert headers_to(worker, request) == ours
    assert head_to(worker, request, b"", 0) == request_head(b"", ours, 0)
    theirs = replace(worker, headers=())
    assert head_to(theirs, request, b"", 0) == request_head(b"", headers_to(theirs, request), 0)


@pytest.mark.parametrize("value", ["a\r\nEvil: 1", "a\nb", "a\rb", "a\0b"])
def test_a_line_break_in_a_header_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        request_head(b"", {"X": value}, 0)
