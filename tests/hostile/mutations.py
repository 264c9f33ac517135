"""Generator of bad requests: real ones to every path, broken in one to three ways; a seed gives the same sequence."""

import gzip
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import orjson

from tests.hostile.refused import EVERYWHERE, PUBLIC
from tests.hostile.wire import PLAIN_HOST

Route = tuple[str, str]
"""Method and path; a path's parameters stand in braces."""

CHANGES_STANDING = ("/api/v1/drain", "/api/v1/undrain")
"""Paths whose well-formed requests would stop the service for other requests: they are sent malformed only."""

_FORMS = ("images/edits", "image/edit", "audio/transcriptions", "audio/translations")
_BY_QUERY = ("model", "node", "node_id", "project", "cid", "kind", "digest", "number", "x")

_NASTY_VALUES: Sequence[bytes] = (
    b"null", b"true", b"-1", b"0", b"1e308", b"1e309", b"-0.0", b"NaN", b"9" * 400, b"9007199254740993",
    b"18446744073709551616", b'""', b'"\\u0000"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff"', b'"\xed\xa0\x80"',
    b'"' + b"a" * 70_000 + b'"', b'"../../etc/passwd"', b'"%s%n{0}{}"', b'"${jndi:ldap://x}"',
    b'"\\u202e\\u2028\\r\\n"', b"[]", b"{}", b"[null]", b'[{"model":1}]', b'{"model":"tiny"}',
    b"[" * 260 + b"]" * 260, b"[" * 5_000, b'{"":{"":{}}}', b'"http://127.0.0.1:1"',
    b'"http://169.254.169.254/latest"', b'"file:///etc/passwd"', b'"http://[::1"', b'"http://localhost:99999/"',
    b'"/ip4/127.0.0.1/tcp/1"', b'"12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"',
)  # fmt: skip
_NASTY_TEXTS: Sequence[bytes] = (
    b"", b"%", b"%00", b"%ff", b"%0d%0a", b"%u0041", b"a" * 3_000, b"-1", b"99999999999999999999", b"1e9",
    b"..%2f..%2f", b"%f0%9f%92%a9", b"+", b";", b"&&==", b"12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB",
    b"12D3Koo", b"[]", b"{}", b"'", b"%22", b"tiny", b"fuzzed%2Ftiny", b"%e2%80%ae",
)  # fmt: skip
_NASTY_HEADERS: Sequence[bytes] = (
    b"Content-Encoding: gzip", b"Content-Encoding: br", b"Content-Type: text/plain",
    b"Content-Type: multipart/form-data", b"Expect: 100-continue", b"Expect: x",
    b"Upgrade: websocket\r\nConnection: upgrade", b"Connection: close", b"Connection: keep-alive, x",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Content-Length: 0", b"Content-Length: 5",
    b"Content-Length: -5", b"Content-Length: 99999999999999999999", b"Authorization: Bearer \xff",
    b"Authorization: Basic \0", b"Cookie: " + b"a=b; " * 1_000, b"Origin: null", b"Origin: http://[", b"Origin: \xff",
    b"Host: evil.example", b"X-Forwarded-For: 127.0.0.1", b"Forwarded: for=\xff", b"Range: bytes=0-",
    b"If-None-Match: *", b"Accept: \xff/\xfe", b"Accept-Encoding: gzip;q=x", b"traceparent: 00-\xff",
    b"tracestate: " + b"a=b," * 500, b"x-request-id: \r", b"x-request-id: a\tb", b"x-modelvine-hop: x",
    b"x-modelvine-node: \xc3\x28", b"x-modelvine-project: " + b"p" * 300, b"x-modelvine-cid: \x80",
    b"x-modelvine-session: \xed\xa0\x80", b"x-modelvine-wait: 1", b"x-modelvine-load: in_flight=-1", b": x",
    b"X Y: z", b"X:\x00", b" folded", b"\xff: \xff", b"X: " + b"y" * 17_000,
    b"\r\n".join(b"X-%d: y" % index for index in range(130)), b"Date: x", b"TE: trailers", b"Trailer: Content-Length",
    b"Content-Range: bytes 0-1/1",
)  # fmt: skip
_BYTES: Sequence[bytes] = (
    b"\0", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b"\x0b", b"\x7f", b"\xff", b"\xc0\xaf", b"%", b":", b";",
    b",", b'"', b"\\", b"{", b"[", b"0\r\n\r\n", b"\xe2\x80\xa8",
)  # fmt: skip
_METHODS = (
    b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"PROPFIND", b"FOO",
    b"get", b"PRI",
)  # fmt: skip
_VERSIONS = (
    b"HTTP/1.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/1.1 ", b"http/1.1", b"HTTP/1.1\0", b"", b"RTSP/1.0",
    b"HTTP/1.10",
)  # fmt: skip


def mutants(routes: Sequence[Route], seed: int) -> Iterator[bytes]:
    """Yield bad requests without end: mostly mutants, occasionally one from the corpus of refused requests."""
    rng = random.Random(seed)
    corpus = [sent for sent, _ in (*EVERYWHERE.values(), *PUBLIC.values()) if len(sent) < 200_000]
    while True:
        for method, path in rng.sample(routes, len(routes)):
            if rng.random() < 0.05:
                yield rng.choice(corpus)
                continue
            sent = _framed(*_wrong_body(method, path, rng), rng)
            if path in CHANGES_STANDING:
                sent = b"X" + sent
            for _ in range(rng.choice((0, 1, 1, 2))):
                sent = rng.choice(_SPOILERS)(sent, rng)
            yield sent


def _wrong_body(method: str, path: str, rng: random.Random) -> tuple[bytes, bytes, bytes, bytes]:
    """Return method, path with a query, content type and body; one of them is wrong most of the time."""
    filled = path.replace("{model}", "tiny").encode()
    if rng.random() < 0.3:
        pairs = [rng.choice(_BY_QUERY).encode() + b"=" + rng.choice(_NASTY_TEXTS) for _ in range(2)]
        filled += b"?" + b"&".join(pairs)
    if "{" in path and rng.random() < 0.5:
        filled = path.partition("{")[0].encode() + rng.choice(_NASTY_TEXTS)
    kind, body = _body(path)
    if rng.random() < 0.6:
        body = rng.choice(_BODY_SPOILERS)(body, rng)
    name = rng.choice(_METHODS) if rng.random() < 0.15 else method.encode()
    return name, filled, kind, body


def _body(path: str) -> tuple[bytes, bytes]:
    if path.endswith(_FORMS):
        fields = (b'name="model"', b"tiny"), (b'name="image"; filename="a.png"', b"\x89PNG\r\n\x1a\n" * 20)  # fmt: skip
        written = b"".join(
            b"--B\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % field for field in fields
        )
        return b"multipart/form-data; boundary=B", written + b"--B--\r\n"
    return b"application/json", orjson.dumps(_said(path))


def _said(path: str) -> Mapping[str, object]:
    match path.rpartition("/")[2]:
        case "completions" | "completion" | "route":
            return {
                "model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "stream": path.startswith("/v1/c"),
                "max_tokens": 5,
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"model": {"type": "string"}}}}],
            }  # fmt: skip
        case "register" | "unregister":
            row = {"model": "fuzzed", "api": "http://127.0.0.1:9/v1", "type": 0, "cid": "c", "capacity": 2}  # fmt: skip
            return {"project": "fuzzed", "models": [row], **row}
        case "connect" | "disconnect" | "add" | "rm" | "peer":
            return {
                "node_addr": "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB",
                "node_id": "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB",
            }  # fmt: skip
        case _:
            return {"model": "tiny", "input": "Hello!", "prompt": "a vine", "query": "q", "documents": ["a", "b"]}  # fmt: skip


def _framed(method: bytes, path: bytes, kind: bytes, body: bytes, rng: random.Random) -> bytes:
    headers = [b"Content-Type: " + kind]
    match rng.random():
        case draw if draw < 0.1:
            headers.append(b"Content-Encoding: gzip")
            body = _spoilt(gzip.compress(body), rng)
        case draw if draw < 0.15:
            headers.append(b"Content-Encoding: deflate")
            body = _spoilt(zlib.compress(body), rng)
    if rng.random() < 0.2:
        headers.append(b"Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:7], body[7:]) if p) + b"0\r\n\r\n"  # fmt: skip
    else:
        headers.append(b"Content-Length: %d" % len(body))
    version = rng.choice(_VERSIONS) if rng.random() < 0.05 else b"HTTP/1.1"
    if rng.random() < 0.4:
        headers.insert(rng.randrange(len(headers) + 1), rng.choice(_NASTY_HEADERS))
    head = b"%b %b %b\r\n" % (method, path, version) + PLAIN_HOST
    return head + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


def _spoilt(sent: bytes, rng: random.Random) -> bytes:
    """Flip up to three bits, or none."""
    spoilt = bytearray(sent)
    for _ in range(rng.choice((0, 1, 3))):
        if spoilt:
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def _inserted(sent: bytes, rng: random.Random) -> bytes:
    offset = rng.randrange(len(sent) + 1)
    return sent[:offset] + rng.choice(_BYTES) * rng.choice((1, 1, 2, 100)) + sent[offset:]


def _removed(sent: bytes, rng: random.Random) -> bytes:
    offset = rng.randrange(len(sent) + 1)
    return sent[:offset] + sent[offset + rng.choice((1, 2, 10, 100)) :]


def _repeated(sent: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(sent) + 1)
    return sent[:start] + sent[start : start + rng.choice((5, 50, 500))] * 2 + sent[start:]


def _broken_off(sent: bytes, rng: random.Random) -> bytes:
    return sent[: rng.randrange(len(sent) + 1)]


def _value_replaced(body: bytes, rng: random.Random) -> bytes:
    """Replace a JSON value by a nasty one. Insert bytes into a body that holds no JSON value."""
    starts = [offset + 1 for offset, byte in enumerate(body[:2_000]) if byte in b":[,"]
    if not starts:
        return _inserted(body, rng)
    offset = rng.choice(starts)
    end = next((i for i in range(offset, len(body)) if body[i] in b",}]"), len(body))
    return body[:offset] + rng.choice(_NASTY_VALUES) + body[end:]


def _key_doubled(body: bytes, rng: random.Random) -> bytes:
    if body[:1] != b"{":
        return _repeated(body, rng)
    key = rng.choice((b'"model"', b'"Model"', b'"\\u006dodel"', b'"project"', b'"stream"', b'"node_id"'))  # fmt: skip
    return b"{" + key + b":" + rng.choice(_NASTY_VALUES) + b"," + body[1:]


def _of_another_kind(_: bytes, rng: random.Random) -> bytes:
    return rng.choice((*_NASTY_VALUES, b"", b"model=tiny", b"\x00" * 500, b"--B--\r\n"))


_Spoiler = Callable[[bytes, random.Random], bytes]
_SPOILERS: Sequence[_Spoiler] = (_spoilt, _spoilt, _inserted, _removed, _repeated, _broken_off)
_BODY_SPOILERS: Sequence[_Spoiler] = (
    _value_replaced, _value_replaced, _value_replaced, _key_doubled, _of_another_kind, _spoilt, _inserted, _removed,
    _broken_off,
)  # fmt: skip
