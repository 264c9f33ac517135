"""How does HTTPS travel over a mesh pipe? Through a socket pair: TLS at one end, a pump to the pipe at the other.

TLS runs from node to node, so what carries the pipe reads nothing. Buffers are those of the sockets and streams, some
hundred KiB a direction; a slow reader slows its writer. Closing the connection resets the pipe, and the other way round.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp.client_proto import ResponseHandler

from registry.errors import RegistryError
from registry.mesh import Pipe
from registry.mesh.crew import Crew
from router.connections import Asking, Connecting

_CHUNK_BYTES = 64 * 1024
_CONNECT_SECONDS = 5.0
_LINGER_SECONDS = 5.0
"""How long the asking end may take to read the last of an answer before the pipe is cut."""


class PipeConnector(Connecting):
    """Connections to one peer, each over a pipe of its own."""

    def __init__(
        self,
        open_pipe: Callable[[], Awaitable[Pipe]],
        *,
        context: ssl.SSLContext,
        crew: Crew,
        limit: int,
    ) -> None:
        super().__init__(limit=limit)
        self._open_pipe = open_pipe
        self._context = context
        self._crew = crew

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],  # noqa: ARG002 (nobody traces)
        timeout: aiohttp.ClientTimeout,
    ) -> ResponseHandler:
        if isinstance(req, Asking):
            req.fresh = True
        try:
            async with asyncio.timeout(timeout.sock_connect):
                return await self._over(await self._open_pipe())
        except TimeoutError:
            raise
        except (RegistryError, OSError) as error:
            reason = OSError(f"no pipe: {type(error).__name__}")
            raise aiohttp.ClientConnectorError(req.connection_key, reason) from error

    async def _over(self, pipe: Pipe) -> ResponseHandler:
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        theirs.settimeout(0)
        self._crew.spawn(_ask_over(pipe, theirs))
        try:
            _, protocol = await asyncio.get_running_loop().create_connection(
                self._factory, sock=ours, ssl=self._context, server_hostname=""
            )
        except BaseException:
            ours.close()
            raise
        return protocol


async def serve_pipe(pipe: Pipe, *, port: int) -> None:
    """Carry an incoming pipe to this node's own HTTPS listener on loopback until either side ends."""
    async with asyncio.timeout(_CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_CHUNK_BYTES)
    await _couple(pipe, reader, writer, pipe.finish)


async def _ask_over(pipe: Pipe, end: socket.socket) -> None:
    try:
        reader, writer = await asyncio.open_connection(sock=end, limit=_CHUNK_BYTES)
        await _couple(pipe, reader, writer, pipe.reset)
    finally:
        end.close()
        await pipe.reset()


async def _couple(
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
