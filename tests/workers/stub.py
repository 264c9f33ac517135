"""Base of the stub workers over HTTP: a server without a model on loopback, its faults, and a record of requests.

The stub of a protocol defines the form of answers and events, and what the protocol refuses.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson
from aiohttp import web

from tests.workers.openai_worker import WORDS, Received
from tests.workers.serving import served


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Faults to show. Delays are seconds, `…_after` counts events of a stream."""

    delay_headers: float = 0.0
    delay_first: float = 0.0
    delay_between: float = 0.0
    die_after: int | None = None
    end_after: int | None = None
    die_before_headers: bool = False
    status: int = 200
    refusal: bytes = b'{"message":"no"}'
    retry_after: str | None = None
    error_after: int | None = None
    garbage: bool = False
    empty: bool = False
    hang: bool = False
    split: bool = False


F = TypeVar("F", bound=Faults)

Probed = Callable[[web.Request], Awaitable[web.Response]]
"""Handler of requests that are not for texts."""


class Stub(ABC, Generic[F]):
    """The server. It answers with `words`, each a token; `received`, `probed` and `hung_up` record what reached it."""

    def __init__(self, knobs: type[F]) -> None:
        self._knobs = knobs
        self.faults = knobs()
        self.words: tuple[str, ...] = WORDS
        self.url = ""
        self.received: list[Received] = []
        self.probed: list[Received] = []
        self.hung_up = 0

    def fail(self, **faults: Any) -> None:
        """Replace the faults."""
        self.faults = self._knobs(**faults)

    @property
    def asked(self) -> dict[str, object]:
        """The body of the last request."""
        return dict(orjson.loads(self.received[-1].body))

    @abstractmethod
    def whole(self, http: web.Request, fields: Mapping[str, Any]) -> web.Response:
        """Return a whole answer."""

    @abstractmethod
    def events(self, http: web.Request, fields: Mapping[str, Any]) -> Sequence[bytes]:
        """Return the events of a stream; the one with index `error_after` is a failure."""

    @abstractmethod
    def streams(self, http: web.Request, fields: Mapping[str, Any]) -> bool:
        """Return whether a request asks for a stream."""

    def objection(self, http: web.Request, fields: Mapping[str, Any]) -> object:
        """Return what is wrong with a request, in the protocol's form; `None` for nothing."""
        return None

    @asynccontextmanager
    async def running(
        self, *paths: str, gets: Mapping[str, Probed] | None = None
    ) -> AsyncIterator[None]:
        """Run on a free port of loopback; `paths` take requests for texts, and probes unless `gets` has other handlers."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes([web.post(path, self._handle) for path in paths])
        probed = dict.fromkeys(paths, self._probe) if gets is None else gets
        app.add_routes([web.get(path, handler) for path, handler in probed.items()])
        async with served(app) as self.url:
            yield

    async def _probe(self, http: web.Request) -> web.Response:
        """Record a probe, and answer 405."""
        self.probed.append(Received(http.path_qs, http.headers, b""))
        return web.Response(status=405)

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        """Answer one request, with the configured faults."""
        body = await http.read()
        self.received.append(Received(http.path_qs, http.headers, body))
        try:
            return await self._answer(http, orjson.loads(body))
        except (asyncio.CancelledError, ConnectionError):
            self.hung_up += 1
            raise

    async def _answer(self, http: web.Request, fields: dict[str, object]) -> web.StreamResponse:
        faults = self.faults
        if faults.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(faults.delay_headers)
        if faults.die_before_headers:
            return _die(http)
        if faults.status != 200:
            headers = {"Retry-After": faults.retry_after} if faults.retry_after else {}
            return as_json(faults.refusal, status=faults.status, headers=headers)
        if (objection := self.objection(http, fields)) is not None:
            return as_json(orjson.dumps(objection), status=422)
        streams = self.streams(http, fields)
        if faults.garbage:
            kind = "text/event-stream" if streams else "application/json"
            return web.Response(body=b"data: <html>\n\n", content_type=kind)
        if streams:
            return await self._stream(http, [] if faults.empty else self.events(http, fields))
        await asyncio.sleep(faults.delay_first)
        return self.whole(http, fields)

    async def _stream(self, http: web.Request, events: Sequence[bytes]) -> web.StreamResponse:
        faults = self.faults
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        await asyncio.sleep(faults.delay_first)
        for sent, event in enumerate(events):
            if sent == faults.die_after:
                return _die(http)
            if sent == faults.end_after:
                break
            if sent:
                await asyncio.sleep(faults.delay_between)
            pieces = (
                [event[index : index + 1] for index in range(len(event))]
                if faults.split
                else [event]
            )
            for piece in pieces:
                await response.write(piece)
            if sent == faults.error_after:
                break
        await response.write_eof()
        return response


def event(payload: object) -> bytes:
    """Return one event of a stream."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def as_json(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return an answer in JSON."""
    return web.Response(status=status, body=body, headers=headers, content_type="application/json")


def _die(http: web.Request) -> web.Response:
    assert http.transport is not None
    http.transport.abort()
    return web.Response()
