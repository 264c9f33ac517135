"""Corpus of bytes that one parser may take for one request and the next for two, with the number of requests in each.

`NONE`: ambiguous, so nothing of it may reach a worker. `ONE` and `TWO`: odd, but every parser agrees. `AT_MOST_…`: the
bytes that follow may be a reason to refuse what came before them. After most cases comes a second request, `HIDDEN`,
which by one reading is the body of the first.
"""

from collections.abc import Mapping

from tests.hostile.refused import CHAT, JSON
from tests.hostile.wire import PLAIN_HOST

Count = tuple[int, int]
"""The fewest and the most requests that a worker may see."""

NONE, ONE, TWO = (0, 0), (1, 1), (2, 2)
AT_MOST_ONE, AT_MOST_TWO = (0, 1), (0, 2)
Case = tuple[bytes, Count]

HIDDEN_BODY = b'{"model":"tiny","hidden":1}'
_TYPE = b"Content-Type: application/json\r\n"
_LINE = b"POST %b HTTP/1.1\r\n" % CHAT


def _sent(headers: bytes, body: bytes, line: bytes = _LINE) -> bytes:
    return line + PLAIN_HOST + _TYPE + headers + b"\r\n" + body


HIDDEN = _sent(b"Content-Length: %d\r\n" % len(HIDDEN_BODY), HIDDEN_BODY)
_LENGTH = b"Content-Length: %d\r\n" % len(JSON)
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_CHUNK = b"%x\r\n%b\r\n" % (len(JSON), JSON)
_END = b"0\r\n\r\n"

# Each is meant to be a transfer coding for one parser and none for another.
_DISGUISES: Mapping[str, bytes] = {
    "as it is": b"Transfer-Encoding: chunked\r\n",
    "in capitals": b"TRANSFER-ENCODING: CHUNKED\r\n",
    "no space": b"Transfer-Encoding:chunked\r\n",
    "a tab": b"Transfer-Encoding:\tchunked\r\n",
    "space behind": b"Transfer-Encoding: chunked \t\r\n",
    "space before the colon": b"Transfer-Encoding : chunked\r\n",
    "tab before the colon": b"Transfer-Encoding\t: chunked\r\n",
    "line break before the colon": b"Transfer-Encoding\r\n: chunked\r\n",
    "space before the name": b" Transfer-Encoding: chunked\r\n",
    "zero before the name": b"\0Transfer-Encoding: chunked\r\n",
    "zero in the name": b"Transfer\0-Encoding: chunked\r\n",
    "byte before the name": b"\xffTransfer-Encoding: chunked\r\n",
    "vertical tab": b"Transfer-Encoding: \x0bchunked\r\n",
    "form feed": b"Transfer-Encoding: \x0cchunked\r\n",
    "zero behind": b"Transfer-Encoding: chunked\0\r\n",
    "byte before": b"Transfer-Encoding: \xffchunked\r\n",
    "no-break space": b"Transfer-Encoding: \xa0chunked\r\n",
    "double quotes": b'Transfer-Encoding: "chunked"\r\n',
    "single quotes": b"Transfer-Encoding: 'chunked'\r\n",
    "a letter more": b"Transfer-Encoding: xchunked\r\n",
    "a letter less": b"Transfer-Encoding: chunke\r\n",
    "a Kelvin sign": b"Transfer-Encoding: chun\xe2\x84\xaaed\r\n",
    "a semicolon": b"Transfer-Encoding: chunked;\r\n",
    "a parameter": b"Transfer-Encoding: chunked;q=1\r\n",
    "a comma": b"Transfer-Encoding: ,chunked\r\n",
    "identity behind": b"Transfer-Encoding: chunked, identity\r\n",
    "identity before": b"Transfer-Encoding: identity, chunked\r\n",
    "gzip before": b"Transfer-Encoding: gzip, chunked\r\n",
    "twice in one": b"Transfer-Encoding: chunked, chunked\r\n",
    "twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "another behind": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n",
    "another before": b"Transfer-Encoding: cow\r\nTransfer-Encoding: chunked\r\n",
    "identity": b"Transfer-Encoding: identity\r\n",
    "nothing": b"Transfer-Encoding:\r\n",
    "nothing, then it": b"Transfer-Encoding:\r\nTransfer-Encoding: chunked\r\n",
    "a folded line": b"Transfer-Encoding:\r\n chunked\r\n",
    "a folded line in the word": b"Transfer-Encoding: chun\r\n ked\r\n",
    "a folded line of another": b"X: y\r\n Transfer-Encoding: chunked\r\n",
    "behind a line feed": b"X: y\nTransfer-Encoding: chunked\r\n",
    "behind a carriage return": b"X: y\rTransfer-Encoding: chunked\r\n",
    "behind an odd line": b"X\r\nTransfer-Encoding: chunked\r\n",
    "behind a carriage return too many": b"X: y\r\r\nTransfer-Encoding: chunked\r\n",
    "before a line feed": b"Transfer-Encoding: chunked\nX: y\r\n",
}

# Headers without a meaning in HTTP, whatever some parser makes of them: the length alone counts.
_LOOKALIKES: Mapping[str, bytes] = {
    "an underscore": b"Transfer_Encoding: chunked\r\n",
    "a point": b"Transfer.Encoding: chunked\r\n",
    "content encoding": b"X-Transfer-Encoding: chunked\r\n",
    "TE": b"TE: chunked\r\n",
    "named by Connection": b"Connection: Transfer-Encoding\r\n",
}

_LENGTHS: Mapping[str, bytes] = {
    "twice": b"Content-Length: 30\r\nContent-Length: 30\r\n",
    "two": b"Content-Length: 30\r\nContent-Length: 0\r\n",
    "two, the first none": b"Content-Length: 0\r\nContent-Length: 30\r\n",
    "a list of equals": b"Content-Length: 30, 30\r\n",
    "a list": b"Content-Length: 30, 0\r\n",
    "plus": b"Content-Length: +30\r\n",
    "minus": b"Content-Length: -30\r\n",
    "hexadecimal": b"Content-Length: 0x1e\r\n",
    "octal": b"Content-Length: 0o36\r\n",
    "exponent": b"Content-Length: 3e1\r\n",
    "a point": b"Content-Length: 30.0\r\n",
    "underscores": b"Content-Length: 3_0\r\n",
    "a space within": b"Content-Length: 3 0\r\n",
    "a zero byte": b"Content-Length: 30\0\r\n",
    "a vertical tab": b"Content-Length: \x0b30\r\n",
    "Arabic digits": b"Content-Length: \xd9\xa3\xd9\xa0\r\n",
    "in quotes": b'Content-Length: "30"\r\n',
    "empty": b"Content-Length:\r\n",
    "beyond 64 bits": b"Content-Length: 18446744073709551646\r\n",
    "beyond 32 bits": b"Content-Length: 4294967326, 30\r\n",
    "space before the colon": b"Content-Length : 30\r\n",
    "space before the name": b" Content-Length: 30\r\n",
    "a folded line": b"Content-Length:\r\n 30\r\n",
    "behind a line feed": b"X: y\nContent-Length: 30\r\n",
    "behind a carriage return": b"X: y\rContent-Length: 30\r\n",
    "underscore and another": b"Content-Length: x\r\nContent_Length: 30\r\n",
}

_CHUNKS: Mapping[str, bytes] = {
    "plus": b"+1e\r\n" + JSON + b"\r\n" + _END,
    "minus": b"-1e\r\n" + JSON + b"\r\n" + _END,
    "0x": b"0x1e\r\n" + JSON + b"\r\n" + _END,
    "space before": b" 1e\r\n" + JSON + b"\r\n" + _END,
    "space behind": b"1e \r\n" + JSON + b"\r\n" + _END,
    "tab behind": b"1e\t\r\n" + JSON + b"\r\n" + _END,
    "underscore": b"1_e\r\n" + JSON + b"\r\n" + _END,
    "empty": b"\r\n" + JSON + b"\r\n" + _END,
    "beyond 64 bits": b"1000000000000001e\r\n" + JSON + b"\r\n" + _END,
    "beyond 32 bits": b"10000001e00000000000000\r\n" + JSON + b"\r\n" + _END,
    "line feed behind the size": b"1e\n" + JSON + b"\r\n" + _END,
    "carriage return behind the size": b"1e\r" + JSON + b"\r\n" + _END,
    "carriage return too many": b"1e\r\r\n" + JSON + b"\r\n" + _END,
    "line feed behind the data": b"1e\r\n" + JSON + b"\n" + _END,
    "carriage return behind the data": b"1e\r\n" + JSON + b"\r" + _END,
    "nothing behind the data": b"1e\r\n" + JSON + _END,
    "two other bytes behind the data": b"1e\r\n" + JSON + b"XX" + _END,
    "more than it says": b"10\r\n" + JSON + b"\r\n" + _END,
    "line feeds": (_CHUNK + _END).replace(b"\r\n", b"\n"),
    "line feed at the end": _CHUNK + b"0\n\r\n",
    "line feeds at the end": _CHUNK + b"0\n\n",
    "line feed in an extension": b"1e;a\nb\r\n" + JSON + b"\r\n" + _END,
    "carriage return in an extension": b"1e;a\rb\r\n" + JSON + b"\r\n" + _END,
    "zero in an extension": b"1e;a\0b\r\n" + JSON + b"\r\n" + _END,
    "a length behind": _CHUNK + b"0\r\nContent-Length: 0\r\n\r\n",
    "a coding behind": _CHUNK + b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a folded line behind": _CHUNK + b"0\r\nX: y\r\n z\r\n\r\n",
    "a line feed behind": _CHUNK + b"0\r\nX: y\nZ: a\r\n\r\n",
    "no colon behind": _CHUNK + b"0\r\nXy\r\n\r\n",
}

_LINES: Mapping[str, bytes] = {
    "tabs": b"POST\t%b\tHTTP/1.1\r\n" % CHAT,
    "space at first": b" POST %b HTTP/1.1\r\n" % CHAT,
    "space at last": b"POST %b HTTP/1.1 \r\n" % CHAT,
    "a word more": b"POST %b HTTP/1.1 x\r\n" % CHAT,
    "a line feed": b"POST %b HTTP/1.1\n" % CHAT,
    "a carriage return": b"POST %b HTTP/1.1\r" % CHAT,
    "a carriage return too many": b"POST %b HTTP/1.1\r\r\n" % CHAT,
    "a carriage return in the path": b"POST %b\rX HTTP/1.1\r\n" % CHAT,
    "a zero in the path": b"POST %b\0 HTTP/1.1\r\n" % CHAT,
    "a byte in the path": b"POST %b\xa0 HTTP/1.1\r\n" % CHAT,
    "a letter before it": b"XPOST %b HTTP/1.1\r\n" % CHAT,
    "a method in lower case": b"post %b HTTP/1.1\r\n" % CHAT,
    "another host": b"POST http://evil.example%b HTTP/1.1\r\n" % CHAT,
    "a user before the host": b"POST http://localhost@evil.example%b HTTP/1.1\r\n" % CHAT,
    "an authority": b"POST localhost:80 HTTP/1.1\r\n",
    "a version to come": b"POST %b HTTP/1.2\r\n" % CHAT,
    "HTTP/2 in words": b"POST %b HTTP/2.0\r\n" % CHAT,
    "no version": b"POST %b\r\n" % CHAT,
}

_HEADS: Mapping[str, bytes] = {
    "a second host": b"Host: evil.example\r\n",
    "a host behind a line feed": b"X: y\nHost: evil.example\r\n",
    "an id of two lines": b"x-request-id: a\rX: y\r\n",
    "a trace of two lines": b"traceparent: 00\nX: y\r\n",
    "a project of two lines": b"x-modelvine-project: p\rX-Other: y\r\n",
    "a folded type": b"Accept: a\r\n /b\r\n",
    "an end too soon": b"X: y\r\n\n",
    "an end of line feeds": b"X: y\n\n",
    "a name in brackets": b"X[]: y\r\n",
}


def _both_ways(headers: bytes, *, counts: Count) -> Mapping[str, Case]:
    """Hide a request behind the last chunk, and behind the length.

    `counts` is the expected number of requests for the second case, where the length decides.
    """
    by_length = _END + HIDDEN
    by_chunks = b"%x\r\n%b\r\n%b" % (len(HIDDEN), HIDDEN, _END)
    size = len(b"%x\r\n" % len(HIDDEN))
    return {
        "a length, then chunks": (
            _sent(b"Content-Length: %d\r\n%b" % (len(by_length), headers), by_length), NONE
        ),
        "chunks, then a length": (
            _sent(b"%bContent-Length: %d\r\n" % (headers, size), by_chunks), counts
        ),
    }  # fmt: skip


def _disguised() -> Mapping[str, Case]:
    cases: dict[str, Case] = {}
    for title, headers, counts in (
        *((name, line, NONE) for name, line in _DISGUISES.items()),
        *((name, line, AT_MOST_ONE) for name, line in _LOOKALIKES.items()),
    ):
        for way, case in _both_ways(headers, counts=counts).items():
            cases[f"coding, {title}: {way}"] = case
    return cases


CASES: Mapping[str, Case] = {
    **_disguised(),
    **{f"length, {n}": (_sent(line, JSON + HIDDEN), NONE) for n, line in _LENGTHS.items()},
    **{f"chunks, {n}": (_sent(_CHUNKED, body + HIDDEN), NONE) for n, body in _CHUNKS.items()},
    **{f"line, {n}": (_sent(_LENGTH, JSON + HIDDEN, line), NONE) for n, line in _LINES.items()},
    **{f"head, {n}": (_sent(line + _LENGTH, JSON + HIDDEN), NONE) for n, line in _HEADS.items()},
    "head, no host": (b"POST %b HTTP/1.1\r\n%b%b\r\n%b%b" % (CHAT, _TYPE, _LENGTH, JSON, HIDDEN), NONE),
    "HTTP/1.0 in chunks": (
        _sent(_CHUNKED, _CHUNK + _END + HIDDEN, _LINE.replace(b"1.1", b"1.0")), NONE
    ),
    "HTTP/1.0 ends after one": (_sent(_LENGTH, JSON + HIDDEN, _LINE.replace(b"1.1", b"1.0")), AT_MOST_ONE),
    "closed after one": (_sent(_LENGTH + b"Connection: close\r\n", JSON + HIDDEN), AT_MOST_ONE),
    "leading zeros": (_sent(b"Content-Length: 0030\r\n", JSON), ONE),
    "spaces about the length": (_sent(b"Content-Length: \t30 \r\n", JSON), ONE),
    "shorter than its body": (_sent(b"Content-Length: 30\r\n", JSON + b"GET /foreign HTTP/1.1\r\n\r\n"), AT_MOST_ONE),
    "no length": (_sent(b"", HIDDEN), ONE),
    "empty lines first": (b"\r\n\r\n" + _sent(_LENGTH, JSON), ONE),
    "its own host in the URL": (
        _sent(_LENGTH, JSON, b"POST http://localhost%b HTTP/1.1\r\n" % CHAT), AT_MOST_ONE
    ),
    "a line break in the query": (
        _sent(_LENGTH, JSON, b"POST %b?x=%%0d%%0aGET%%20/foreign HTTP/1.1\r\n" % CHAT), ONE
    ),
    "chunks with zeros": (_sent(_CHUNKED, b"000000000000001e\r\n" + JSON + b"\r\n000\r\n\r\n"), ONE),
    "chunks with an extension": (_sent(_CHUNKED, b'1e;a="0"\r\n' + JSON + b"\r\n0;b\r\n\r\n"), ONE),
    "chunks with a trailer": (_sent(_CHUNKED, _CHUNK + b"0\r\nX: GET /foreign HTTP/1.1\r\n\r\n"), ONE),
    "a coding in capitals": (_sent(b"transfer-ENCODING: Chunked\r\n", _CHUNK + _END), ONE),
    "two in a row": (_sent(_LENGTH, JSON + HIDDEN), TWO),
    "two in a row, in chunks": (_sent(_CHUNKED, _CHUNK + _END + HIDDEN), TWO),
    "a continuation expected": (_sent(_LENGTH + b"Expect: 100-continue\r\n", JSON + HIDDEN), TWO),
    "another protocol offered": (
        _sent(_LENGTH + b"Connection: Upgrade\r\nUpgrade: h2c\r\n", JSON + HIDDEN), AT_MOST_TWO
    ),
    "another method first": (b"GET /nothing HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b%b"
        % (PLAIN_HOST, len(HIDDEN), HIDDEN, HIDDEN), AT_MOST_ONE),
}  # fmt: skip
"""Every case: the bytes, and how many requests of them a worker may see."""
