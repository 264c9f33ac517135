"""Owner of a socket of this machine: its uid in the kernel's socket table (Linux, NETLINK_SOCK_DIAG).

A loopback connection may come from any process, including a proxy that forwards requests of strangers. Only the kernel knows
which user's process holds the other end of the connection.
"""

import socket
import struct
from dataclasses import dataclass
from functools import cache, lru_cache
from ipaddress import IPv6Address, ip_address
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
_IPV4, _IPV6 = int(socket.AF_INET), int(socket.AF_INET6)
# linux/netlink.h, nlmsghdr: length, type, flags, sequence, port; then linux/inet_diag.h, inet_diag_req_v2: family, protocol,
# extensions, padding, states; then inet_diag_sockid: ports and addresses in network order, interface, cookie.
_QUERY = struct.Struct("=IHHIIBBBBI")
_ENDS = struct.Struct("!HH16s16s")
_REST = struct.Struct("=IQ")
_QUERY_BYTES = _QUERY.size + _ENDS.size + _REST.size
# nlmsghdr, then inet_diag_msg: family, state, timer, retransmissions, inet_diag_sockid, some figures, uid, inode.
_ANSWER = struct.Struct("=4xH10xBB2x4s16s16s24xII")

_MICROSECONDS = 50_000
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
    """The kernel's own table, for one thread. Its socket stays open, since every connection from this machine is looked up."""

    def __init__(self) -> None:
        self._kernel: socket.socket | None = None

    def __del__(self) -> None:
        self._close()

    def owner(self, here: Endpoint, there: Endpoint) -> int | None:
        """Return the uid that holds the socket at `here` connected to `there`; `None` where that cannot be known."""
        query = encode_query(here, there)
        try:
            owner = decode_owner(self._ask(query), here, there)
        except (OSError, AttributeError):
            # The kernel refuses to tell this process, or is another kernel without such a table. A late answer is dropped.
            self._close()
            return None
        return None if owner == _uid_of_strangers() else owner

    def _ask(self, query: bytes) -> bytes:
        if self._kernel is None:
            self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG)
            # With a timeout of Python's, sending and receiving would take a system call more each.
            limit = struct.pack("@ll", 0, _MICROSECONDS)
            self._kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._kernel.sendto(query, (0, 0))
        return self._kernel.recv(_MAX_ANSWER_BYTES)

    def _close(self) -> None:
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None


def encode_query(here: Endpoint, there: Endpoint) -> bytes:
    """Return the query for one socket; IPv4-mapped IPv6 addresses count as IPv4 addresses."""
    ours, theirs = _packed(here.address), _packed(there.address)
    family = _IPV4 if len(ours) == 4 else _IPV6
    about = _QUERY_BYTES, _BY_FAMILY, _REQUEST, 1, 0, family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE
    ends = _ENDS.pack(here.port, there.port, ours, theirs)
    return _QUERY.pack(*about) + ends + _REST.pack(here.scope, _NO_COOKIE)


def decode_owner(answer: bytes, here: Endpoint, there: Endpoint) -> int | None:
    """Return the uid in the answer; `None` if there is no such socket, or no process holds it any more."""
    if len(answer) < _ANSWER.size:
        return None
    kind, family, state, ports, ours, theirs, uid, inode = _ANSWER.unpack_from(answer)
    length = 4 if family == _IPV4 else 16
    found = ports, _packed(ours[:length]), _packed(theirs[:length])
    expected = (
        struct.pack("!HH", here.port, there.port),
        _packed(here.address),
        _packed(there.address),
    )
    if kind != _BY_FAMILY or found != expected:
        return None
    # A socket that its process left behind is reported as root's, without an inode.
    return int(uid) if state in _HELD_STATES and inode != 0 else None


@lru_cache(maxsize=4096)
def _packed(address: str | bytes) -> bytes:
    """Return the bytes of an address: four for an IPv4 address, also for one that is mapped to IPv6, else sixteen."""
    read = ip_address(address.partition("%")[0] if isinstance(address, str) else address)
    mapped = read.ipv4_mapped if isinstance(read, IPv6Address) else None
    return (mapped or read).packed


@cache
def _uid_of_strangers() -> int | None:
    """Return the uid that stands for users outside this process's user namespace; `None` if the namespace maps all users."""
    if Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]:
        return None
    return int(Path("/proc/sys/kernel/overflowuid").read_text())
