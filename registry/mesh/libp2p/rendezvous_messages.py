"""Codec for the messages of libp2p's rendezvous protocol, and for the signed peer records that they carry.

The library implements an older form of the messages, with bare addresses in a registration. The specification (r3) has put a
signed record in their place, under the same field number. Bytes that cannot be read raise `ValueError`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from libp2p.crypto.keys import PrivateKey
from libp2p.peer.envelope import ENVELOPE_DOMAIN, consume_envelope, seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from registry.mesh.libp2p.guards import as_value_error

MAX_RECORD_BYTES = 1_536
"""Longest signed peer record: some twenty addresses. All records of one answer fit into one message."""

NO_COOKIE = bytes(8)
"""Cookie of an answer, which other implementations expect. A request's cookie is ignored: every answer is drawn anew."""

_NUMBER, _BYTES = 0, 2
"""Wire types of the protobuf fields in these messages."""

_SIZES = {1: 8, 5: 4}
"""Wire types that are skipped, with their sizes in bytes."""


class RendezvousStatus(IntEnum):
    """Status of a point's answer to a request."""

    OK = 0
    E_INVALID_NAMESPACE = 100
    E_INVALID_SIGNED_PEER_RECORD = 101
    E_INVALID_TTL = 102
    E_UNAVAILABLE = 400


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """Request to be remembered under a name for `seconds`, or as long as the point likes; also a row of an answer."""

    name: str
    record: bytes
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class UnregisterRequest:
    """Request to be forgotten under a name; it has no answer."""

    name: str


@dataclass(frozen=True, slots=True)
class DiscoverRequest:
    """Request for the nodes that are registered under a name, at most `limit` where that is above 0."""

    name: str
    limit: int = 0


@dataclass(frozen=True, slots=True)
class RegisterAnswer:
    """Answer to a registration; `seconds` is how long it holds."""

    status: int
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class DiscoverAnswer:
    """Answer to `DiscoverRequest`; each row is a registered node."""

    status: int
    rows: tuple[RegisterRequest, ...] = ()


RendezvousRequest = RegisterRequest | UnregisterRequest | DiscoverRequest
RendezvousAnswer = RegisterAnswer | DiscoverAnswer


@dataclass(frozen=True, slots=True)
class PeerClaim:
    """Addresses at which a peer says that it can be dialled; of two claims, the greater sequence is newer."""

    peer: bytes
    sequence: int
    addresses: tuple[bytes, ...]


def encode_message(message: RendezvousRequest | RendezvousAnswer) -> bytes:
    """Encode a message. Zeros are written too: other implementations tell a status of 0 from none."""
    match message:
        case RegisterRequest():
            return _number(1, 0) + _part(2, _row(message))
        case RegisterAnswer(status, seconds):
            return _number(1, 1) + _part(3, _number(1, status) + _number(3, seconds))
        case UnregisterRequest(name):
            return _number(1, 2) + _part(4, _part(1, name.encode()))
        case DiscoverRequest(name, limit):
            return _number(1, 3) + _part(5, _part(1, name.encode()) + _number(2, limit))
        case DiscoverAnswer(status, rows):
            encoded = b"".join(_part(1, _row(row)) for row in rows)
            return _number(1, 4) + _part(6, encoded + _part(2, NO_COOKIE) + _number(3, status))


def decode_request(body: bytes) -> RendezvousRequest:
    """Decode a client's request; raise `ValueError`."""
    fields = _Fields(body)
    match fields.number(1):
        case 0:
            return _registering(fields.part(2))
        case 2:
            return UnregisterRequest(fields.of(4).text(1))
        case 3:
            query = fields.of(5)
            return DiscoverRequest(query.text(1), query.number(2))
    raise ValueError("no request")


def decode_answer(body: bytes) -> RendezvousAnswer:
    """Decode a point's answer; raise `ValueError`."""
    fields = _Fields(body)
    match fields.number(1):
        case 1:
            registered = fields.of(3)
            return RegisterAnswer(registered.number(1), registered.number(3))
        case 4:
            discovered = fields.of(6)
            rows = tuple(map(_registering, discovered.parts(1)))
            return DiscoverAnswer(discovered.number(3), rows)
    raise ValueError("no answer")


def sign_peer_record(key: PrivateKey, addresses: list[Multiaddr]) -> bytes:
    """Return a signed record of addresses; its sequence is the wall clock's nanoseconds."""
    record = PeerRecord(ID.from_pubkey(key.get_public_key()), addresses)
    return bytes(seal_record(record, key).marshal_envelope())


def verify_claim(record: bytes) -> PeerClaim:
    """Return the claim in a signed record; raise `ValueError` unless the peer that it names has signed it."""
    if not 0 < len(record) <= MAX_RECORD_BYTES:
        raise ValueError("a signed peer record of a wrong size")
    with as_value_error("no signed peer record"):
        envelope, peer_record = consume_envelope(record, ENVELOPE_DOMAIN)
        signer = ID.from_pubkey(envelope.public_key)
    if signer != peer_record.peer_id:
        raise ValueError("a peer record that another peer has signed")
    addresses = tuple(address.to_bytes() for address in peer_record.addrs)
    return PeerClaim(signer.to_bytes(), peer_record.seq, addresses)


def unsigned_claim_of(info: bytes) -> PeerClaim:
    """Return the claim in a peer's bare addresses, as sent by points that are older than the signed records."""
    fields = _Fields(info)
    return PeerClaim(fields.part(1), 0, tuple(fields.parts(2)))


class _Fields:
    """Fields of one protobuf message. A missing field counts as zero or empty; of several, the last one counts."""

    def __init__(self, body: bytes) -> None:
        self._found: list[tuple[int, int | bytes]] = list(_fields(body))

    def number(self, field: int) -> int:
        values = [v for number, v in self._found if number == field and isinstance(v, int)]
        return values[-1] if values else 0

    def parts(self, field: int) -> list[bytes]:
        return [v for number, v in self._found if number == field and isinstance(v, bytes)]

    def part(self, field: int) -> bytes:
        return (self.parts(field) or [b""])[-1]

    def text(self, field: int) -> str:
        return self.part(field).decode()

    def of(self, field: int) -> "_Fields":
        return _Fields(self.part(field))

    def __contains__(self, field: int) -> bool:
        return any(number == field for number, _ in self._found)


def _registering(body: bytes) -> RegisterRequest:
    fields = _Fields(body)
    seconds = fields.number(3) if 3 in fields else None
    return RegisterRequest(fields.text(1), fields.part(2), seconds)


def _row(row: RegisterRequest) -> bytes:
    seconds = b"" if row.seconds is None else _number(3, row.seconds)
    return _part(1, row.name.encode()) + _part(2, row.record) + seconds


def _number(field: int, value: int) -> bytes:
    # Two's complement in 64 bits, as protobuf encodes negative numbers.
    return encode_uvarint(field << 3 | _NUMBER) + encode_uvarint(value % 2**64)


def _part(field: int, body: bytes) -> bytes:
    return encode_uvarint(field << 3 | _BYTES) + encode_uvarint(len(body)) + body


def _fields(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    offset = 0
    while offset < len(body):
        tag, offset = _varint(body, offset)
        if tag & 7 == _NUMBER:
            value, offset = _varint(body, offset)
            yield tag >> 3, value - 2**64 if value >= 2**63 else value
            continue
        if tag & 7 == _BYTES:
            size, offset = _varint(body, offset)
        else:
            size = _SIZES.get(tag & 7, len(body))
        if size > len(body) - offset:
            raise ValueError("a field that is cut off, or of no known kind")
        if tag & 7 == _BYTES:
            yield tag >> 3, body[offset : offset + size]
        offset += size


def _varint(body: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(body[offset : offset + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80 and value < 2**64:
            return value, offset + index + 1
    raise ValueError("a number that is cut off, or too long")
