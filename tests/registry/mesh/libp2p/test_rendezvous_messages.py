"""Messages of the rendezvous protocol as its specification writes them, and records that only their own peer can sign."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.discovery.rendezvous.pb import rendezvous_pb2
from libp2p.peer.envelope import Envelope, make_unsigned, seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from multiaddr import Multiaddr

from registry.mesh.libp2p.rendezvous import (
    LONGEST_SECONDS,
    MAX_DISCOVERED,
    MAX_MESSAGE_BYTES,
    MAX_NAME_BYTES,
)
from registry.mesh.libp2p.rendezvous_messages import (
    MAX_RECORD_BYTES,
    DiscoverAnswer,
    DiscoverRequest,
    PeerClaim,
    RegisterAnswer,
    RegisterRequest,
    RendezvousAnswer,
    RendezvousRequest,
    RendezvousStatus,
    UnregisterRequest,
    decode_answer,
    decode_request,
    encode_message,
    sign_peer_record,
    unsigned_claim_of,
    verify_claim,
)

THERE = Multiaddr("/ip4/192.0.2.7/tcp/6101")
OURS, OTHERS = create_new_key_pair(bytes(range(32))), create_new_key_pair(bytes(32))


def peer_of(pair: KeyPair) -> ID:
    return ID.from_pubkey(pair.public_key)


def signed(pair: KeyPair, record: PeerRecord) -> bytes:
    return bytes(seal_record(record, pair.private_key).marshal_envelope())


def test_messages_are_written_as_the_specification_has_them() -> None:
    # Zeros are written too: other implementations tell a status of 0 from none.
    registering = b"\x08\x00\x12\x0a\x0a\x01a\x12\x03xyz\x18\x05"
    assert encode_message(RegisterRequest("a", b"xyz", 5)) == registering
    assert (
        encode_message(RegisterAnswer(RendezvousStatus.OK)) == b"\x08\x01\x1a\x04\x08\x00\x18\x00"
    )


names, numbers = st.text(max_size=9), st.integers(-(2**63), 2**63 - 1)
rows = st.builds(RegisterRequest, names, st.binary(max_size=9), st.none() | numbers)
requests = rows | st.builds(UnregisterRequest, names) | st.builds(DiscoverRequest, names, numbers)
answers = st.builds(RegisterAnswer, numbers, numbers) | st.builds(
    DiscoverAnswer, numbers, st.lists(rows, max_size=3).map(tuple)
)


@given(requests, answers)
def test_messages_are_read_back_as_they_were_written(
    request_: RendezvousRequest, answer: RendezvousAnswer
) -> None:
    assert decode_request(encode_message(request_)) == request_
    assert decode_answer(encode_message(answer)) == answer


@given(rows)
def test_the_librarys_reader_of_older_messages_agrees(row: RegisterRequest) -> None:
    peer = rendezvous_pb2.Message.PeerInfo(id=b"p", addrs=[b"q"]).SerializeToString()
    body = encode_message(RegisterRequest(row.name, peer, row.seconds))
    read = rendezvous_pb2.Message.FromString(body).register
    assert (read.ns, read.ttl) == (row.name, row.seconds or 0)
    assert (read.peer.id, *read.peer.addrs) == (b"p", b"q")


def test_fields_of_newer_versions_are_passed_over() -> None:
    newer = b"\x79" + bytes(8) + b"\x7d" + bytes(4) + b"\x82\x01\x02hi\xf8\x01\x07"
    assert decode_request(
        newer + encode_message(UnregisterRequest("a")) + newer
    ) == UnregisterRequest("a")


@given(st.binary(max_size=60))
@example(b"\x08" + b"\xff" * 10)
@example(b"\x0b\x0c")
@example(b"\x12\x0a\x0a")
@example(b"\x12\x03\x0a\x01\xff")
def test_garbage_is_read_or_refused_with_a_value_error(garbage: bytes) -> None:
    for read in (decode_request, decode_answer):
        with suppress(ValueError):
            read(garbage)


def test_the_fullest_answer_fits_one_message() -> None:
    row = RegisterRequest("x" * MAX_NAME_BYTES, bytes(MAX_RECORD_BYTES), LONGEST_SECONDS)
    fullest = DiscoverAnswer(RendezvousStatus.OK, (row,) * MAX_DISCOVERED)
    assert len(encode_message(fullest)) < MAX_MESSAGE_BYTES


def test_a_sealed_record_names_its_peer_and_the_later_one_has_the_greater_sequence() -> None:
    one, two = (verify_claim(sign_peer_record(OURS.private_key, [THERE])) for _ in range(2))
    assert one == PeerClaim(peer_of(OURS).to_bytes(), one.sequence, (THERE.to_bytes(),))
    assert two.sequence > one.sequence


def test_a_record_that_its_own_peer_has_not_signed_is_refused() -> None:
    about_us = PeerRecord(peer_of(OURS), [THERE])
    with pytest.raises(ValueError, match="another peer"):
        verify_claim(signed(OTHERS, about_us))
    honest = sign_peer_record(OURS.private_key, [THERE])
    for index in (40, len(honest) // 2, len(honest) - 1):
        changed = bytearray(honest)
        changed[index] ^= 1
        with pytest.raises(ValueError, match=r"."):
            verify_claim(bytes(changed))


def test_what_was_signed_for_another_purpose_is_no_record() -> None:
    payload = PeerRecord(peer_of(OURS), [THERE]).marshal_record()
    for domain, kind in (("another", b"\x03\x01"), ("libp2p-peer-record", b"\x03\x02")):
        signature = OURS.private_key.sign(make_unsigned(domain, kind, payload))
        envelope = Envelope(OURS.public_key, kind, payload, signature)
        with pytest.raises(ValueError, match=r"."):
            verify_claim(envelope.marshal_envelope())


def test_a_record_is_bounded() -> None:
    many = sign_peer_record(OURS.private_key, [THERE] * 200)
    assert len(many) > MAX_RECORD_BYTES
    with pytest.raises(ValueError, match="size"):
        verify_claim(many)


@given(st.binary(max_size=300))
@example(b"")
@example(b"\x0a\x02\x08\x09\x1a\x00")  # a key of an unknown kind
@example(b"\x0a\x04\x08\x00\x12\x00")  # an RSA key of no bytes
@example(b"\x0a\x04\x08\x02\x12\x00")
@example(b"\x0a\x04\x08\x01\x12\x00")
def test_garbage_is_never_read_as_a_record(garbage: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        verify_claim(garbage)


def test_the_bare_addresses_of_an_older_point_are_read_and_a_record_is_never_taken_for_them() -> (
    None
):
    peer = peer_of(OURS).to_bytes()
    info = rendezvous_pb2.Message.PeerInfo(id=peer, addrs=[THERE.to_bytes()])
    assert unsigned_claim_of(info.SerializeToString()) == PeerClaim(peer, 0, (THERE.to_bytes(),))
    forged = signed(OTHERS, PeerRecord(peer_of(OURS), [THERE]))
    assert peer != unsigned_claim_of(forged).peer
