"""Delay of packets in the lab. Few kernels here have netem, so a process of ours holds each packet for a while.

The bridge passes every IPv4 packet to a netfilter queue, and a waiting packet is released by its number when its time has
come. Between two hosts the order is kept in each direction. `python -m tests.lab.delay NAMESPACE MS JITTER` runs until its
standard input ends; the packets that it holds then go on at once.
"""

import heapq
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Self

MOST_HELD = 16_384
"""Packets; the kernel drops further ones while so many wait, as a full router does."""

_NETLINK_NETFILTER, _SOL_NETLINK, _NO_ENOBUFS = 12, 270, 5
_SO_RCVBUFFORCE, _BUFFER = 33, 8 << 20
_PACKET, _VERDICT, _CONFIGURE = 0x300, 0x301, 0x302
_REQUEST = 1
_CALL = "!BBH"
_BIND, _META_ONLY, _KEEP_WHOLE, _ACCEPT = 1, 1, 4, 1
_ID, _FROM, _TO = 1, 7, 8
_CLOSER = -10


class Delay:
    """The process that delays, on the host that all packets pass. Use it as a context manager."""

    def __init__(self, namespace: str, *, ms: float, jitter: float) -> None:
        self._arguments = (namespace, str(ms), str(jitter))

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.delay", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            assert process.stdin
            process.stdin.close()


class Queue:
    """Netfilter's queue 0: tells the number and direction of each packet that arrives, and releases packets."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        # A burst that does not fit is lost like any packet, and no reason to stop.
        self.socket.setsockopt(_SOL_NETLINK, _NO_ENOBUFS, 1)
        self.socket.bind((0, 0))
        self._tell(_CONFIGURE, _attribute(1, struct.pack("!BBH", _BIND, 0, 0)))
        self._tell(_CONFIGURE, _attribute(2, struct.pack("!IB", 0, _META_ONLY)))
        self._tell(_CONFIGURE, _attribute(3, struct.pack("!I", MOST_HELD)))
        length = struct.pack("!I", _KEEP_WHOLE)
        self._tell(_CONFIGURE, _attribute(4, length) + _attribute(5, length))
        self.socket.setblocking(False)

    def arrived(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield number and direction of the packets that came since the last call."""
        while True:
            try:
                data = self.socket.recv(65_536)
            except BlockingIOError:
                return
            offset = 0
            while offset + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, offset)
                if kind == _PACKET:
                    yield _packet(data, offset + 20, offset + length)
                offset += (length + 3) & ~3

    def let_go(self, number: int) -> None:
        """Send a packet on."""
        self._tell(_VERDICT, _attribute(2, struct.pack("!II", _ACCEPT, number)))

    def _tell(self, kind: int, attributes: bytes) -> None:
        body = struct.pack(_CALL, 0, 0, 0) + attributes
        self.socket.send(struct.pack("=IHHII", 16 + len(body), kind, _REQUEST, 0, 0) + body)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _packet(data: bytes, offset: int, end: int) -> tuple[int, tuple[int, int]]:
    values = {_ID: 0, _FROM: 0, _TO: 0}
    while offset + 8 <= end:
        length, kind = struct.unpack_from("=HH", data, offset)
        if kind & 0x7FFF in values:
            (values[kind & 0x7FFF],) = struct.unpack_from("!I", data, offset + 4)
        offset += (length + 3) & ~3
    return values[_ID], (values[_FROM], values[_TO])


def hold(queue: Queue, seconds: float, jitter: float) -> None:
    """Let each packet go after `seconds`, give or take `jitter`, until standard input ends."""
    waiting: list[tuple[float, int]] = []
    latest: dict[tuple[int, int], float] = {}
    watched = select.poll()
    watched.register(queue.socket, select.POLLIN)
    watched.register(sys.stdin, select.POLLHUP)
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) * 1000 if waiting else None
        events = watched.poll(patience)
        if any(which == sys.stdin.fileno() for which, _ in events):
            break
        now = time.monotonic()
        for number, direction in queue.arrived():
            due = max(now + seconds + random.uniform(-jitter, jitter), latest.get(direction, 0.0))
            latest[direction] = due
            heapq.heappush(waiting, (due, number))
        while waiting and waiting[0][0] <= time.monotonic():
            queue.let_go(heapq.heappop(waiting)[1])
    for _, number in sorted(waiting):
        queue.let_go(number)


if __name__ == "__main__":
    from tests.lab.net import enter

    _, where, milliseconds, more_or_less = sys.argv
    enter(where)
    os.nice(_CLOSER)
    bound = Queue()
    print("ready", flush=True)
    hold(bound, float(milliseconds) / 1000, float(more_or_less) / 1000)
