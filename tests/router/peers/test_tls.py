import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from registry.errors import InvalidSignature
from registry.records import PeerId
from registry.signing import Identity
from router.peers import tls
from router.peers.tls import (
    certificate_of,
    client_context,
    peer_of_certificate,
    server_context,
    trust,
)

ADA, BOB, EVE = (Identity(bytes([number]) * 32) for number in (1, 2, 3))


class Listener:
    """A TLS listener that tells each caller the caller's peer id, and records what it was sent."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.heard: list[bytes] = []
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return
            with plain:
                plain.settimeout(5)
                self._answer(plain)

    def _answer(self, plain: socket.socket) -> None:
        try:
            with self._context.wrap_socket(plain, server_side=True) as secure:
                self.heard.append(secure.recv(100))
                der = secure.getpeercert(binary_form=True)
                assert der is not None
                secure.sendall(peer_of_certificate(der).encode())
        except (ssl.SSLError, ConnectionError) as error:
            self.failed.append(type(error).__name__)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=5)


@contextmanager
def listening(context: ssl.SSLContext) -> Iterator[Listener]:
    listener = Listener(context)
    try:
        yield listener
    finally:
        listener.close()


def ask(listener: Listener, context: ssl.SSLContext) -> PeerId:
    with (
        socket.create_connection(("127.0.0.1", listener.port), timeout=5) as plain,
        context.wrap_socket(plain) as secure,
    ):
        secure.sendall(b"who am I?")
        return PeerId(secure.recv(100).decode())


def trusting(owner: Identity, *others: Identity) -> ssl.SSLContext:
    context = server_context(owner)
    for other in others:
        trust(context, certificate_of(other))
    return context


def test_one_key_always_gives_the_same_certificate() -> None:
    assert certificate_of(ADA) == certificate_of(Identity(bytes([1]) * 32))
    assert certificate_of(ADA) != certificate_of(BOB)


def test_a_certificate_names_the_peer_whose_key_it_holds() -> None:
    assert peer_of_certificate(certificate_of(ADA)) == ADA.peer


def test_both_sides_learn_the_peer_id_of_the_other() -> None:
    with listening(trusting(ADA, BOB)) as listener:
        assert ask(listener, client_context(BOB, certificate_of(ADA))) == BOB.peer


@pytest.mark.parametrize("year", [1990, 2200])
def test_nodes_with_a_wrong_clock_connect(monkeypatch: pytest.MonkeyPatch, year: int) -> None:
    monkeypatch.setattr(tls, "_NOT_BEFORE", datetime(year, 1, 1, tzinfo=UTC))
    monkeypatch.setattr(tls, "_NOT_AFTER", datetime(year + 1, 1, 1, tzinfo=UTC))
    with listening(trusting(ADA, BOB)) as listener:
        assert ask(listener, client_context(BOB, certificate_of(ADA))) == BOB.peer


def test_nodes_whose_directory_for_temporary_files_is_gone_connect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with listening(trusting(ADA, BOB)) as listener:
        assert ask(listener, client_context(BOB, certificate_of(ADA))) == BOB.peer


def test_an_impostor_is_refused_before_a_byte_of_the_request_is_sent() -> None:
    with listening(trusting(EVE, BOB)) as listener, pytest.raises(ssl.SSLCertVerificationError):
        ask(listener, client_context(BOB, certificate_of(ADA)))
    assert listener.heard == []


def test_an_unknown_caller_gets_no_answer_and_its_bytes_are_not_read() -> None:
    with listening(trusting(ADA, BOB)) as listener, pytest.raises((ssl.SSLError, ConnectionError)):
        ask(listener, client_context(EVE, certificate_of(ADA)))
    assert listener.heard == []
    assert listener.failed


def test_the_bytes_of_a_caller_without_a_certificate_are_not_read() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate_of(ADA))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    with listening(trusting(ADA, BOB)) as listener, pytest.raises((ssl.SSLError, ConnectionError)):
        ask(listener, context)
    assert listener.heard == []


def test_a_peer_that_becomes_trusted_while_the_listener_runs_is_answered() -> None:
    context = trusting(ADA, BOB)
    with listening(context) as listener:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(listener, client_context(EVE, certificate_of(ADA)))
        trust(context, certificate_of(EVE))
        assert ask(listener, client_context(EVE, certificate_of(ADA))) == EVE.peer


def test_tls_versions_before_1_3_are_disabled() -> None:
    context = client_context(BOB, certificate_of(ADA))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert server_context(ADA).minimum_version == ssl.TLSVersion.TLSv1_3


def forged(
    *,
    key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey,
    signer: Ed25519PrivateKey | ec.EllipticCurvePrivateKey,
    ca: bool | None = False,
    more: x509.ExtensionType | None = None,
) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ADA.peer)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2120, 1, 1, tzinfo=UTC))
    )
    if ca is not None:
        builder = builder.add_extension(
            x509.BasicConstraints(ca=ca, path_length=None), critical=True
        )
    if more is not None:
        builder = builder.add_extension(more, critical=False)
    algorithm = None if isinstance(signer, Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(signer, algorithm).public_bytes(serialization.Encoding.DER)


EDWARDS = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
CURVE = ec.generate_private_key(ec.SECP256R1())


def odd(oid: str, value: str) -> bytes:
    """Return a certificate with an extension that the library cannot read."""
    extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), bytes.fromhex(value))
    return forged(key=EDWARDS, signer=EDWARDS, more=extension)


VERSION_3, VERSION_6 = bytes.fromhex("a003020102"), bytes.fromhex("a003020105")


@pytest.mark.parametrize(
    "der",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(certificate_of(ADA).replace(VERSION_3, VERSION_6), id="version 6"),
        pytest.param(odd("2.5.29.17", "3002a300"), id="a name of an unsupported type"),
        pytest.param(odd("1.3.6.1.5.5.7.1.24", "300702050100000000"), id="an odd TLS feature"),
        pytest.param(b"\x30" * 300, id="noise"),
        pytest.param(b"\x00" * 5000, id="too long"),
        pytest.param(certificate_of(ADA)[:-1], id="cut short"),
        pytest.param(certificate_of(ADA) + b"\x00", id="trailing bytes"),
        pytest.param(certificate_of(ADA)[:-1] + b"\x00", id="broken signature"),
        pytest.param(forged(key=CURVE, signer=CURVE), id="another kind of key"),
        pytest.param(forged(key=EDWARDS, signer=OTHER), id="signed by another key"),
        pytest.param(forged(key=EDWARDS, signer=EDWARDS, ca=True), id="an authority"),
        pytest.param(forged(key=EDWARDS, signer=EDWARDS, ca=None), id="perhaps an authority"),
    ],
)
def test_an_invalid_node_certificate_is_refused_everywhere(der: bytes) -> None:
    with pytest.raises(InvalidSignature):
        peer_of_certificate(der)
    with pytest.raises(InvalidSignature):
        trust(server_context(ADA), der)
    with pytest.raises(InvalidSignature):
        client_context(BOB, der)


def shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends of a new connection, after the first byte from the server."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    client_end = client.wrap_bio(to_client, to_server)
    for _ in range(3):
        for end in (client_end, server_end):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    server_end.write(b"x")
    assert client_end.read() == b"x"
    return server_end, client_end


def serving(identity: Identity, *callers: Identity) -> ssl.SSLContext:
    context = server_context(identity)
    for caller in callers:
        trust(context, certificate_of(caller))
    return context


def shown(end: ssl.SSLObject) -> PeerId:
    der = end.getpeercert(binary_form=True)
    assert der is not None
    return peer_of_certificate(der)


def test_later_connections_resume_the_session_with_the_same_peer_ids() -> None:
    server, client = serving(ADA, BOB), client_context(BOB, certificate_of(ADA))
    resumed = []
    for _ in range(4):
        server_end, client_end = shaken(server, client)
        assert (shown(server_end), shown(client_end)) == (BOB.peer, ADA.peer)
        resumed.append(client_end.session_reused)
    assert resumed == [False, True, True, True]


def test_a_restarted_peer_gets_a_full_handshake() -> None:
    client = client_context(BOB, certificate_of(ADA))
    shaken(serving(ADA, BOB), client)
    again = serving(ADA, BOB)
    assert not shaken(again, client)[1].session_reused
    assert shaken(again, client)[1].session_reused


def test_session_resumption_does_not_bypass_the_check_of_the_peers_key() -> None:
    client = client_context(BOB, certificate_of(ADA))
    shaken(serving(ADA, BOB), client)
    with pytest.raises(ssl.SSLError):
        shaken(serving(EVE, BOB), client)


def test_the_handshake_after_a_failed_one_is_full() -> None:
    client = client_context(BOB, certificate_of(ADA))
    with pytest.raises(ssl.SSLError):
        shaken(serving(EVE, BOB), client)
    assert not shaken(serving(ADA, BOB), client)[1].session_reused
