"""Stub worker whose connections are handled by the test, in ways that no HTTP server would."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve connections on a free port of loopback, and yield the URL; at the end, handlers have one second to finish."""
    serving: set[asyncio.Task[None]] = set()

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(cast("asyncio.Task[None]", asyncio.current_task()))
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(tracked, "127.0.0.1", 0, ssl=context)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        if serving:
            _, late = await asyncio.wait(serving, timeout=1)
            for task in late:
                task.cancel()
            await asyncio.wait(serving)
        await server.wait_closed()


async def take(reader: asyncio.StreamReader) -> None:
    """Read one request."""
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))


def endless(begin: bytes, again: bytes = b"", *, at_most: int = 1 << 40) -> Serve:
    """Return a server that sends `begin`, and then `again` repeatedly as long as it is read, up to `at_most` bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await take(reader)
            writer.write(begin)
            left = at_most if again else 0
            while left > 0 and not writer.is_closing():
                writer.write(again)
                left -= len(again)
                await writer.drain()
                # `drain` alone never lets other tasks run, nor notices the end.
                await asyncio.sleep(0)
        writer.close()

    return serve
