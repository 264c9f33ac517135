"""Where a node listens, and which certificates its listener for other nodes trusts."""

import socket
import ssl
from contextlib import ExitStack

import pytest

from node.config.addresses import HostPort
from node.listeners import bind, listening_address, trust_known_nodes
from registry import wire
from registry.catalog import Catalog
from registry.members.liveness import Presence
from registry.records import PeerId, Reach, Record, Version
from registry.signing import Identity
from router.http.dial import KEEP_ALIVE
from router.peers.tls import certificate_of, server_context

OWN, ONE, TWO = (Identity(bytes([number]) * 32) for number in range(3))


class Book:
    """What is known of other nodes: the record of each names its certificate."""

    def __init__(self) -> None:
        self.catalog = Catalog()

    def note(self, identity: Identity, certificate: bytes, sequence: int = 1) -> PeerId:
        reach = Reach(certificate=certificate)
        record = Record(identity.peer, Version(1, sequence), reach=reach)
        self.catalog = self.catalog.merge([wire.encode_record(record, identity)])
        return identity.peer

    def presence(self, node: PeerId) -> Presence:
        return Presence.ALIVE

    def admits(self, peer: PeerId) -> bool:
        return True


def certificates(context: ssl.SSLContext) -> int:
    return context.cert_store_stats()["x509"]


def test_the_error_for_an_address_in_use_names_the_address():
    with ExitStack() as closing:
        (listener,) = bind(HostPort("127.0.0.1", 0), "node.http")
        address = listening_address(closing.enter_context(listener))
        with pytest.raises(OSError, match=f"cannot listen on {address}"):
            bind(address, "node.http")


def test_several_listeners_share_one_address_that_no_later_bind_gets():
    with ExitStack() as closing:
        listeners = [
            *map(closing.enter_context, bind(HostPort("127.0.0.1", 0), "node.http", count=3))
        ]
        (address,) = set(map(listening_address, listeners))
        for count in (1, 2):
            with pytest.raises(OSError, match="cannot listen"):
                bind(address, "node.http", count=count)


def test_the_kernel_keeps_connections_alive_on_which_a_caller_waits_for_minutes():
    (listener,) = bind(HostPort("127.0.0.1", 0), "node.http")
    with (
        listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in KEEP_ALIVE.items():
            assert accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value


def test_certificates_of_known_nodes_and_of_changed_nodes_are_trusted():
    book, tls = Book(), server_context(OWN)
    book.note(ONE, certificate_of(ONE))
    meet = trust_known_nodes(tls, book, at_most=10)
    assert certificates(tls) == 1
    meet([book.note(TWO, certificate_of(TWO))])
    assert certificates(tls) == 2


def test_a_certificate_of_another_node_is_not_trusted():
    book, tls = Book(), server_context(OWN)
    book.note(ONE, certificate_of(TWO))
    trust_known_nodes(tls, book, at_most=10)
    assert certificates(tls) == 0


def test_no_more_certificates_are_trusted_than_the_bound_allows():
    book, tls = Book(), server_context(OWN)
    book.note(ONE, certificate_of(ONE))
    book.note(TWO, certificate_of(TWO))
    trust_known_nodes(tls, book, at_most=1)
    assert certificates(tls) == 1
