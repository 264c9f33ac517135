"""Listeners of a node, and the admission of other nodes.

The limit on open files is raised: each connection is one file, and the usual limit is far too small.
"""

import asyncio
import logging
import resource
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from ssl import SSLContext
from typing import Any, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage

from node.acceptor import HANDSHAKE_SECONDS, Acceptor, Preface, SharedConnections
from node.auth.forwarded import NO_PROXIES, TrustedProxies
from node.config.addresses import HostPort
from node.config.settings import Settings
from node.config.web import WebSettings
from node.connection_limits import ConnectionCounts, ConnectionLimits
from node.connections import CallerConnection, ListenerContext
from node.faces.errors import FaceError
from node.faces.peer_access import KnownPeers
from node.faces.request_reader import EXPECTS
from node.heads import CONTINUE, FixedHeaders, check, fixed_headers
from node.http_handler import HttpHandler
from node.lane.calls import LANE
from node.lane.connection import LaneConnection
from node.tls import Certificate
from registry.errors import InvalidSignature, listen_error_text
from registry.records import PeerId
from router.http.dial import keep_alive
from router.peers.tls import offer_sharing, peer_of_certificate, trust

MAX_OPEN_FILES = 1_048_576
"""Open files that are requested if the system has no limit."""

_SPARE = 256  # for the store, the log, the mesh, and what libraries open
_LISTENERS = 2
_PER_CALLER = 2  # its own connection, and the one to the worker or node that answers it
PLENTY = 1_024
"""Connections to a listener; fewer are worth a warning even if the operator set no number."""


def raise_limit() -> int:
    """Raise the limit on open files as far as the system allows; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= target:
        return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):
        # macOS reports no limit, but has one.
        return soft
    return target


def connections_within(limit: int) -> int:
    """Return how many connections to each listener fit into `limit` open files."""
    return max(1, (limit - _SPARE) // (_LISTENERS * _PER_CALLER))


def fit_connections(settings: Settings, limit: int) -> Settings:
    """Return settings whose connections fit into `limit` open files; log if these are fewer than were set."""
    allowed = connections_within(limit)
    if settings.web.connections <= allowed:
        return settings
    explicit = "connections" in settings.web.model_fields_set
    log.log(
        logging.WARNING if explicit or allowed < PLENTY else logging.DEBUG,
        "the limit of %d open files allows %d connections to each listener, not %d (web.connections); "
        "raise it (LimitNOFILE, ulimit -n)",
        limit,
        allowed,
        settings.web.connections,
    )
    return settings.model_copy(
        update={"web": settings.web.model_copy(update={"connections": allowed})}
    )


log = logging.getLogger("modelvine.node")

TRUSTED_PER_NODE = 2
"""Most trusted certificates, per node that the registry has a place for."""

# Requests had their time in the drain; those that are left after it are cut off.
_CLOSE_WITHIN = 1.0
_BACKLOG = 1024
_TURNS = 10  # turns of the event loop: a connection takes some to be accepted, a request some to reach its handler
_GRAIN = 0.5  # seconds between two checks of all connections; time limits may be late by as much

UNSENT_BYTES = 512 * 1024
"""Unsent bytes that the kernel buffers for a caller; for a caller that reads nothing it would otherwise buffer 4 MB."""

LAST_WORDS = 0.5
"""Seconds that handlers cancelled at shutdown may take to tell their callers."""


def bind(address: HostPort, setting: str, *, count: int = 1) -> list[socket.socket]:
    """Return sockets that listen on one address, each for one process; raise `OSError` with a message that names `setting`.

    The kernel spreads connections over them. An address that another program listens on is refused, although these sockets
    share theirs.
    """
    try:
        first = _bind_socket(address, shared=False)
        if count == 1:
            return [first]
        bound_address = listening_address(first)
        first.close()
        return [_bind_socket(bound_address, shared=True) for _ in range(count)]
    except OSError as error:
        raise OSError(listen_error_text(str(address), setting, error)) from error


def _bind_socket(address: HostPort, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    endpoint = address.host, address.port
    listener = socket.create_server(endpoint, family=family, backlog=_BACKLOG, reuse_port=shared)
    # Accepted connections inherit it, so that a caller that vanished is noticed, and no firewall forgets one that waits.
    keep_alive(listener)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return listener


def listening_address(listener: socket.socket) -> HostPort:
    """Return the address on which a socket listens."""
    return HostPort(*listener.getsockname()[:2])


class Listener(ListenerContext):
    """An application that is served on any number of sockets. A caller that disconnects cancels its request."""

    def __init__(
        self,
        app: web.Application,
        settings: WebSettings | None = None,
        counts: ConnectionCounts | None = None,
        *,
        tls: SSLContext | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        """Count connections in `counts`, which several listeners may share; each has its own limits.

        `tls` is for the connections of other nodes, `certificate` for those of clients.
        """
        settings = settings or WebSettings()
        fixed = fixed_headers(settings, secured=certificate is not None, peers=tls is not None)
        super().__init__(settings, fixed, asyncio.get_running_loop().time())
        self._shared = SharedConnections()
        # Proxies of clients are not trusted on the listener for nodes.
        proxies = TrustedProxies(settings.trusted_proxies) if tls is None else NO_PROXIES
        self._preface = Preface(
            certificate.context if certificate else None,
            proxies if settings.proxy_protocol else NO_PROXIES,
            settings.head_timeout,
        )
        self._tls = tls
        if tls is not None:
            offer_sharing(tls)
        self._runner = web.AppRunner(app)
        self._calls = app.get(LANE)
        app.on_response_prepare.append(partial(_add_fixed_headers, fixed))
        self._server: web.Server | None = None
        self._connections: dict[CallerConnection, None] = {}
        self._limits = ConnectionLimits(
            settings.connections,
            settings.connections_per_address,
            counts or ConnectionCounts(),
            proxies=proxies,
        )
        self._sockets: dict[socket.socket, asyncio.Server | Acceptor] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_shut = False
        """Whether no further connection is served."""

    async def listen_on(self, listener: socket.socket) -> None:
        """Accept connections on a bound socket."""
        alone = await self._connection_factory()
        if self._preface:
            listener.listen(_BACKLOG)
            self._sockets[listener] = Acceptor(listener, self._preface, alone, self._limits)
            return
        self._sockets[listener] = await asyncio.get_running_loop().create_server(
            self._shared.protocol_factory(alone) if self._tls else alone,
            sock=listener,
            ssl=self._tls,
            backlog=_BACKLOG,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if self._tls else None,
        )

    def stop_listening(self, listener: socket.socket) -> None:
        """Close a listening socket; its connections stay open."""
        self._sockets.pop(listener).close()

    async def serve_connection(self, connection: socket.socket) -> None:
        """Serve an accepted connection, without TLS."""
        alone = await self._connection_factory()
        await asyncio.get_running_loop().connect_accepted_socket(alone, connection)

    async def stop_accepting(self) -> None:
        """Accept no more connections, but those that wait to be accepted, which closed sockets would reset."""
        await _let_loop_catch_up()
        for listener in self._sockets.values():
            listener.close()

    async def close(self, *, within: float = _CLOSE_WITHIN) -> None:
        """Stop serving: idle connections end now, busy ones with their answer or after `within` seconds.

        Connections that wait to be accepted and requests that wait to be read, which closed sockets would reset, are served.
        """
        self.closing = True
        await self.stop_accepting()
        await _let_loop_catch_up()
        self._is_shut = True
        self._shared.go_away()
        for connection in tuple(self._connections):
            connection.end_after_answer()
        if busy := self._running_tasks():
            await asyncio.wait(busy, timeout=within)
        # Handlers are cancelled before their connections are cut, so that they can tell their callers.
        unfinished = self._running_tasks()
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=LAST_WORDS)
        for connection in tuple(self._connections):
            connection.abort()
        if unfinished:
            await asyncio.wait(unfinished)
        await self._end_handshakes()
        await self._shared.close()
        if self._timer is not None:
            self._timer.cancel()
        await self._runner.cleanup()

    # What connections call.

    def add_connection(self, connection: CallerConnection) -> bool:
        """Add an open connection; return whether there is room for it."""
        if self._is_shut or not self._limits.enter(connection, connection.address):
            return False
        self._connections[connection] = None
        if self._timer is None:
            self._check_connections(asyncio.get_running_loop())
        return True

    def remove_connection(self, connection: CallerConnection) -> None:
        """Remove a closed connection."""
        self._connections.pop(connection, None)
        self._limits.leave(connection, connection.address)

    # Internals.

    async def _connection_factory(self) -> Callable[[], CallerConnection]:
        """Return the factory of connection protocols; the first call sets up the server."""
        if self._server is None:
            await self._runner.setup()
            server = cast("web.Server", self._runner.server)
            self._server = web.Server(
                partial(_handle_request, server.request_handler),
                request_factory=partial(_make_request, server.request_factory),
                handler_cancellation=True,
            )
        calls = self._calls
        if calls is None or not calls.calls:
            return partial(CallerConnection, self._server, self)
        return partial(LaneConnection, self._server, self, calls)

    async def _end_handshakes(self) -> None:
        for server in self._sockets.values():
            if isinstance(server, Acceptor):
                await server.cancel_pending()

    def _running_tasks(self) -> list[asyncio.Task[Any]]:
        return [connection.task for connection in self._connections if connection.task is not None]

    def _check_connections(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = loop.time()
        for connection in tuple(self._connections):
            connection.check_timeouts(self.now)
        # A listener without connections has no timer.
        self._timer = (
            loop.call_later(_GRAIN, self._check_connections, loop) if self._connections else None
        )


async def _let_loop_catch_up() -> None:
    """Return when the event loop has taken in what had arrived at its sockets, and has begun to answer it."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def connection_of(request: web.BaseRequest) -> CallerConnection:
    """Return the connection that a request came on."""
    return cast("CallerConnection", cast("HttpHandler", request.protocol).connection)


def _make_request(
    make: Callable[..., web.BaseRequest], message: RawRequestMessage, *more: Any
) -> web.BaseRequest:
    expects = message.headers.get("expect", "").lower() == CONTINUE
    if expects:
        # aiohttp would send `100 Continue` at once where no route matches; here the reader of the body sends it.
        headers = message.headers.copy()
        del headers["expect"]
        message = message._replace(headers=type(message.headers)(headers))
    request = make(message, *more)
    if expects:
        request[EXPECTS] = True
    connection_of(request).begin_request(request)
    return request


async def _handle_request(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], request: web.BaseRequest
) -> web.StreamResponse:
    """Have a request answered if all parsers read it the same way; otherwise refuse it and end the connection."""
    connection = connection_of(request)
    connection.task = asyncio.current_task()
    try:
        check(request)
    except FaceError as error:
        connection.refuse(error, request.headers)
        raise ConnectionResetError("the connection ends") from error
    try:
        return await handler(request)
    finally:
        connection.note_answered()


async def _add_fixed_headers(
    fixed: FixedHeaders, request: web.Request, response: web.StreamResponse
) -> None:
    """Add the headers that every answer has, and end the connection after the last answer."""
    response.headers.update(fixed.fields)
    if connection_of(request).is_last(request):
        response.force_close()
        response.headers["Connection"] = "close"


async def serve(
    app: web.Application,
    listener: socket.socket,
    closing: AsyncExitStack,
    settings: WebSettings | None = None,
    counts: ConnectionCounts | None = None,
    *,
    tls: SSLContext | None = None,
    certificate: Certificate | None = None,
) -> Listener:
    """Serve an application until `closing` closes."""
    served = Listener(app, settings, counts, tls=tls, certificate=certificate)
    closing.push_async_callback(served.close)
    await served.listen_on(listener)
    return served


def trust_known_nodes(
    tls: SSLContext, peers: KnownPeers, *, at_most: int
) -> Callable[[Iterable[PeerId]], None]:
    """Trust the certificates of all known nodes, and return a listener that does so for nodes that change."""
    met: set[bytes] = set()

    def meet(nodes: Iterable[PeerId]) -> None:
        for node in nodes:
            reach = peers.catalog.reach_of(node)
            certificate = reach.certificate if reach else b""
            if not certificate or certificate in met or not _belongs(certificate, node):
                continue
            # A context cannot drop a certificate, so those of nodes evicted from the registry still count here.
            if len(met) >= at_most:
                log.warning(
                    "%d certificates are trusted already; %s is not admitted", at_most, node
                )
                continue
            met.add(certificate)
            trust(tls, certificate)

    meet(peers.catalog.held)
    return meet


def _belongs(certificate: bytes, node: PeerId) -> bool:
    try:
        belongs = peer_of_certificate(certificate) == node
    except InvalidSignature:
        belongs = False
    if not belongs:
        log.warning("%s presents the certificate of another node; it is not admitted", node)
    return belongs
