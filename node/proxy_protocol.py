"""PROXY protocol, versions 1 and 2: the preamble in which a proxy names its client.

Follows HAProxy's specification (proxy-protocol.txt, 2.1 and 2.2) strictly: anything that is not exactly one of its forms is
refused, and no byte behind the preamble is read.
"""

import re
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, ip_address

MAX_BYTES = 2_048
"""The longest preamble that is read: two addresses, and what a proxy adds about TLS and itself."""

_LEAST = len(b"PROXY UNKNOWN\r\n")  # no form of either version is shorter
_MAX_V1 = 107  # 2.1
_V1 = re.compile(
    rb"PROXY (?:UNKNOWN(?: [ -~]*)?|TCP4 ([0-9.]{7,15}) ([0-9.]{7,15}) (\d{1,5}) (\d{1,5})"
    rb"|TCP6 ([0-9A-Fa-f]*:[0-9A-Fa-f:.]{1,44}) ([0-9A-Fa-f]*:[0-9A-Fa-f:.]{1,44}) (\d{1,5}) (\d{1,5}))\r\n"
)
_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_HEAD = len(_SIGNATURE) + 4
_LOCAL, _PROXY = 0x20, 0x21
_UNSPECIFIED = 0x00
_KINDS = {0x11: (IPv4Address, 4), 0x21: (IPv6Address, 16)}
"""Address families over TCP, with the lengths of their addresses in bytes."""

Receive = Callable[[int], Awaitable[bytes]]
"""Returns at most so many bytes, none at the end of the stream."""


class NoPreamble(ValueError):
    """A connection does not begin with a valid preamble."""


async def read_client_address(receive: Receive) -> str:
    """Read a preamble, and no byte more; return the client's address, empty if the proxy speaks for itself.

    Raise `NoPreamble`.
    """
    begun = await _exactly(receive, _LEAST)
    if begun.startswith(_SIGNATURE):
        head = begun + await _exactly(receive, _HEAD - _LEAST)
        length = int.from_bytes(head[-2:])
        if length > MAX_BYTES - _HEAD:
            raise NoPreamble("the preamble is too long")
        return _parse_v2(head, await _exactly(receive, length))
    if not begun.startswith(b"PROXY "):
        raise NoPreamble("there is no preamble")
    line = begun
    while not line.endswith(b"\r\n"):
        if len(line) >= _MAX_V1:
            raise NoPreamble("the preamble is too long")
        # Its length is unknown, and the bytes behind it are not part of it.
        line += await _exactly(receive, 1)
    return _parse_v1(line)


def _parse_v1(line: bytes) -> str:
    found = _V1.fullmatch(line)
    if found is None:
        raise NoPreamble("the preamble does not have the form of version 1")
    places = next((p for p in (found.group(1, 2, 3, 4), found.group(5, 6, 7, 8)) if p[0]), None)
    if places is None:
        return ""
    try:
        caller, _ = (ip_address(place.decode()) for place in places[:2])
    except ValueError as error:
        raise NoPreamble("the preamble holds no address") from error
    if max(map(int, places[2:])) > 65_535:
        raise NoPreamble("the preamble holds no port")
    return str(caller)


def _parse_v2(head: bytes, rest: bytes) -> str:
    command, family = head[12], head[13]
    if command == _LOCAL or (command == _PROXY and family == _UNSPECIFIED):
        return ""
    kind, size = _KINDS.get(family, (None, 0))
    if command != _PROXY or kind is None or len(rest) < 2 * size + 4:
        raise NoPreamble("the preamble does not have the form of version 2")
    return str(kind(rest[:size]))


async def _exactly(receive: Receive, count: int) -> bytes:
    came = b""
    while len(came) < count:
        piece = await receive(count - len(came))
        if not piece:
            raise NoPreamble("the connection ended within the preamble")
        came += piece
    return came
