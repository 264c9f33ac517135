"""Owner of a socket of this machine: its uid in the kernel's socket table (Linux, NETLINK_SOCK_DIAG).

A loopback connection may come from any process, including a proxy that forwards requests of strangers. Only the kernel knows
which user's process holds the other end of the connection.
"""

import socket
import struct
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Protocol

_SOCK_DIAG = 4  # linux/netlink.h: NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # linux/sock_diag.h: SOCK_DIAG_BY_FAMILY
_REQUEST = 1  # linux/netlink.h: NLM_F_REQUEST; without NLM_F_DUMP it is about one socket
UNASKED = -1
"""Stands for an owner that has not been looked up yet."""

_HELD_STATES = frozenset({1, 4, 5})
"""States of a socket whose process may still read: ESTABLISHED, and FIN_WAIT1 and 2 after `shutdown` (net/tcp_states.h)."""
_ANY_STATE = 2**32 - 1
_NO_COOKIE = 2**64 - 1
# linux/netlink.h, nlmsghdr: length, type, flags, sequence, port.
_HEADER = struct.Struct("=IHHII")
# linux/inet_diag.h, inet_diag_req_v2: family, protocol, extensions, padding, states; then inet_diag_sockid: ports and
# addresses in network order, interface, cookie.
_QUERY = struct.Struct("=BBBBI")
_ENDS = struct.Struct("!HH16s16s")
_REST = struct.Struct("=IQ")
# inet_diag_msg: family, state, inet_diag_sockid, some figures, uid, inode.
_ANSWER = struct.Struct("=BB2x36s24xII")

_SECONDS = 0.05
"""Time limit for the kernel's answer, which normally comes during the send."""

_MAX_ANSWER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a TCP connection; `scope` is the interface of a link-local address."""

    address: str
    port: int
    scope: int = 0


class SocketTable(Protocol):
    """Lookup of the owners of this machine's sockets."""

    def owner(self, here: Endpoint, there: Endpoint) -> int | None:
        """Return the uid that holds the socket at `here` connected to `there`; `None` where that cannot be known."""


class KernelTable:
    """The kernel's own table."""

    def owner(self, here: Endpoint, there: Endpoint) -> int | None:
        """Return the uid that holds the socket at `here` connected to `there`; `None` where that cannot be known."""
        query = encode_query(here, there)
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
                kernel.settimeout(_SECONDS)
                kernel.sendto(query, (0, 0))
                owner = decode_owner(kernel.recv(_MAX_ANSWER_BYTES), here, there)
        except (OSError, AttributeError):
            # The kernel refuses to tell this process, or is another kernel without such a table.
            return None
        return None if owner == _uid_of_strangers() else owner


def encode_query(here: Endpoint, there: Endpoint) -> bytes:
    """Return the query for one socket; IPv4-mapped IPv6 addresses count as IPv4 addresses."""
    ours, theirs = _plain(here.address), _plain(there.address)
    family = socket.AF_INET if ours.version == 4 else socket.AF_INET6
    body = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE)
    body += _ENDS.pack(here.port, there.port, ours.packed, theirs.packed)
    body += _REST.pack(here.scope, _NO_COOKIE)
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 1, 0) + body


def decode_owner(answer: bytes, here: Endpoint, there: Endpoint) -> int | None:
    """Return the uid in the answer; `None` if there is no such socket, or no process holds it any more."""
    if len(answer) < _HEADER.size + _ANSWER.size or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    family, state, ends, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    length = 4 if family == socket.AF_INET else 16
    ports, ours, theirs = ends[:4], ends[4 : 4 + length], ends[20 : 20 + length]
    asked = struct.pack("!HH", here.port, there.port), _plain(here.address), _plain(there.address)
    if (ports, _plain(ours), _plain(theirs)) != asked:
        return None
    # A socket that its process left behind is reported as root's, without an inode.
    return int(uid) if state in _HELD_STATES and inode != 0 else None


def _plain(address: str | bytes) -> IPv4Address | IPv6Address:
    read = ip_address(address.partition("%")[0] if isinstance(address, str) else address)
    mapped = read.ipv4_mapped if isinstance(read, IPv6Address) else None
    return mapped or read


@cache
def _uid_of_strangers() -> int | None:
    """Return the uid that stands for users outside this process's user namespace; `None` if the namespace maps all users."""
    if Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]:
        return None
    return int(Path("/proc/sys/kernel/overflowuid").read_text())
