"""Access check of the link listener: which node asks, and whether it may."""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from node.auth.errors import OF_KEYS
from node.auth.principal import PRINCIPAL, GrantLookup, Principal, principal_of
from node.faces.errors import NotAllowed
from node.lane.request import HttpRequest, LaneRequest
from registry.catalog import Catalog
from registry.clock import Clock
from registry.errors import RegistryError
from registry.members.liveness import Presence
from registry.records import PeerId
from router.peers.headers import GRANT, HOP
from router.peers.tls import peer_of_certificate


class KnownPeers(Protocol):
    """What is known of other nodes."""

    @property
    def catalog(self) -> Catalog:
        """The newest snapshot."""

    def presence(self, node: PeerId) -> Presence:
        """Return the presence of a node."""

    def admits(self, peer: PeerId) -> bool:
        """Return whether a peer is admitted here."""


def peer_check(
    known_peers: KnownPeers, grants: GrantLookup | None = None, wall: Clock = time.time
) -> Callable[[HttpRequest], None]:
    """Return a check that lets only nodes through that the registry knows and that have not left; it raises `NotAllowed`.

    With `grants`, a node must also present one; its requests are then bound to the grant's terms. `wall` returns Unix time.
    """

    def check(request: HttpRequest) -> None:
        derived = request.head.derived if isinstance(request, LaneRequest) else {}
        checked: _Seen | None = derived.get(_Seen)
        # Requests with the same head on a connection are from the same peer, and a peer that leaves changes the catalog.
        if checked is None or checked.version != known_peers.catalog.total:
            checked = derived[_Seen] = _checked_peer(request, known_peers)
        peer = checked.peer
        if not known_peers.admits(peer):
            raise NotAllowed(f"{peer} is not admitted here")
        if grants is not None:
            request[PRINCIPAL] = _principal_of_grant(request, peer, grants, wall())

    return check


@dataclass(frozen=True, slots=True)
class _Seen:
    """The peer that a connection's requests are from, and the digest of a catalog in which it had not left."""

    peer: PeerId
    version: int


def _checked_peer(request: HttpRequest, known_peers: KnownPeers) -> _Seen:
    """Return the asking peer; raise `NotAllowed` for one that is unknown or has left."""
    peer, catalog = asking_peer(request), known_peers.catalog
    if peer != request.headers.get(HOP):
        raise NotAllowed(f"{HOP} must name the peer of the TLS certificate")
    if peer not in catalog.held:
        raise NotAllowed(f"this node's registry does not contain {peer}")
    if known_peers.presence(peer) is Presence.LEFT:
        raise NotAllowed(f"{peer} has left the network")
    return _Seen(peer, catalog.total)


def _principal_of_grant(
    request: HttpRequest, peer: PeerId, grants: GrantLookup, now: float
) -> Principal:
    """Return the principal for the grant that a peer presents.

    Raise `NotAllowed` for any fault of the grant, so that the peer asks another node.
    """
    token = request.headers.get(GRANT)
    if token is None:
        raise NotAllowed("this node requires a grant (modelvine invite --for-node)")
    try:
        return principal_of(grants.granted(token, peer), now)
    except OF_KEYS as error:
        raise NotAllowed(str(error)) from error


def asking_peer(request: HttpRequest) -> PeerId:
    """Return the peer whose key the other end of this TLS connection proved to hold; raise `NotAllowed`."""
    transport = request.transport
    secured = transport.get_extra_info("ssl_object") if transport else None
    # uvloop and asyncio both return the standard library's object.
    if not isinstance(secured, ssl.SSLObject):
        raise NotAllowed("this listener is for nodes, over TLS")
    certificate = secured.getpeercert(binary_form=True)
    if certificate is None:
        raise NotAllowed("nodes must present their certificate")
    # The result is cached by certificate, so a connection's later requests cost only a look-up.
    try:
        return peer_of_certificate(certificate)
    except RegistryError as error:
        raise NotAllowed("this certificate is not bound to a node's key") from error
