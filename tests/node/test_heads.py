"""Rules for accepting the head of a request; the corpus of requests refused over sockets is in `test_hostile_requests`."""

import pytest
from aiohttp import HttpVersion, HttpVersion10, HttpVersion11, web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from node.config.web import WebSettings
from node.faces.errors import BadHead, HeadTooLarge, UnsupportedExpectation, UrlTooLong
from node.heads import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    MAX_URL_BYTES,
    check,
    fault_of,
    fixed_headers,
)


def head(*fields: tuple[str, str], url="/", method="GET", version=HttpVersion11) -> web.Request:
    return make_mocked_request(method, url, CIMultiDict(fields), version=version)


@pytest.mark.parametrize("name", ["authorization", "ORIGIN", "X-Modelvine-Hop"])
def test_a_repeated_singleton_header_is_refused_even_with_equal_values(name):
    check(head((name, "1")))
    with pytest.raises(BadHead):
        check(head((name, "1"), (name.lower(), "1")))


@pytest.mark.parametrize(
    "url",
    ["http://localhost", "https://localhost/", "//localhost/\xff", "/a b", "/\xff", "/\x7f", "/#a"],
)
def test_a_target_that_is_no_path_is_refused(url):
    with pytest.raises(BadHead):
        check(head(url=url))


def test_a_whole_url_is_a_target_if_its_host_is_that_of_the_host_header():
    host = "Host", "localhost:6100"
    check(head(host, url="http://localhost:6100/v1/models?a=b"))
    check(head(host, url="HTTP://localhost:6100/"))
    for fields in ((), (("Host", "localhost"),), (("Host", "evil.example"),)):
        with pytest.raises(BadHead, match="Host"):
            check(head(*fields, url="http://localhost:6100/"))


def test_only_options_may_have_an_asterisk_as_its_target():
    check(head(url="*", method="OPTIONS"))
    with pytest.raises(BadHead):
        check(head(url="*"))


@pytest.mark.parametrize("version", [HttpVersion(0, 9), HttpVersion(2, 0), HttpVersion(1, 2)])
def test_only_http_1_0_and_1_1_are_spoken(version):
    check(head())
    check(head(version=HttpVersion10))
    with pytest.raises(BadHead):
        check(head(version=version))


@pytest.mark.parametrize("coding", ["gzip, chunked", "chunked, chunked", "identity", "", "x"])
def test_a_transfer_coding_other_than_chunked_alone_is_refused(coding):
    with pytest.raises(BadHead):
        check(head(("Transfer-Encoding", coding)))


def test_a_content_length_with_chunked_and_chunked_in_http_1_0_are_refused():
    chunked = "Transfer-Encoding", "chunked"
    check(head(chunked))
    with pytest.raises(BadHead):
        check(head(chunked, ("Content-Length", "1")))
    with pytest.raises(BadHead):
        check(head(chunked, version=HttpVersion10))


def test_an_expectation_that_cannot_be_met_is_refused():
    check(head(("Expect", "100-Continue")))
    with pytest.raises(UnsupportedExpectation):
        check(head(("Expect", "miracles")))


def test_all_headers_together_have_a_bound():
    check(head(*((f"x-{n}", "y" * 8_000) for n in range(8))))
    with pytest.raises(HeadTooLarge):
        check(head(*((f"x-{n}", "y" * 8_000) for n in range(9))))


def test_faults_that_the_parser_finds_become_errors_of_the_node():
    assert isinstance(fault_of(LineTooLong(b"x", MAX_URL_BYTES)), UrlTooLong)
    assert isinstance(fault_of(LineTooLong(b"x", MAX_FIELD_BYTES)), HeadTooLarge)
    assert str(MAX_FIELDS) in str(fault_of(BadHttpMessage("Too many headers received")))
    assert isinstance(fault_of(BadHttpMessage("x")), BadHead)


@pytest.mark.parametrize(
    ("origins", "secured", "more"),
    [
        ((), False, {"Cross-Origin-Resource-Policy": "same-origin"}),
        (("https://chat.example",), False, {}),
        (("*",), True, {"Strict-Transport-Security": "max-age=31536000"}),
    ],
)
def test_every_answer_to_callers_has_headers_for_browsers(origins, secured, more):
    headers = fixed_headers(WebSettings(origins=origins), secured=secured, peers=False)
    every = {
        "Server": "modelvine",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    assert headers.fields == every | more
    assert headers.lines == "".join(
        f"{name}: {value}\r\n" for name, value in headers.fields.items()
    )


def test_answers_to_peers_have_no_headers_for_browsers():
    headers = fixed_headers(WebSettings(), secured=True, peers=True)
    assert headers.lines == "Server: modelvine\r\n"
