"""Listeners of a node, and who is let in at the one for other nodes.

Limit of open files: each connection is one, and the usual limit is far too small.
"""

import logging
import resource
import socket
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from ssl import SSLContext

from node import web
from node.config.addresses import HostPort
from node.config.settings import Settings
from node.faces.peer_access import KnownPeers
from registry.errors import InvalidSignature, cannot_listen
from registry.records import PeerId
from router.peers.certificate import peer_of_certificate, trust

MOST = 1_048_576
"""Open files that are asked for where the system has no limit of its own."""

_SPARE = 256  # for the store, the log, the mesh, and what libraries open
_LISTENERS = 2
_PER_CALLER = 2  # its own connection, and that to the worker or node which answers it
_PLENTY = 1_024  # connections: fewer surprise even an operator who set no number


def raise_limit() -> int:
    """Raise the limit on open files as far as the system lets us; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        # macOS says that there is no limit, and has one.
        return soft
    return wanted


def fitted(settings: Settings, limit: int) -> Settings:
    """Return settings whose connections fit into `limit` open files, and say so where that takes fewer than were set."""
    most = max(1, (limit - _SPARE) // (_LISTENERS * _PER_CALLER))
    if settings.web.connections <= most:
        return settings
    wanted = "connections" in settings.web.model_fields_set
    log.log(
        logging.WARNING if wanted or most < _PLENTY else logging.DEBUG,
        "%d open files are allowed, which is enough for %d connections to each listener, not %d (web.connections); "
        "raise the limit (LimitNOFILE, ulimit -n)",
        limit,
        most,
        settings.web.connections,
    )
    return settings.model_copy(
        update={"web": settings.web.model_copy(update={"connections": most})}
    )


log = logging.getLogger("modelvine.node")

TRUSTED_PER_NODE = 2
"""Certificates that are trusted at most, for each node that the registry has a place for."""

# Requests had their time in the drain; what is left after it is cut.
_CLOSE_WITHIN = 1.0
_BACKLOG = 1024


def bind(address: HostPort, setting: str, *, count: int = 1) -> list[socket.socket]:
    """Return sockets that listen at one address, each for one process; raise `OSError` with a sentence about `setting`.

    The kernel spreads connections over them. Nobody else may listen there, though the sockets let each other do so.
    """
    try:
        first = _bound(address, shared=False)
        if count == 1:
            return [first]
        place = place_of(first)
        first.close()
        return [_bound(place, shared=True) for _ in range(count)]
    except OSError as error:
        raise OSError(cannot_listen(str(address), setting, error)) from error


def _bound(address: HostPort, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    place = address.host, address.port
    return socket.create_server(place, family=family, backlog=_BACKLOG, reuse_port=shared)


def place_of(listener: socket.socket) -> HostPort:
    """Say where a socket listens."""
    return HostPort(*listener.getsockname()[:2])


class Listener:
    """An application that is served on listeners, as many as it is given."""

    def __init__(
        self,
        app: web.App,
        settings: web.WebSettings | None = None,
        crowd: web.Crowd | None = None,
        *,
        tls: SSLContext | None = None,
    ) -> None:
        self._server = web.Server(app, settings, crowd)
        self._tls = tls

    async def on(self, listener: socket.socket) -> None:
        """Take in who comes at a listener."""
        await self._server.listen(listener, tls=self._tls)

    def off(self, listener: socket.socket) -> None:
        """Close a listener; who came by it stays."""
        self._server.leave(listener)

    async def take(self, connection: socket.socket) -> None:
        """Serve a connection that stands already."""
        await self._server.take(connection)

    async def close(self, *, within: float = _CLOSE_WITHIN) -> None:
        """Close every listener, and soon after that every connection."""
        await self._server.close(within=within)


async def serve(
    app: web.App,
    listener: socket.socket,
    closing: AsyncExitStack,
    settings: web.WebSettings | None = None,
    crowd: web.Crowd | None = None,
    *,
    tls: SSLContext | None = None,
) -> Listener:
    """Serve an application until `closing` does."""
    served = Listener(app, settings, crowd, tls=tls)
    closing.push_async_callback(served.close)
    await served.on(listener)
    return served


def welcome(
    tls: SSLContext, known: KnownPeers, *, at_most: int
) -> Callable[[Iterable[PeerId]], None]:
    """Trust the certificates of all nodes that are known, and return what does it for those that change."""
    met: set[bytes] = set()

    def meet(nodes: Iterable[PeerId]) -> None:
        for node in nodes:
            reach = known.catalog.reach_of(node)
            shown = reach.certificate if reach else b""
            if not shown or shown in met or not _belongs(shown, node):
                continue
            # A context cannot forget, so those that made room in the registry still count here.
            if len(met) >= at_most:
                log.warning("%d certificates are trusted already; %s is not let in", at_most, node)
                continue
            met.add(shown)
            trust(tls, shown)

    meet(known.catalog.held)
    return meet


def _belongs(certificate: bytes, node: PeerId) -> bool:
    try:
        belongs = peer_of_certificate(certificate) == node
    except InvalidSignature:
        belongs = False
    if not belongs:
        log.warning("%s shows a certificate that is not its own; it is not let in", node)
    return belongs
