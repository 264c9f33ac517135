"""The rules under which a head is believed; the corpus of what is refused over sockets is in `test_hostile_requests`."""

import pytest

from node.web.messages import HeadLimit, Malformed, UrlLimit
from node.web.parser import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MAX_URL_BYTES,
    RequestHead,
    Unspoken,
)


def head(*fields, url=b"/", method="GET", version="1.1", named=True):
    made = RequestHead()
    made.take_url(url)
    for name, value in ((b"Host", b"localhost"),) * named + fields:
        made.take_field(name, value)
    made.check(method, version)
    return made


def test_names_are_lower_case_and_what_may_stand_twice_is_joined():
    assert head((b"Accept", b"a"), (b"ACCEPT", b"b")).fields["accept"] == "a, b"


def test_what_is_no_text_stands_for_itself_and_nothing_else():
    assert head((b"X", b"\xff")).fields["x"] == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("name", [b"host", b"Content-Length", b"Origin", b"X-Modelvine-Hop"])
def test_what_may_stand_once_is_refused_twice_even_with_equal_values(name):
    with pytest.raises(Malformed):
        head((name, b"1"), (name, b"1"), named=name != b"host")


@pytest.mark.parametrize("url", [b"x", b"http://localhost/", b"*", b"/a b", b"/\xff", b"/\x7f", b"/#a", b""])  # fmt: skip
def test_a_target_that_is_no_path_is_refused(url):
    with pytest.raises(Malformed):
        head(url=url)


@pytest.mark.parametrize(("method", "url"), [("OPTIONS", b"*"), ("CONNECT", b"a:80")])
def test_targets_of_some_methods_are_no_paths(method, url):
    assert head(url=url, method=method).url == url


@pytest.mark.parametrize("version", ["0.9", "2.0", "1.2"])
def test_versions_that_we_do_not_speak_are_not_answered(version):
    with pytest.raises(Unspoken):
        head(version=version)


def test_only_http_1_0_need_not_name_a_host():
    assert head(version="1.0", named=False)
    with pytest.raises(Malformed):
        head(named=False)


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"chunked, chunked", b"identity", b"", b"x"])
def test_a_coding_that_is_not_chunked_alone_is_refused(coding):
    with pytest.raises(Malformed):
        head((b"Transfer-Encoding", coding))


def test_a_length_beside_chunks_and_chunks_in_http_1_0_are_refused():
    chunked = b"Transfer-Encoding", b"chunked"
    assert head(chunked).framing() == "Transfer-Encoding: chunked"
    with pytest.raises(Malformed):
        head(chunked, (b"Content-Length", b"1"))
    with pytest.raises(Malformed):
        head(chunked, version="1.0")


def test_every_size_has_a_bound():
    made = RequestHead()
    made.take_url(b"/" * MAX_URL_BYTES)
    with pytest.raises(UrlLimit):
        made.take_url(b"/")
    made.take_field(b"x", b"y" * (MAX_FIELD_BYTES - 1))
    with pytest.raises(HeadLimit):
        made.take_field(b"x", b"y" * MAX_FIELD_BYTES)


def test_all_headers_together_have_a_bound_and_so_has_their_number():
    made = RequestHead()
    for number in range(MAX_FIELDS):
        made.take_field(b"x-%d" % number, b"")
    with pytest.raises(HeadLimit):
        made.take_field(b"y", b"")
    made, sizes = RequestHead(), MAX_HEAD_BYTES // 8_000
    for number in range(sizes):
        made.take_field(b"%d" % number, b"y" * (8_000 - 5))
    with pytest.raises(HeadLimit):
        made.take_field(b"z", b"y" * 8_000)


def test_trailers_say_nothing_of_the_request_and_are_counted_anew():
    made = head((b"X", b"y"))
    for _ in range(MAX_FIELDS):
        made.take_trailer(b"X-Sum", b"1")
    assert made.fields == {"host": "localhost", "x": "y"}
    with pytest.raises(HeadLimit):
        made.take_trailer(b"X-Sum", b"1")
    with pytest.raises(Malformed):
        head().take_trailer(b"Content-Length", b"1")
