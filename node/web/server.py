"""Server of HTTP/1.1: the listeners, the time limits of all connections, and the end.

Routes: the handler for a method and a path.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, Protocol
from urllib.parse import unquote

from node.web.connection import CallerConnection
from node.web.limits import ConnectionLimits, Crowd, Room
from node.web.messages import Fault, Headers, HttpRequest, Response, StreamResponse
from node.web.settings import WebSettings

Answer = Response | StreamResponse
Handler = Callable[[HttpRequest], Awaitable[Answer]]


class NoPath(Fault):
    """Nothing is served under this path."""


class NoMethod(Fault):
    """The path exists for other methods: `allowed`."""

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(method)
        self.method, self.allowed = method, allowed


@dataclass(frozen=True, slots=True)
class RouteDef:
    """One thing that is served. A path that ends in `/*` stands for all that go on from there, by one character or more."""

    method: str
    path: str
    handler: Handler


def get(path: str, handler: Handler) -> RouteDef:
    """Return how something is read; whoever asks with HEAD is told the same without its body."""
    return RouteDef("GET", path, handler)


def post(path: str, handler: Handler) -> RouteDef:
    """Return how something is done."""
    return RouteDef("POST", path, handler)


class Routes:
    """All that is served, by path and method."""

    def __init__(self, definitions: Iterable[RouteDef]) -> None:
        self._exact: dict[str, dict[str, RouteDef]] = {}
        self._beginnings: dict[str, dict[str, RouteDef]] = {}
        for route in definitions:
            starred = route.path.endswith("/*")
            table = self._beginnings if starred else self._exact
            methods = table.setdefault(route.path.removesuffix("*"), {})
            methods[route.method] = route
            if route.method == "GET":
                methods["HEAD"] = route

    def find(self, request: HttpRequest) -> RouteDef:
        """Return what answers a request, and note in it what stands in for a star; raise `NoPath` or `NoMethod`."""
        methods = self._exact.get(request.path)
        if methods is None:
            methods = self._unusual(request)
        route = methods.get(request.method)
        if route is None:
            raise NoMethod(request.method, tuple(sorted(methods)))
        return route

    def _unusual(self, request: HttpRequest) -> dict[str, RouteDef]:
        path = unquote(request.path)
        if (methods := self._exact.get(path)) is not None:
            return methods
        for beginning, methods in self._beginnings.items():
            if path.startswith(beginning) and path != beginning:
                request.tail = path.removeprefix(beginning)
                return methods
        raise NoPath(path)


NAME = "modelvine"
"""What this program calls itself in the `Server` header; versions are nobody's business."""

HANDSHAKE_SECONDS = 10.0
"""Seconds that a TLS handshake may take."""

LAST_WORDS = 0.5
"""Seconds that handlers which are cancelled at the end may take to tell their callers so."""

_BACKLOG = 1024
_GRAIN = 0.5  # seconds between two looks at all connections, and by which time limits may be late


class App(Protocol):
    """What is served."""

    def answer(self, request: HttpRequest) -> Coroutine[Any, Any, Response | StreamResponse]:
        """Answer a request; raises nothing but `ConnectionError`."""

    def refuse(self, fault: Fault, said: Headers) -> Response:
        """Return the answer to what is no request; `said` is what of its head could be read."""


class Server:
    """Serves an application on one event loop. Whoever hangs up cancels what is done for it."""

    def __init__(
        self, app: App, settings: WebSettings | None = None, crowd: Crowd | None = None
    ) -> None:
        """Count who is connected in `crowd`, which several servers may share; each has its own bounds."""
        self.settings = settings or WebSettings()
        self.room = Room(self.settings.max_bodies_bytes)
        self.answer = app.answer
        self.refuse = app.refuse
        self.now = asyncio.get_running_loop().time()
        self.closing = False
        self._connections: dict[CallerConnection, None] = {}
        self._doors = ConnectionLimits(
            self.settings.connections, self.settings.connections_per_address, crowd or Crowd()
        )
        self._listeners: dict[socket.socket, asyncio.Server] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._second = 0
        self._lines = ""

    async def listen(self, listener: socket.socket, *, tls: ssl.SSLContext | None = None) -> None:
        """Begin to serve on a bound socket, over TLS with a context."""
        loop = asyncio.get_running_loop()
        handshake = HANDSHAKE_SECONDS if tls else None
        self._listeners[listener] = await loop.create_server(
            lambda: CallerConnection(self),
            sock=listener,
            ssl=tls,
            backlog=_BACKLOG,
            ssl_handshake_timeout=handshake,
        )

    def leave(self, listener: socket.socket) -> None:
        """Close one listener; who came by it stays."""
        self._listeners.pop(listener).close()

    async def take(self, connection: socket.socket) -> None:
        """Serve a connection that stands already, not over TLS."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: CallerConnection(self), connection)

    async def close(self, *, within: float) -> None:
        """Serve nobody any more: idle connections end now, busy ones with their answer or after `within` seconds."""
        self.closing = True
        for listener in self._listeners.values():
            listener.close()
        for connection in tuple(self._connections):
            connection.close()
        if busy := [c.busy for c in self._connections if c.busy is not None]:
            await asyncio.wait(busy, timeout=within)
        left = [c.busy for c in self._connections if c.busy is not None]
        # Cancelled before their connections are cut: a handler may tell its caller that this is the end.
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LAST_WORDS)
        for connection in tuple(self._connections):
            connection.abort()
        if left:
            await asyncio.wait(left)
        if self._timer is not None:
            self._timer.cancel()

    # What connections call.

    def lines(self) -> str:
        """Return the header lines that every answer has."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._lines = f"Server: {NAME}\r\nDate: {formatdate(second, usegmt=True)}\r\n"
        return self._lines

    def made(self, connection: CallerConnection) -> bool:
        """Take in a connection that is open; return whether there is room for it."""
        if self.closing or not self._doors.enter(connection, connection.address):
            return False
        self._connections[connection] = None
        if self._timer is None:
            self._look(asyncio.get_running_loop())
        return True

    def lost(self, connection: CallerConnection) -> None:
        """Forget a connection that is closed."""
        self._connections.pop(connection, None)
        self._doors.leave(connection, connection.address)

    # How.

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = loop.time()
        for connection in tuple(self._connections):
            connection.look(self.now)
        # A server that nobody is connected to has no timer.
        self._timer = loop.call_later(_GRAIN, self._look, loop) if self._connections else None
