"""Connections that are dialled: the kernel keeps silent ones alive, and packets are small where that is asked for."""

import asyncio
import socket

import pytest

from router.http.dial import KEEP_ALIVE, SMALL_SEGMENT, tcp_dialer


class Kept(asyncio.Protocol):
    """Protocol that keeps its connection's socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.socket = transport.get_extra_info("socket")


@pytest.mark.parametrize("small", [False, True], ids=["usual packets", "small packets"])
async def test_a_connection_is_kept_alive_and_has_small_packets_if_that_is_asked_for(
    *, small: bool
) -> None:
    server = await asyncio.get_running_loop().create_server(Kept, "127.0.0.1", 0)
    async with server:
        dial = tcp_dialer("127.0.0.1", server.sockets[0].getsockname()[1])
        wire = await dial(Kept, small_packets=small)
        for name, value in KEEP_ALIVE.items():
            assert wire.socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
        assert wire.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert wire.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        segment = wire.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        assert (segment <= SMALL_SEGMENT) is small
        wire.transport.abort()
