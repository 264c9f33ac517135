"""A head that came before is known again, and only that one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.repeated_head import MOST_BYTES, remembered

HEAD = b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: %b\r\nDate: y\r\n\r\n"


def seen():
    head = remembered(HEAD % b"12")
    assert head is not None
    return head


@given(st.integers(0, 9_999_999), st.binary(max_size=20))
def test_it_is_found_with_every_length(length: int, body: bytes) -> None:
    again = HEAD % b"%d" % length
    assert seen().found_in(again + body) == (len(again), length)


@pytest.mark.parametrize(
    "said",
    [b"", b"-1", b"+1", b"012", b"00", b"1 ", b" 1", b"1_0", b"0x1", b"12345678", b"\xb2", b"1\r"],
)
def test_what_is_no_plain_length_is_another_head(said: bytes) -> None:
    assert seen().found_in(HEAD % said) is None


@given(st.integers(0, len(HEAD) + 8), st.integers(0, 3), st.binary(max_size=3))
def test_one_that_differs_anywhere_else_is_another(at: int, length: int, put: bytes) -> None:
    head = HEAD % b"12"
    changed = head[:at] + put + head[at + length :]
    found = seen().found_in(changed)
    if found is not None:
        assert changed[: found[0]] == HEAD % b"%d" % found[1]


def test_half_of_it_is_none() -> None:
    head = HEAD % b"12"
    assert all(seen().found_in(head[:size]) is None for size in range(len(head)))


def test_one_without_a_length_or_a_long_one_is_not_remembered() -> None:
    assert remembered(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") is None
    assert remembered(b"HTTP/1.1 200 OK\r\nContent-Length:1\r\n\r\n") is None
    long = b"X: " + b"x" * MOST_BYTES
    assert remembered((HEAD % b"1").replace(b"Server: x", long)) is None
