"""Wires: in-memory TCP between the processes of a simulation, as event loops provide it. TLS and HTTP over it are the real ones.

Bytes arrive in order, delayed, or only after a cut is healed. A reader that does not read exerts backpressure on its writer. A
killed process resets its connections, and a machine without power sends nothing.
"""

import asyncio
import random
import socket
from asyncio import sslproto
from collections import Counter, deque
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any

from bench.seeds.cables import Cables
from bench.seeds.loop import PROCESS, SeedProcess, VirtualLoop

WINDOW = 256 * 1024
"""Bytes that the two kernels hold of one direction; further ones wait at the writer."""

AGAIN, LONGEST = 0.2, 3.0
"""Seconds until a retransmission, doubled each time up to the longest."""

HOSTS = "10.0.0."
_FIN, _RESET = b"", None
_SYN_AGAIN = 1.0


def address_of(host: int) -> str:
    """Return the IP address of a machine."""
    return f"{HOSTS}{host + 1}"


def _host_of(address: str, here: int) -> int:
    return int(address.removeprefix(HOSTS)) - 1 if address.startswith(HOSTS) else here


class SeedPort:
    """Listening port of a process, in place of a socket."""

    def __init__(self, process: SeedProcess, number: int) -> None:
        self.process = process
        self.number = number
        self.make: Callable[[], asyncio.BaseProtocol] | None = None
        self.tls: SSLContext | None = None


@dataclass(frozen=True, slots=True)
class _Closing:
    """Result of `create_server`, as far as a node needs it."""

    wires: "Wires"
    port: SeedPort

    def close(self) -> None:
        self.wires.shut(self.port)


class WireEnd(asyncio.Transport):
    """One end of a connection."""

    _start_tls_compatible = True

    def __init__(self, wires: "Wires", process: SeedProcess, far: int, port: int) -> None:
        super().__init__({"peername": (address_of(far), port), "sockname": ("", 0)})
        self._wires = wires
        self._loop = wires
        self.process = process
        self._rng = wires.chance_of(process)
        self._context = copy_context()
        self._context.run(PROCESS.set, process)
        self._protocol: Any = None
        self._there: WireEnd | None = None
        self._outward: deque[bytes | None] = deque()
        self._inward: deque[bytes] = deque()
        self._unread = 0
        self._sent = 0
        self._retry = AGAIN
        self._carried: asyncio.TimerHandle | None = None
        self._high = 64 * 1024
        self._paused = False
        self._full = False
        self._closing = False
        self.lost = False

    def join(self, there: "WireEnd") -> None:
        """Connect to the other end."""
        self._there = there

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol, and tell it that it is connected."""
        self._protocol = protocol
        protocol.connection_made(self)

    # Called by protocols.

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Switch to another protocol."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol  # type: ignore[no-any-return]

    def is_closing(self) -> bool:
        """Return whether it is closed or closing."""
        return self._closing

    def is_reading(self) -> bool:
        """Return whether it is reading."""
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        """Stop reading."""
        self._paused = True

    def resume_reading(self) -> None:
        """Continue reading."""
        if self._paused and not self._closing:
            self._paused = False
            self._loop.call_soon(self._read, context=self._context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the high-water mark, above which the protocol must pause writing."""
        del low
        self._high = 64 * 1024 if high is None else high

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that neither kernel has taken."""
        return max(0, self._sent - WINDOW)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if self._closing or not data:
            return
        piece = bytes(data)
        self._sent += len(piece)
        self._send(piece)
        if not self._full and self.get_write_buffer_size() > self._high:
            self._full = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        """Return that it can be half-closed."""
        return True

    def write_eof(self) -> None:
        """Half-close: end this direction."""
        self._send(_FIN)

    def close(self) -> None:
        """Close it, once everything is sent."""
        if not self._closing:
            self._closing = True
            self._send(_FIN)
            self._loop.call_soon(self._end, None, context=self._context)

    def abort(self) -> None:
        """Close it at once."""
        self._force_close(None)

    def _force_close(self, error: BaseException | None) -> None:
        if not self.lost:
            self._closing = True
            self._outward.clear()
            self._send(_RESET)
            self._loop.call_soon(self._end, error, context=self._context)

    # Transport of bytes.

    def _send(self, piece: bytes | None) -> None:
        if self.process.gone and piece is not _RESET:
            return
        self._outward.append(piece)
        if self._carried is None:
            self._plan(0.0)

    def _plan(self, wait: float) -> None:
        there = self._there
        if there is not None:
            wait += self._wires.cables.trip(self.process.host, there.process.host, self._rng)
            # Bytes in transit arrive whether or not their sender still runs.
            self._carried = self._loop.call_later(wait, self._carry, context=self._wires.nobody)

    def _carry(self) -> None:
        self._carried = None
        there, cables = self._there, self._wires.cables
        if there is None or not self._outward:
            return
        here, far = self.process.host, there.process.host
        if not cables.passes(here, far) or cables.loses(here, far, self._rng):
            self._plan(self._retry)
            self._retry = min(2 * self._retry, LONGEST)
            return
        self._retry = AGAIN
        pieces, self._outward = self._outward, deque()
        for piece in pieces:
            there.arrive(piece)

    def arrive(self, piece: bytes | None) -> None:
        """Take an arrived piece; an end that is gone sends a reset back."""
        if self.lost or self.process.gone:
            if piece and self._there is not None and not self._there.lost:
                self._outward.clear()
                self._send(_RESET)
            return
        if piece is _RESET:
            self._closing = True
            error = ConnectionResetError("the other end is gone")
            self._loop.call_soon(self._end, error, context=self._context)
            return
        self._inward.append(piece)
        if not self._paused:
            self._loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        while self._inward and not self._paused and not self._closing:
            piece = self._inward.popleft()
            if piece == _FIN:
                if not self._protocol.eof_received():
                    self.close()
                return
            if self._there is not None:
                self._there.taken(len(piece))
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                self._fill(self._protocol, piece)
            else:
                self._protocol.data_received(piece)

    def _fill(self, protocol: asyncio.BufferedProtocol, piece: bytes) -> None:
        while piece and not self._closing:
            buffer = protocol.get_buffer(len(piece))
            count = min(len(buffer), len(piece))
            buffer[:count] = piece[:count]  # type: ignore[index]
            piece = piece[count:]
            protocol.buffer_updated(count)

    def taken(self, count: int) -> None:
        """Note that the other end has read so many of the sent bytes."""
        self._sent -= count
        if self._full and self.get_write_buffer_size() <= self._high // 4 and not self.lost:
            self._full = False
            self._loop.call_soon(self._protocol.resume_writing, context=self._context)

    def _end(self, error: BaseException | None) -> None:
        if not self.lost:
            self.lost = True
            self._wires.forget(self)
            self._protocol.connection_lost(error)

    def cut(self) -> None:
        """End the connection with its process, as the kernel resets it."""
        if not self.lost:
            self.lost = self._closing = True
            self._wires.forget(self)
            self._outward.clear()
            self._send(_RESET)


class Wires(VirtualLoop):
    """Event loop with all connections and listeners of all machines."""

    def __init__(self, cables: Cables) -> None:
        super().__init__()
        self.cables = cables
        self.nobody = copy_context()
        self.nobody.run(PROCESS.set, None)
        self._ports: dict[tuple[int, int], SeedPort] = {}
        self._open: dict[WireEnd, None] = {}
        self._dials: Counter[str] = Counter()
        self._named: dict[socket.socket, tuple[str, int]] = {}
        self._made = 0

    def chance_of(self, process: SeedProcess) -> random.Random:
        """Return the random generator for one end of the newest connection."""
        return self.cables.chance(self._made, process.name)

    def shut(self, port: SeedPort) -> None:
        """Close a listener."""
        address = port.process.host, port.number
        if self._ports.get(address) is port:
            del self._ports[address]

    def forget(self, wire: WireEnd) -> None:
        """Remove a closed end."""
        self._open.pop(wire, None)

    def open_of(self, process: SeedProcess) -> int:
        """Return the number of open connections of a process."""
        return sum(wire.process is process for wire in self._open)

    def hang_up(self, host: int) -> None:
        """Abort the connections of a machine's callers, as it has lost its power."""
        for wire in [
            w for w in self._open if w.process.host == host and w.process.name == f"c{host}"
        ]:
            wire.abort()

    def end(self, process: SeedProcess) -> None:
        """Close the listeners and connections of a killed process."""
        for port in [p for p in self._ports.values() if p.process is process]:
            self.shut(port)
        for wire in [w for w in self._open if w.process is process]:
            wire.cut()

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        *,
        sock: SeedPort,
        ssl: SSLContext | None = None,
        **_: Any,
    ) -> _Closing:
        """Listen on a port."""
        sock.make, sock.tls = protocol_factory, ssl
        self._ports[sock.process.host, sock.number] = sock
        return _Closing(self, sock)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str = "",
        port: int = 0,
        *,
        sock: socket.socket | None = None,
        ssl: SSLContext | None = None,
        server_hostname: str | None = None,
        **_: Any,
    ) -> tuple[asyncio.Transport, Any]:
        """Connect to a port of a machine, or to the one that `sock_connect` was given; raise `OSError`."""
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("only processes connect")
        if sock is not None:
            host, port = self._named.pop(sock)
            sock.close()
        listens = await self._found(process, _host_of(host, process.host), port)
        self._made += 1
        near = WireEnd(self, process, listens.process.host, port)
        far = WireEnd(self, listens.process, process.host, 40_000)
        near.join(far)
        far.join(near)
        self._open[near] = self._open[far] = None
        far._context.run(self._accept, listens, far)  # noqa: SLF001 (of this module)
        protocol = protocol_factory()
        if ssl is None:
            near.begin(protocol)
            return near, protocol
        waiter = self.create_future()
        secured = sslproto.SSLProtocol(
            self, protocol, ssl, waiter, server_side=False, server_hostname=server_hostname
        )
        near.begin(secured)
        try:
            await waiter
        except BaseException:
            near.abort()
            raise
        return secured._app_transport, protocol  # noqa: SLF001 (as the base class does)

    async def sock_connect(self, sock: socket.socket, address: tuple[str, int]) -> None:  # type: ignore[override]
        """Keep the address for `create_connection`: packets have no size here."""
        self._named[sock] = address

    async def _found(self, process: SeedProcess, host: int, number: int) -> SeedPort:
        """Dial a port, and retry while nothing comes back; raise `OSError` for a refusal."""
        here, cables, wait = process.host, self.cables, _SYN_AGAIN
        self._dials[process.name] += 1
        rng = cables.chance(process.name, self._dials[process.name])
        while True:
            arrives = cables.passes(here, host) and not cables.loses(here, host, rng)
            returns = cables.passes(host, here) and not cables.loses(host, here, rng)
            if process.gone or cables.down[here]:
                raise ConnectionAbortedError("this process is gone, or its machine")
            if arrives and returns:
                await asyncio.sleep(cables.trip(here, host, rng) + cables.trip(host, here, rng))
                listens = self._ports.get((host, number))
                if listens is None or listens.make is None:
                    raise ConnectionRefusedError(111, "Connection refused")
                return listens
            await asyncio.sleep(wait)
            wait *= 2

    def _accept(self, listens: SeedPort, wire: WireEnd) -> None:
        if listens.make is None:
            return
        protocol: asyncio.BaseProtocol = listens.make()
        if listens.tls is not None:
            protocol = sslproto.SSLProtocol(self, protocol, listens.tls, None, server_side=True)
        # The kernel accepts connections for a frozen process.
        self.call_soon(wire.begin, protocol, context=wire._context)  # noqa: SLF001 (of this module)
