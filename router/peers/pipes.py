"""HTTPS over a mesh pipe: through a socket pair: TLS at one end, a pump to the pipe at the other.

TLS runs from node to node, so what carries the pipe reads nothing. Buffers are those of the sockets and streams, some
hundred KiB a direction; a slow reader slows its writer. Closing the connection resets the pipe, and the other way round.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from registry.errors import RegistryError
from registry.mesh import Pipe
from registry.mesh.libp2p.task_group import Crew
from router.http.connection import Connection
from router.http.pool import Dial

_CHUNK_BYTES = 64 * 1024
_CONNECT_SECONDS = 5.0
_LINGER_SECONDS = 5.0
"""How long the asking end may take to read the last of an answer before the pipe is cut."""


def over_pipes(
    open_pipe: Callable[[], Awaitable[Pipe]], *, context: ssl.SSLContext, crew: Crew
) -> Dial:
    """Return how to connect to one peer over pipes, a pipe for each connection."""

    async def dial(make: Callable[[], Connection]) -> Connection:
        try:
            pipe = await open_pipe()
        except RegistryError as error:
            raise OSError(f"no pipe: {type(error).__name__}") from error
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        theirs.settimeout(0)
        crew.spawn(_ask_over(pipe, theirs))
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                make, sock=ours, ssl=context, server_hostname=""
            )
        except BaseException:
            ours.close()
            raise
        return connection

    return dial


async def serve_pipe(pipe: Pipe, *, port: int, host: str = "127.0.0.1") -> None:
    """Carry an incoming pipe to this node's own HTTPS listener until either side ends."""
    async with asyncio.timeout(_CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(host, port, limit=_CHUNK_BYTES)
    await couple(pipe, reader, writer, pipe.finish)


async def _ask_over(pipe: Pipe, end: socket.socket) -> None:
    try:
        reader, writer = await asyncio.open_connection(sock=end, limit=_CHUNK_BYTES)
        await couple(pipe, reader, writer, pipe.reset)
    finally:
        end.close()
        await pipe.reset()


async def couple(
    pipe: Pipe,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    at_local_end: Callable[[], Awaitable[None]],
) -> None:
    """Carry bytes both ways. Whichever direction ends lets the other one end: a closed writer ends its reader."""
    try:
        async with asyncio.TaskGroup() as directions:
            inward = directions.create_task(_inward(pipe, writer))
            await _outward(reader, writer, pipe)
            await at_local_end()
            await asyncio.wait({inward}, timeout=_LINGER_SECONDS)
            inward.cancel()
    finally:
        writer.transport.abort()


async def _inward(pipe: Pipe, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await pipe.read():
            writer.write(chunk)
            await writer.drain()
        writer.close()
    except (RegistryError, OSError):
        writer.transport.abort()


async def _outward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipe: Pipe) -> None:
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            await pipe.write(chunk)
    except (RegistryError, OSError):
        writer.transport.abort()
