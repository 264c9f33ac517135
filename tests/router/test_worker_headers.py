"""Laws of the headers that an operator sets for a worker: which are allowed, and where their values come from."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import Service
from router.errors import WorkerFailed
from router.http.heads import header_lines
from router.worker_headers import MAX_HEADERS_BYTES, files, objection, read, size
from router.workers import Worker


def worker(**headers: str) -> Worker:
    return Worker(Service("p", "m"), "http://w", headers=tuple(headers.items()))


@pytest.mark.parametrize(
    "name", ["authorization", "x-api-key", "cookie", "accept-language", "api_key", "x.y"]
)
def test_headers_that_workers_ask_for_are_allowed(name: str) -> None:
    assert objection(name, "Bearer k-1") == ""


@pytest.mark.parametrize(
    "name",
    [
        "", "-x", "X-Upper", "x y", "x:y", "x\r\ny", "ü", "x" * 65,
        "connection", "te", "trailer", "transfer-encoding", "upgrade", "keep-alive", "proxy-authorization",
        "content-length", "content-type", "content-encoding", "accept", "accept-encoding", "host", "expect", "x-request-id",
        "x-modelvine-hop", "grpc-timeout", "key-bin",
    ],
)  # fmt: skip
def test_headers_that_frame_a_request_or_are_the_nodes_own_are_refused(name: str) -> None:
    assert objection(name, "v") != ""


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        " v",
        "v ",
        "a\r\nb",
        "a\nb",
        "a\0b",
        "a\tb",
        "ü",
        "\x7f",
        "@key",
        "@./key",
        "@~/key",
    ],
)
def test_a_value_that_would_split_the_header_or_names_no_file_is_refused(value: str) -> None:
    assert objection("x-key", value)


def test_a_refusal_does_not_repeat_the_value() -> None:
    assert "secret" not in objection("x-key", "secret\n") + objection("x-key", "@secret")


@given(st.text(max_size=70), st.text(max_size=70))
def test_any_allowed_header_is_one_header_line(name: str, value: str) -> None:
    if not objection(name, value):
        assert header_lines({name: value}) == f"{name}: {value}\r\n"


def test_a_value_is_sent_unchanged_and_never_shown() -> None:
    registered = worker(authorization="Bearer secret-1", mail="me@home.net/x")
    assert read(registered) == {"authorization": "Bearer secret-1", "mail": "me@home.net/x"}
    assert files(registered) == []
    assert "secret-1" not in repr(registered)
    assert size(registered.headers) == 13 + 15 + 4 + 13


def test_the_first_line_of_a_file_is_read_anew_for_each_request(tmp_path: Path) -> None:
    key = tmp_path / "a key"
    registered = worker(plain=f"@{key}", bearer=f"Bearer @{key}")
    assert files(registered) == ["plain", "bearer"]
    key.write_text("k-1\r\nsecond line\n")
    assert read(registered) == {"plain": "k-1", "bearer": "Bearer k-1"}
    key.write_text("  k-2  ")
    assert read(registered) == {"plain": "k-2", "bearer": "Bearer k-2"}


@pytest.mark.parametrize(
    "content", [b"", b"\nk\n", b"a\0b", b"\xff\xfe", b"a\rb", b"k" * (MAX_HEADERS_BYTES + 1)]
)
def test_a_file_without_a_line_to_send_fails_the_attempt(tmp_path: Path, content: bytes) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    with pytest.raises(WorkerFailed, match="'key'") as failed:
        read(worker(key=f"@{key}"))
    assert str(key) not in str(failed.value)


def test_a_path_that_is_no_regular_file_fails_the_attempt_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("pipe", "missing", ""):
        with pytest.raises(WorkerFailed) as failed:
            read(worker(key=f"@{tmp_path}/{path}"))
        assert str(tmp_path) not in str(failed.value)
