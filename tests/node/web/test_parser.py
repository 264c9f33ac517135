"""Bytes in, heads and bodies out: however the bytes are cut, and whatever else is offered."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.web.messages import HeadLimit, Malformed, UrlLimit
from node.web.parser import MAX_HEAD_BYTES, Parser

HOST = b"Host: a\r\n"
OFFER = HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
REQUESTS = (
    b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n",
    b"POST /b HTTP/1.1\r\n" + OFFER + b"Content-Length: 2\r\n\r\nok",
    b"POST /c HTTP/1.1\r\n"
    + OFFER
    + b"Transfer-Encoding: chunked\r\n\r\n1;x=y\r\nc\r\n0\r\nA: b\r\n\r\n",
    b"GET /d HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"POST /e HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nConnection: close\r\n\r\nbye",
)


class Heard:
    """What was parsed, as lines: target, version and whether its connection is kept, then the body."""

    def __init__(self):
        self.said = []

    def head_began(self):
        self.said.append(b"")

    def head_ended(self, head, method, *, version, kept):
        self.said[-1] += f"{method} {head.url.decode()} {version} {kept} ".encode()

    def body_came(self, piece):
        self.said[-1] += piece

    def body_ended(self):
        self.said[-1] += b"."


@pytest.fixture
def heard():
    return Heard()


@given(st.lists(st.integers(0, len(b"".join(REQUESTS)))))
def test_however_the_bytes_are_cut_the_same_is_heard(cuts):
    heard, whole = Heard(), b"".join(REQUESTS)
    parser = Parser(heard)
    places = [0, *sorted(cuts), len(whole)]
    for begin, end in pairwise(places):
        parser.feed(memoryview(whole)[begin:end])
    assert heard.said == [
        b"GET /a 1.1 True .",
        b"POST /b 1.1 True ok.",
        b"POST /c 1.1 True c.",
        b"GET /d 1.0 True .",
        b"POST /e 1.1 False bye.",
    ]


def test_ten_thousand_offers_in_one_piece_are_declined_one_after_the_other(heard):
    Parser(heard).feed((b"GET / HTTP/1.1\r\n" + OFFER + b"\r\n") * 10_000)
    assert heard.said == [b"GET / 1.1 True ."] * 10_000


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\n" + OFFER + b"\r\n"])
@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (b"GET /%s HTTP/1.1\r\n" % (b"a" * 9000), UrlLimit),
        (b"GET / HTTP/1.1\r\n\r\n", Malformed),
        (b"nonsense\r\n", Malformed),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * MAX_HEAD_BYTES, HeadLimit),
    ],
)
def test_what_is_wrong_has_its_name_also_after_an_offer(heard, before, said, fault):
    parser = Parser(heard)
    parser.feed(before)
    with pytest.raises(fault):
        parser.feed(said)


def test_what_is_left_of_a_body_is_known_where_its_head_says_it(heard):
    parser = Parser(heard)
    parser.feed(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nab")
    assert parser.left == 3
    parser.feed(b"cde")
    assert parser.left == 0
