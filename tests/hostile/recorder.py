"""Stub worker that parses requests as strictly as possible and records every byte that reaches it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.workers.raw import raw

ANSWER = b'{"id":"c","model":"tiny","choices":[]}'


@dataclass(frozen=True, slots=True)
class Taken:
    """One request: its first line, its headers by lower-case name, its body."""

    line: bytes
    headers: Mapping[bytes, bytes]
    body: bytes


@dataclass(slots=True)
class Recorder:
    """What arrived, over all connections; `foreign` is all that is not a request with exactly one `Content-Length`."""

    url: str = ""
    taken: list[Taken] = field(default_factory=list)
    foreign: list[bytes] = field(default_factory=list)
    _open: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read requests and answer them until the connection ends."""
        self._open.append(writer)
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as error:
                self.foreign += [error.partial] if error.partial else []
                return
            except ConnectionError:
                return
            line, *fields = head[:-4].split(b"\r\n")
            names = [name.lower() for name, _, _ in (one.partition(b":") for one in fields)]
            values = [value.strip() for _, _, value in (one.partition(b":") for one in fields)]
            headers = dict(zip(names, values, strict=True))
            length = headers.get(b"content-length", b"")
            if len(headers) != len(fields) or not length.isdigit() or b"\n" in b"".join((line, *fields)):  # fmt: skip
                self.foreign.append(head)
                return
            self.taken.append(Taken(line, headers, await reader.readexactly(int(length))))
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(ANSWER), ANSWER)
            )

    def close(self) -> None:
        """Cut all connections."""
        for writer in self._open:
            writer.transport.abort()


@asynccontextmanager
async def recording() -> AsyncIterator[Recorder]:
    """Run a recorder on a free port of loopback."""
    recorder = Recorder()
    async with raw(recorder.serve) as url:
        recorder.url = url
        yield recorder
        recorder.close()
