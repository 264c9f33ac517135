"""Laws of both ends of a pipe; requests over pipes are tested with the contract of dialects."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from warnings import catch_warnings

import pytest

from registry.errors import PeerUnreachable
from registry.mesh import Pipe
from registry.mesh.memory import PIPE_BYTES, MemoryPipe, pipe_between
from registry.records import PeerId
from registry.signing import Identity
from registry.task_group import BackgroundTasks
from router.http.connection import Connection
from router.http.pool import ConnectionPool
from router.peers.pipes import NoMesh, pipe_dialer, serve_pipe
from router.peers.tls import certificate_of, client_context, server_context
from tests.router.world import QUICK, until

HERE, THERE = PeerId("here"), PeerId("there")
ASKING, SERVING = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)


class Listener:
    """Server that accepts one connection and leaves it to the test."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.arrived.set()


@asynccontextmanager
async def served() -> AsyncIterator[tuple[MemoryPipe, Listener, "asyncio.Task[None]"]]:
    listener = Listener()
    server = await asyncio.start_server(listener.take, "127.0.0.1", 0)
    own_end, other_end = pipe_between(HERE, THERE)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(serve_pipe(other_end, port=server.sockets[0].getsockname()[1]))
        await asyncio.wait_for(listener.arrived.wait(), 2)
        yield own_end, listener, task
        await own_end.reset()
        listener.writer.transport.abort()
        await asyncio.wait({task}, timeout=2)
        task.cancel()
    server.close()
    await server.wait_closed()


async def test_bytes_go_both_ways() -> None:
    async with served() as (pipe, listener, _):
        await pipe.write(b"question")
        assert await listener.reader.readexactly(8) == b"question"
        listener.writer.write(b"answer")
        assert await pipe.read() == b"answer"


async def test_all_bytes_of_the_listener_arrive_before_the_end() -> None:
    async with served() as (pipe, listener, task):
        listener.writer.write(b"x" * 3_000_000)
        listener.writer.close()
        size = 0
        while chunk := await pipe.read():
            size += len(chunk)
        assert size == 3_000_000
        await pipe.reset()
        await until(task.done)


async def test_the_listener_sees_a_cut_pipe_at_once() -> None:
    async with served() as (pipe, listener, task):
        await pipe.write(b"question")
        await listener.reader.readexactly(8)
        await pipe.reset()
        assert await asyncio.wait_for(listener.reader.read(), 0.5) == b""
        await until(task.done, within=0.5)


async def test_the_listener_sees_the_end_when_the_caller_finishes_writing() -> None:
    async with served() as (pipe, listener, task):
        await pipe.finish()
        assert await asyncio.wait_for(listener.reader.read(), 0.5) == b""
        await until(task.done, within=0.5)


async def test_a_slow_reader_slows_the_writer_down_and_memory_is_bounded() -> None:
    async with served() as (pipe, listener, _):
        written = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                while written < 64 * 1024 * 1024:
                    listener.writer.write(b"x" * 65536)
                    await listener.writer.drain()
                    written += 65536
        # The capacity of the pipe, the streams and the loopback sockets; nothing else grows.
        assert PIPE_BYTES <= written < 32 * 1024 * 1024
        assert await pipe.read()


async def test_a_node_without_a_listener_refuses_the_pipe() -> None:
    _, other_end = pipe_between(HERE, THERE)
    with pytest.raises(OSError, match="Connect"):
        await serve_pipe(other_end, port=1)


async def test_a_pipe_that_was_cut_before_it_is_served_ends() -> None:
    async with served() as (pipe, _, task):
        await pipe.reset()
        await until(task.done)
        with pytest.raises(PeerUnreachable):
            await pipe.write(b"late")


async def test_a_pipe_reset_before_the_listener_ends_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def finish(_: MemoryPipe) -> None:
        raise PeerUnreachable("it was reset")

    monkeypatch.setattr(MemoryPipe, "finish", finish)
    async with served() as (pipe, listener, task):
        listener.writer.close()
        await pipe.reset()
        await until(task.done)
        assert task.exception() is None


class TestADialThatIsGivenUp:
    """The caller is cancelled while its connection is being made."""

    async def given_up(self, turns: int) -> bool:
        """Cancel a dial after so many turns of the event loop; return whether it was still in progress."""
        listener, tasks = Listener(), BackgroundTasks()
        context = server_context(SERVING)
        server = await asyncio.start_server(listener.take, "127.0.0.1", 0, ssl=context)
        own_end, other_end = pipe_between(HERE, THERE)

        class Opened(NoMesh):
            async def open_pipe(self, _: PeerId) -> Pipe:
                return own_end

        client = client_context(ASKING, certificate_of(SERVING))
        dial = pipe_dialer(Opened(), THERE, context=client, tasks=tasks)
        pool = ConnectionPool(dial, QUICK)
        serving = tasks.spawn(serve_pipe(other_end, port=server.sockets[0].getsockname()[1]))
        dialling = tasks.spawn(dial(lambda: Connection(pool)))
        for _ in range(turns):
            await asyncio.sleep(0)
        early = dialling.cancel()
        await asyncio.wait({dialling})
        if not dialling.cancelled():
            dialling.result().abort()
        await until(serving.done, within=2)
        server.close()
        await tasks.cancel_all()
        return early

    def test_leaves_no_socket_and_no_pipe_whenever_it_is_cancelled(self) -> None:
        turns = 2
        with catch_warnings(record=True, action="always") as leaked:
            # A loop for each run: resources that its timers still hold show when it is closed.
            while asyncio.run(self.given_up(turns)):
                turns += 1
            gc.collect()
        assert turns > 8
        assert [str(warning.message) for warning in leaked] == []
