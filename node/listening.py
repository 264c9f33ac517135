"""Where does this node listen, and whom does its listener for other nodes let in?"""

import logging
import socket
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from ssl import SSLContext

from node import web
from node.addresses import HostPort
from node.faces.peers import Known
from registry.errors import InvalidSignature
from registry.records import PeerId
from router.certificate import peer_of_certificate, trust

log = logging.getLogger("modelvine.node")

TRUSTED_PER_NODE = 2
"""Certificates that are trusted at most, for each node that the registry has a place for."""

# Requests had their time in the drain; what is left after it is cut.
_CLOSE_WITHIN = 1.0
_BACKLOG = 1024


def bind(address: HostPort) -> socket.socket:
    """Return a socket that listens at an address; raise `OSError` with a sentence."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error.strerror}") from error


def place_of(listener: socket.socket) -> HostPort:
    """Say where a socket listens."""
    return HostPort(*listener.getsockname()[:2])


async def serve(
    app: web.App,
    listener: socket.socket,
    closing: AsyncExitStack,
    *,
    tls: SSLContext | None = None,
) -> None:
    """Serve an application until `closing` does."""
    server = web.Server(app)
    closing.push_async_callback(server.close, within=_CLOSE_WITHIN)
    await server.listen(listener, tls=tls)


def welcome(tls: SSLContext, known: Known, *, at_most: int) -> Callable[[Iterable[PeerId]], None]:
    """Trust the certificates of all nodes that are known, and return what does it for those that change."""
    met: set[bytes] = set()

    def meet(nodes: Iterable[PeerId]) -> None:
        for node in nodes:
            held = known.catalog.held.get(node)
            shown = held.record.reach.certificate if held else b""
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
