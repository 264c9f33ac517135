"""Corpus of requests that must be refused, by name, with their statuses; nothing in it depends on a server."""

import gzip
import zlib
from collections.abc import Mapping

from tests.hostile.wire import PLAIN_HOST

MODEL = b"tiny"
JSON = b'{"model":"tiny","messages":[]}'
CHAT = b"/v1/chat/completions"
MEGABYTE = 1024 * 1024
BOMB_BYTES = 80 * MEGABYTE  # more than a body may have

Case = tuple[bytes, int]


def request(
    line: bytes, headers: bytes = b"", body: bytes = b"", *, host: bytes = PLAIN_HOST
) -> bytes:
    """Return a request with no header added but its host."""
    return line + b"\r\n" + host + headers + b"\r\n" + body


def post(
    body: bytes,
    kind: bytes = b"application/json",
    headers: bytes = b"",
    *,
    length: bytes | None = None,
    path: bytes = CHAT,
) -> bytes:
    """Return a POST with a Content-Length, that of the body unless another is given."""
    announced = b"%d" % len(body) if length is None else length
    named = b"Content-Type: %b\r\n" % kind if kind else b""
    headers = named + headers + b"Content-Length: %b\r\n" % announced
    return request(b"POST %b HTTP/1.1" % path, headers, body)


def chunked(body: bytes, headers: bytes = b"Transfer-Encoding: chunked\r\n") -> bytes:
    """Return a POST with a chunked body; `body` includes the chunk framing."""
    headers = b"Content-Type: application/json\r\n" + headers
    return request(b"POST %b HTTP/1.1" % CHAT, headers, body)


CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(JSON), JSON)


def _packed(encoding: bytes, body: bytes) -> bytes:
    return post(body, headers=b"Content-Encoding: %b\r\n" % encoding)


_VALUES: Mapping[str, bytes] = {
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "-Infinity": b"-Infinity",
    "a number of 100,000 digits": b"9" * 100_000,
    "a number of 4,301 digits": b"9" * 4_301,
    "an exponent of 999": b"1e999",
    "an exponent of 100,000 digits": b"1e" + b"9" * 100_000,
    "900,000 brackets": b"[" * 900_000,
    "450,000 brackets, closed": b"[" * 450_000 + b"]" * 450_000,
    "200,000 braces": b'{"a":' * 200_000,
    "1,000 levels": b"[" * 1_000 + b"]" * 1_000,
    "300 levels": b"[" * 300 + b"]" * 300,
    "a byte that is no UTF-8": b'"\xff"',
    "an overlong slash": b'"\xc0\xaf"',
    "half of a surrogate pair": b'"\\ud800"',
    "half of a surrogate pair in bytes": b'"\xed\xa0\x80"',
    "a line break in text": b'"a\nb"',
    "a comma too many": b"[1,]",
    "a leading zero": b"01",
    "a comment": b"/**/1",
    "single quotes": b"'x'",
}

_BODIES: Mapping[str, bytes] = {
    "nothing": b"",
    "spaces": b"   ",
    "zeros": b"\0" * 1_000,
    "null": b"null",
    "a list": b'["model"]',
    "text": b'"model"',
    "two objects": JSON + JSON,
    "more after its end": JSON + b"x",
    "broken off": JSON[:-1],
    "a byte order mark": b"\xef\xbb\xbf" + JSON,
    "UTF-16": JSON.decode().encode("utf-16"),
    "UTF-32": JSON.decode().encode("utf-32"),
    "a model that is an object": b'{"model":{"model":"tiny"}}',
    "no model": b'{"messages":[]}',
    "a model without a letter": b'{"model":""}',
    "a model of 10,000 letters": b'{"model":"' + b"x" * 10_000 + b'"}',
    "a model that is no text": b'{"model":"\\ud800"}',
    "stream that is a number": b'{"model":"tiny","stream":1}',
    "the model twice": b'{"model":"other","model":"tiny"}',
    "the model twice, the first no text": b'{"model":null,"model":"tiny"}',
    "the model twice, far apart": b'{"model":"other","x":[{"model":1}],"model":"tiny"}',
    "the model twice, once escaped": b'{"\\u006dodel":"other","model":"tiny"}',
    "the model twice, once escaped at the end": b'{"model":"tiny","mode\\u006C":"other"}',
    "the model twice, once as Go reads it": b'{"model":"tiny","Model":"other"}',
    "the model twice, once capital by an escape": b'{"model":"tiny","\\u004dodel":"other"}',
    "escapes of letters in a long body": b'{"\\u006dodel":"tiny","x":"' + b"a" * MEGABYTE + b'"}',
}

_UNREAD_TYPES: Mapping[str, bytes] = {
    "text": b"text/plain",
    "a form as browsers send it": b"application/x-www-form-urlencoded",
    "anything": b"*/*",
    "UTF-16": b"application/json; charset=utf-16",
    "UTF-7": b'application/json; charset="UTF-7"',
    "two charsets": b"application/json; charset=utf-8; charset=utf-7",
    "two types": b"application/json, text/plain",
    "no text": b"application/json; \x80\xff=1",
    "semicolons": b";;;",
    "5,000 letters": b"a" * 5_000,
    "a form of another kind": b"multipart/mixed; boundary=B",
    "two boundaries": b"multipart/form-data; boundary=B; boundary=C",
    "an open quote": b'multipart/form-data; boundary="B',
}

_BOMB = gzip.compress(b" " * BOMB_BYTES)

_ENCODINGS: Mapping[str, Case] = {
    "gzip that is none": (_packed(b"gzip", JSON), 400),
    "deflate that is none": (_packed(b"deflate", JSON), 400),
    "gzip broken off": (_packed(b"gzip", gzip.compress(JSON)[:-5]), 400),
    "gzip with more after it": (_packed(b"gzip", gzip.compress(JSON) + b"junk"), 400),
    "gzip with a wrong sum": (_packed(b"gzip", gzip.compress(JSON)[:-8] + b"\0" * 8), 400),
    "gzip of 50,000 members": (_packed(b"gzip", gzip.compress(b"") * 50_000), 400),
    "gzip as deflate": (_packed(b"deflate", gzip.compress(JSON)), 400),
    "brotli": (_packed(b"br", b"\x0b\x02\x80{}\x03"), 415),
    "zstd": (_packed(b"zstd", b"\x28\xb5\x2f\xfd\x04\x00"), 415),
    "an unknown encoding": (_packed(b"miracle", JSON), 415),
    "an encoding of 4,000 letters": (_packed(b"x" * 4_000, JSON), 415),
    "gzip twice": (_packed(b"gzip, gzip", gzip.compress(gzip.compress(JSON))), 415),
    "two headers": (
        _packed(b"gzip\r\nContent-Encoding: br", gzip.compress(JSON)),
        415,
    ),
    "a bomb": (_packed(b"gzip", _BOMB), 413),
    "a bomb by deflate": (_packed(b"deflate", zlib.compress(b" " * BOMB_BYTES)), 413),
    "a bomb in a bomb": (_packed(b"gzip", gzip.compress(_BOMB)), 400),
}

_LENGTHS = {
    "negative": b"-1",
    "with a plus": b"+30",
    "hexadecimal": b"0x1e",
    "with an exponent": b"3e1",
    "with a space": b"3 0",
    "a list of equals": b"30,30",
    "a list": b"30, 31",
    "no number": b"thirty",
    "empty": b"",
    "not ASCII": b"\xb2",
    "beyond 64 bits": b"18446744073709551646",
    "of 1,000 digits": b"9" * 1_000,
}

_CODINGS = {
    "identity": b"identity",
    "gzip first": b"gzip, chunked",
    "gzip last": b"chunked, gzip",
    "twice": b"chunked, chunked",
    "a name that ends alike": b"xchunked",
    "in quotes": b'"chunked"',
    "with a parameter": b"chunked;q=1",
    "with a vertical tab": b"chunked\x0b",
    "empty": b"",
}

_CHUNKS = {
    "a size that is no number": b"zz\r\n{}\r\n0\r\n\r\n",
    "a size that is negative": b"-1\r\n{}\r\n0\r\n\r\n",
    "a size with 0x": b"0x1e\r\n" + JSON + b"\r\n0\r\n\r\n",
    "a size beyond 64 bits": b"1000000000000001e\r\n" + JSON + b"\r\n0\r\n\r\n",
    "no line break behind it": b"1e\r\n" + JSON + b"XX0\r\n\r\n",
    "bare line feeds": b"1e\n" + JSON + b"\n0\n\n",
    "a length in the trailer": b"1e\r\n" + JSON + b"\r\n0\r\nContent-Length: 5\r\n\r\n",
}

_FIELDS = {
    "a space before the colon": b"X : y\r\n",
    "no colon": b"Xy\r\n",
    "no name": b": y\r\n",
    "a folded line": b"X: y\r\n z\r\n",
    "a folded line at first": b" X: y\r\n",
    "a zero": b"X: a\0b\r\n",
    "a carriage return": b"X: a\rb\r\n",
    "a line feed": b"X: a\nY: b\r\n",
    "a control character in the name": b"X\x01: y\r\n",
    "a name that is no ASCII": b"\xc3\xa9: y\r\n",
    "the length twice": b"Content-Length: 30\r\n",
    "two lengths": b"Content-Length: 31\r\n",
    "two types": b"Content-Type: text/plain\r\n",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "a length and chunks": b"Transfer-Encoding: chunked\r\n",
}


def _many(count: int, size: int) -> bytes:
    return b"".join(b"X-%d: %b\r\n" % (index, b"y" * size) for index in range(count))


_SIZES: Mapping[str, Case] = {
    "a header of 64 kB": (post(JSON, headers=b"X: " + b"y" * 65_536 + b"\r\n"), 431),
    "a header's name of 64 kB": (post(JSON, headers=b"y" * 65_536 + b": x\r\n"), 431),
    "headers of 72 kB": (post(JSON, headers=_many(9, 8_000)), 431),
    "headers of 900 kB": (post(JSON, headers=_many(120, 8_000)), 431),
    "1,000 headers": (post(JSON, headers=_many(1_000, 1)), 431),
    "trailers without end": (chunked(CHUNKS[:-2] + _many(20_000, 1) + b"\r\n"), 431),
    "a URL of 64 kB": (post(JSON, path=CHAT + b"?" + b"a" * 65_536), 414),
    "a URL of 9 kB": (post(JSON, path=CHAT + b"?" + b"a" * 9_000), 414),
    "a length of 10^12": (post(b"", length=b"1000000000000"), 413),
    "a length of 2^64-1": (post(b"", length=b"18446744073709551615"), 413),
}

_GARBAGE = {
    "zeros": b"\0" * 100_000,
    "every byte": bytes(range(256)) * 10,
    "a TLS handshake": b"\x16\x03\x01\x00\xf4\x01\x00\x00\xf0\x03\x03" + b"a" * 240,
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    "a version to come": request(b"GET /healthz HTTP/9.9"),
    "half a version": request(b"GET /healthz HTTP/1."),
    "a version of two digits": request(b"GET /healthz HTTP/11.1"),
    "an unknown method": request(b"FOO /healthz HTTP/1.1"),
    "a method in lower case": request(b"get /healthz HTTP/1.1"),
    "a tab for a space": request(b"GET\t/healthz HTTP/1.1"),
    "a space at first": request(b" GET /healthz HTTP/1.1"),
    "no slash": request(b"GET healthz HTTP/1.1"),
    "a zero in the URL": request(b"GET /heal\0thz HTTP/1.1"),
    "bytes in the URL": request(b"GET /\xff\xfe HTTP/1.1"),
    "an open bracket for a host": request(b"GET http://[::1 HTTP/1.1"),
    "another host in the URL": request(b"GET http://evil.example/healthz HTTP/1.1"),
    "no host": request(b"GET /healthz HTTP/1.1", host=b""),
    "two hosts": request(b"GET /healthz HTTP/1.1", host=PLAIN_HOST + b"Host: evil.example\r\n"),
    "chunks in HTTP/1.0": request(
        b"POST %b HTTP/1.0" % CHAT,
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n",
        CHUNKS,
    ),
}


def part(name: bytes, content: bytes = b"tiny", more: bytes = b"") -> bytes:
    """Return one part of a form."""
    return b'--B\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (
        name,
        more,
        content,
    )


def form(*parts: bytes, end: bytes = b"--B--\r\n", kind: bytes = b"; boundary=B") -> bytes:
    """Return a request with a form."""
    kind = b"multipart/form-data" + kind
    return post(b"".join(parts) + end, kind, path=b"/v1/images/edits")


_NAMED = part(b"model")
_FORMS: Mapping[str, Case] = {
    "no boundary": (form(_NAMED, kind=b""), 400),
    "another boundary": (form(_NAMED, kind=b"; boundary=C"), 400),
    "a boundary of 200 letters": (form(_NAMED, kind=b"; boundary=" + b"B" * 200), 400),
    "an encoded boundary": (form(_NAMED, kind=b"; boundary*=utf-8''B"), 400),
    "no end": (form(_NAMED, end=b""), 400),
    "something before it": (form(b"preamble\r\n", _NAMED), 400),
    "something behind it": (form(_NAMED, end=b"--B--\r\n" + b"x" * 1_000), 400),
    "bare line feeds": (post(
        (_NAMED + b"--B--\r\n").replace(b"\r\n", b"\n"), b"multipart/form-data; boundary=B"
    ), 400),
    "10,000 parts": (form(part(b"x") * 10_000, _NAMED), 413),
    "a part's header of a megabyte": (form(b"--B\r\nX: " + b"a" * MEGABYTE + b"\r\n\r\n\r\n"), 400),
    "10,000 headers of a part": (form(b"--B\r\n" + b"X: a\r\n" * 10_000 + b"\r\n\r\n"), 400),
    "a model that is no UTF-8": (form(part(b"model", b"\xff")), 400),
    "no model": (form(part(b"prompt")), 400),
    "a part without a name": (form(b"--B\r\nX: y\r\n\r\n\r\n", _NAMED), 400),
    "the model twice": (form(_NAMED, part(b"model", b"other")), 400),
    "the model twice, once a file": (
        form(_NAMED, part(b"model", b"other", b'; filename="a"')), 400
    ),
    "the model twice, once long": (form(_NAMED, part(b"model", b"o" * 3_000)), 400),
    "the model twice, once capital": (form(_NAMED, part(b"Model", b"other")), 400),
    "a name that is encoded": (form(part(b"x", b"other", b"; name*=utf-8''model"), _NAMED), 400),
    "two names": (form(part(b"x", b"other", b'; name="model"'), _NAMED), 400),
    "a name with escapes": (form(part(b"mod\\el", b"other"), _NAMED), 400),
    "a name within a file's name": (
        form(part(b"x", b"other", b'; filename="a\\"; name=\\"model"'), _NAMED), 400
    ),
    "two dispositions": (
        form(b'--B\r\nContent-Disposition: form-data; name="x"\r\n' + _NAMED[5:]), 400
    ),
    "a model in base64": (
        form(part(b"model", b"dGlueQ==", b"\r\nContent-Transfer-Encoding: base64")), 400
    ),
    "a model in UTF-16": (
        form(part(b"model", b"tiny", b"\r\nContent-Type: text/plain; charset=utf-16")), 400
    ),
    "a charset for all fields": (form(part(b"_charset_", b"utf-7"), _NAMED), 400),
}  # fmt: skip


def _named(prefix: str, cases: Mapping[str, Case]) -> dict[str, Case]:
    return {f"{prefix}: {name}": case for name, case in cases.items()}


EVERYWHERE: Mapping[str, Case] = {
    **{f"JSON: {n}": (post(b'{"model":"tiny","x":' + v + b"}"), 400) for n, v in _VALUES.items()},
    **{f"body: {n}": (post(body), 400) for n, body in _BODIES.items()},
    **{f"type: {n}": (post(JSON, kind), 415) for n, kind in _UNREAD_TYPES.items()},
    "type: none": (post(b"model=tiny", b""), 415),
    **_named("packed", _ENCODINGS),
    **{f"length: {n}": (post(JSON, length=length), 400) for n, length in _LENGTHS.items()},
    "length: none": (request(b"POST %b HTTP/1.1" % CHAT, b"Content-Type: application/json\r\n"), 400),
    **{f"coding: {n}": (chunked(CHUNKS, b"Transfer-Encoding: %b\r\n" % c), 400) for n, c in _CODINGS.items()},
    **{f"chunk: {n}": (chunked(c), 400) for n, c in _CHUNKS.items()},
    **{f"header: {n}": (post(JSON, headers=h), 400) for n, h in _FIELDS.items()},
    "header: no text in a name": (post(JSON, headers=b"x-modelvine-node: \xc3(\r\n"), 404),
    "header: a miracle expected": (post(JSON, headers=b"Expect: miracles\r\n"), 417),
    "header: too long a body announced": (
        post(b"", length=b"1000000000000", headers=b"Expect: 100-continue\r\n"), 413
    ),
    **_named("size", _SIZES),
    **{f"garbage: {n}": (sent, 400) for n, sent in _GARBAGE.items()},
    "garbage: HTTP/0.9": (b"GET /healthz\r\n\r\n", 400),
    "garbage: HTTP/2.0 in words": (request(b"GET /healthz HTTP/2.0"), 400),
    **_named("form", _FORMS),
}  # fmt: skip
"""What every listener refuses."""


_NO_NAMES = {
    "another's": b"evil.example",
    "empty": b"",
    "with a user": b"me@localhost",
    "with a port of letters": b"localhost:abc",
    "with a path": b"localhost/x",
    "two": b"localhost, evil.example",
    "no text": b"\xff",
    "half an address": b"[::1",
}

PUBLIC: Mapping[str, Case] = {
    **{
        f"host: {n}": (request(b"GET /healthz HTTP/1.1", host=b"Host: %b\r\n" % h), 403)
        for n, h in _NO_NAMES.items()
    },
    **{
        f"URL: {u.decode()}": (request(b"GET %b HTTP/1.1" % u), 404)
        for u in (
            b"/%",
            b"/%zz",
            b"//healthz",
            b"/./healthz",
            b"/healthz;x=y",
            b"/v1/models/%ff",
            b"/v1/models/%00",
            b"/v1/models/%2e%2e%2f",
            b"/v1/models/a%0d%0aX:y",
            b"/[",
        )
    },
    "URL: a node that is none": (request(b"GET /api/v1/route?model=m&node=%ff%00 HTTP/1.1"), 400),
    # The target of CONNECT is no path.
    "method: CONNECT": (request(b"CONNECT localhost:80 HTTP/1.1"), 400),
    "method: OPTIONS of everything": (request(b"OPTIONS * HTTP/1.1"), 404),
    "method: TRACE": (request(b"TRACE /healthz HTTP/1.1"), 405),
}
"""What the listener for clients refuses in addition: hosts that are not its own, and paths."""


ACCEPTED: Mapping[str, bytes] = {
    "plain": post(JSON),
    "chunks": chunked(CHUNKS),
    "chunks with extensions": chunked(b"1e;a=b\r\n" + JSON + b"\r\n0\r\n\r\n"),
    "chunks with a trailer": chunked(CHUNKS[:-2] + b"X: y\r\n\r\n"),
    "one byte at a time": chunked(b"".join(b"1\r\n%c\r\n" % c for c in JSON) + b"0\r\n\r\n"),
    "HTTP/1.0": post(JSON).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "100 headers": post(JSON, headers=_many(100, 1)),
    "headers of 60 kB": post(JSON, headers=_many(30, 2_000)),
    "a URL of 8 kB": post(JSON, path=CHAT + b"?" + b"a" * 8_000),
    "200 levels": post(b'{"model":"tiny","x":' + b"[" * 200 + b"]" * 200 + b"}"),
    "a number of 300 digits": post(b'{"model":"tiny","x":' + b"9" * 300 + b"}"),
    "a model within": post(b'{"x":{"model":"a"},"model":"tiny","y":[{"model":"b"}]}'),
    "words about escapes": post(b'{"model":"tiny","x":"\\\\u006dodel ' + b"a" * MEGABYTE + b'"}'),
    "a continuation expected": post(JSON, headers=b"Expect: 100-continue\r\n"),
    "another protocol offered": post(
        JSON, headers=b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    ),
    "a socket offered": post(
        JSON,
        headers=b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    ),
    "headers that are no text": post(
        JSON, headers=b"traceparent: \xff\xfe\r\naccept: \xe9\r\nx-modelvine-session: \xed\xa0\x80\r\n"
    ),
    "a charset": post(JSON, b'Application/JSON; charset="UTF-8"'),
    "an empty parameter": post(JSON, b"application/json; charset=utf-8;"),
    "no type": post(JSON, b""),
    "gzip": _packed(b"gzip", gzip.compress(JSON)),
    "gzip in two members": _packed(b"GZip", gzip.compress(JSON[:9]) + gzip.compress(JSON[9:])),
    "bare deflate": _packed(b"deflate", zlib.compress(JSON)[2:-4]),
    "a form": form(_NAMED, part(b"image[]", b"\x89PNG", b'; filename="a.png"') * 3),
    "a form with an odd file name": form(
        _NAMED, part(b"image", b"\x89PNG", b'; filename="..\\\\..\\\\a \\"b\\".png"; filename*=utf-8\'\'a')
    ),
    "a form with a quoted boundary": form(_NAMED, kind=b'; boundary="B"'),
    "a form with a bare name": form(b"--B\r\nContent-Disposition: form-data; name=model\r\n\r\ntiny\r\n"),
    "empty lines first": b"\r\n\r\n" + post(JSON),
}  # fmt: skip
"""Odd but valid requests: they are answered with 200."""
