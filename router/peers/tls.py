"""TLS between two nodes: the certificate by which they prove their identities, and what a connection carries.

A node's certificate is a pure function of its identity key, so the peer id follows from the certificate that the other side
shows, and nothing needs to be renewed. Both ends trust exactly the certificates they were told of: no authority, no names.

A connection carries many streams if both nodes offer that by ALPN, else HTTP.
TLS protects the choice (RFC 7301), and a node of the previous version does not offer it.
"""

import asyncio
import os
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from secrets import token_bytes
from typing import cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature as BadSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from registry.errors import InvalidSignature
from registry.records import PeerId
from registry.signing import Identity, peer_of
from router.peers.muxed import Factory, MuxedConnection
from router.peers.muxed_stream import StreamProtocol

MAX_CERTIFICATE_BYTES = 2048
"""A node's certificate has about 340 bytes; a longer one is not a node's."""

_NOT_BEFORE = datetime(2020, 1, 1, tzinfo=UTC)
_NOT_AFTER = datetime(2120, 1, 1, tzinfo=UTC)

_ANY_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME: machines without a battery for their clock may start in 1970."""


def certificate_of(identity: Identity) -> bytes:
    """Return the node's DER certificate: the same key always gives the same bytes."""
    return _certificate(identity).public_bytes(serialization.Encoding.DER)


@lru_cache(maxsize=4096)
def peer_of_certificate(der: bytes) -> PeerId:
    """Return the peer that a certificate stands for; raise `InvalidSignature` for anything but a node's certificate.

    It must be signed by its own Ed25519 key and must say that it is no authority: otherwise OpenSSL would let a trusted
    authority, or a certificate that leaves the question open, vouch for unknown keys.
    """
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise InvalidSignature(f"a certificate has at most {MAX_CERTIFICATE_BYTES} bytes")
    try:
        certificate = x509.load_der_x509_certificate(der)
        key = certificate.public_key()
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except Exception as error:
        # The library also raises errors of its own for odd certificates, `TypeError` for some, and others in other versions.
        raise InvalidSignature("these bytes are no certificate of a node") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidSignature("the certificate's key is not an Ed25519 key")
    if constraints.value.ca:
        raise InvalidSignature("the certificate claims to be an authority")
    try:
        key.verify(certificate.signature, certificate.tbs_certificate_bytes)
    except BadSignature as error:
        raise InvalidSignature("the certificate is not signed by its own key") from error
    return peer_of(key.public_bytes_raw())


def server_context(identity: Identity) -> ssl.SSLContext:
    """Make the context of the node's listener: it accepts no peer until peers are trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _prepare(context, identity)
    # For later connections, see `_ResumingContext`: only a connection on which a key was proven is resumed.
    context.num_tickets = 1
    return context


def client_context(identity: Identity, expected_der: bytes) -> ssl.SSLContext:
    """Make a context that talks to exactly one peer: an impostor fails the handshake, before a request byte is sent.

    Raise `InvalidSignature` if `expected_der` is not a node's certificate.
    """
    context = _ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the key is checked, which says more than a name
    _prepare(context, identity)
    trust(context, expected_der)
    return context


class _ResumingContext(ssl.SSLContext):
    """TLS context that resumes its last session (RFC 8446, 2.2): both ends prove their keys only once.

    This saves a signature and a verification at each end. A peer that has forgotten the session, or was restarted, asks for the
    whole handshake. Sessions belong to this context alone, so none can be shown to another peer.
    """

    _last_object: ssl.SSLObject | None = None
    _session: ssl.SSLSession | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002 (the standard library's)
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Make the TLS object of a connection, with the newest session for which the peer has given a ticket."""
        self._learn()
        self._last_object = super().wrap_bio(
            incoming, outgoing, server_side, server_hostname, session or self._session
        )
        return self._last_object

    def _learn(self) -> None:
        if self._last_object is None or self._last_object.session_reused:
            return  # what is known still serves, and reading a session costs as much as resuming it saves
        try:
            session = self._last_object.session
        except ValueError:
            # A failed handshake leaves a session that cannot be serialized.
            return
        if session is not None and session.has_ticket:
            self._session = session


def trust(context: ssl.SSLContext, der: bytes) -> PeerId:
    """Admit a peer from now on, connections in the making included; return its id.

    The caller compares the result with the expected peer, or checks before. A context cannot forget a peer: one that must not
    be served any more is refused by peer id, request by request.
    """
    peer = peer_of_certificate(der)
    context.load_verify_locations(cadata=der)
    return peer


def _prepare(context: ssl.SSLContext, identity: Identity) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _ANY_TIME
    # The standard library reads keys only from files; the one that exists for a moment is encrypted, as it may be on a disk.
    password = token_bytes(24).hex().encode()
    private = Ed25519PrivateKey.from_private_bytes(identity.seed)
    bundle = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    ) + _certificate(identity).public_bytes(serialization.Encoding.PEM)
    with _file_with(bundle) as path:
        context.load_cert_chain(path, password=password)


@contextmanager
def _file_with(content: bytes) -> Iterator[str]:
    """Make a file for the block: in memory on Linux, as the directory for temporary files may be full or read-only."""
    if sys.platform != "linux":
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
        return
    file_descriptor = os.memfd_create("certificate")
    with os.fdopen(file_descriptor, "wb") as memory:
        memory.write(content)
        memory.flush()
        yield f"/proc/self/fd/{file_descriptor}"


def _certificate(identity: Identity) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.peer)])
    # RFC 5280, 4.1.2.2: a positive number of at most 20 octets.
    serial = int.from_bytes(sha256(b"modelvine certificate" + identity.public).digest()[:19]) + 1
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(Ed25519PublicKey.from_public_bytes(identity.public))
        .serial_number(serial)
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return builder.sign(Ed25519PrivateKey.from_private_bytes(identity.seed), None)


SHARED = "modelvine-yamux/1"
"""ALPN protocol that a node offers if it shares connections among requests."""


def offer_sharing(context: ssl.SSLContext) -> None:
    """Let connections of this context be shared, if the other side offers it too."""
    context.set_alpn_protocols([SHARED, "http/1.1"])


class NegotiatingProtocol(asyncio.Protocol):
    """Protocol of a connection until its handshake has said what it carries; then `protocol` takes its place."""

    def __init__(self, alone: Factory, shared: Callable[[], MuxedConnection]) -> None:
        self._alone, self._shared = alone, shared
        self.protocol: StreamProtocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Choose the protocol that the handshake has selected, and hand the connection over to it."""
        secured = transport.get_extra_info("ssl_object")
        shared = secured is not None and secured.selected_alpn_protocol() == SHARED
        self.protocol = self._shared() if shared else self._alone()
        taking_over = cast("asyncio.BaseProtocol", self.protocol)
        cast("asyncio.Transport", transport).set_protocol(taking_over)
        self.protocol.connection_made(transport)
