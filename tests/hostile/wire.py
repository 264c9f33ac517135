"""Client that sends a listener bytes that no HTTP client would send, and parses the answers without trusting them.

It does not depend on the server: a listener is an address, with or without TLS.
"""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

PLAIN_HOST = b"Host: localhost\r\n"
"""The Host header of corpus requests; for the listener for other nodes, the hop header is added after it."""

_PIECE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; header names are lower case, and of headers with one name the last counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Heard:
    """What came back over one connection: final answers, whether it was closed, and trailing bytes of no whole answer."""

    answers: tuple[Answer, ...]
    closed: bool
    rest: bytes

    @property
    def statuses(self) -> list[int]:
        """The statuses in order."""
        return [answer.status for answer in self.answers]


@dataclass(frozen=True, slots=True)
class Listener:
    """Address to send bytes to; `hop` is the peer id that requests to another node's listener must carry."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    hop: str = ""

    def named(self, sent: bytes) -> bytes:
        """Return the bytes with the hop header in each request that names a host."""
        if not self.hop:
            return sent
        return sent.replace(PLAIN_HOST, PLAIN_HOST + f"x-modelvine-hop: {self.hop}\r\n".encode())

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        return await asyncio.open_connection(self.host, self.port, ssl=self.tls)

    async def say(
        self,
        *pieces: bytes,
        within: float = 8.0,
        pause: float = 0.0,
        more: float = 0.0,
        patience: float | None = None,
    ) -> Heard:
        """Send pieces, `pause` seconds apart, over a new connection and return what came back.

        Reading ends when the listener closes, when nothing has come for `more` seconds after an answer, or for `patience`
        seconds before one; in any case after `within` seconds.
        """
        reader, writer = await self.connect()
        received = bytearray()
        closed = False
        try:
            async with asyncio.timeout(within):
                # A listener may answer and close before it has read everything.
                with suppress(ConnectionError):
                    for index, piece in enumerate(pieces):
                        await asyncio.sleep(pause if index else 0)
                        writer.write(self.named(piece))
                        await writer.drain()
                while not closed:
                    answered = bool(answers_in(bytes(received))[0])
                    async with asyncio.timeout(more if answered else patience):
                        piece = await reader.read(_PIECE)
                    closed = not piece
                    received += piece
        except ConnectionError:
            closed = True
        except TimeoutError:
            pass
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        answers, rest = answers_in(bytes(received))
        return Heard(tuple(answers), closed, rest)


def answers_in(received: bytes) -> tuple[list[Answer], bytes]:
    """Split bytes into the complete final answers and the rest; interim answers are skipped."""
    answers: list[Answer] = []
    while received:
        head, mark, after = received.partition(b"\r\n\r\n")
        start, *lines = head.split(b"\r\n")
        if not mark or not start.startswith(b"HTTP/1.") or not start[9:12].isdigit():
            break
        status = int(start[9:12])
        if status < 200:
            received = after
            continue
        headers = {
            name.strip().lower().decode(): value.strip().decode("latin-1")
            for name, _, value in (line.partition(b":") for line in lines)
        }
        taken = _body(headers, after, bodiless=status in (204, 304))
        if taken is None:
            break
        body, received = taken
        answers.append(Answer(status, headers, body))
    return answers, received


def _body(
    headers: Mapping[str, str], after: bytes, *, bodiless: bool
) -> tuple[bytes, bytes] | None:
    if bodiless:
        return b"", after
    if "chunked" in headers.get("transfer-encoding", ""):
        return _chunked(after)
    length = int(headers.get("content-length", "0"))
    return (after[:length], after[length:]) if len(after) >= length else None


def _chunked(after: bytes) -> tuple[bytes, bytes] | None:
    body = b""
    while True:
        size, mark, after = after.partition(b"\r\n")
        if not mark:
            return None
        length = int(size.partition(b";")[0], 16)
        if len(after) < length + 2:
            return None
        body, after = body + after[:length], after[length + 2 :]
        if not length:
            return body, after
