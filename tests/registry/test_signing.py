"""Keys, peer ids and signatures: one key has one id, and no other signature, purpose or spelling counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

from registry.errors import InvalidFrame, InvalidSignature
from registry.signing import KEY_BYTES, Identity, peer_of, public_of, verify
from tests.strategies import IDENTITIES, identities

SEEDS = st.binary(min_size=32, max_size=32)
ME, OTHER = IDENTITIES[:2]


@given(SEEDS)
def test_a_peer_id_is_the_one_that_libp2p_gives_the_same_key(seed: bytes) -> None:
    assert Identity(seed).peer == ID.from_pubkey(create_new_key_pair(seed).public_key).to_base58()


@given(SEEDS)
def test_a_peer_id_gives_its_key_back(seed: bytes) -> None:
    me = Identity(seed)
    assert public_of(me.peer) == me.public
    assert peer_of(me.public) == me.peer


@given(st.binary(max_size=200), st.binary(max_size=20))
def test_a_signature_of_ours_verifies(body: bytes, domain: bytes) -> None:
    verify(ME.public, domain, body, ME.sign(domain, body))


def test_a_signature_for_one_purpose_is_worthless_for_another() -> None:
    with pytest.raises(InvalidSignature):
        verify(ME.public, b"heartbeat\0", b"body", ME.sign(b"record\0", b"body"))


def test_a_signature_of_another_key_is_refused() -> None:
    with pytest.raises(InvalidSignature):
        verify(ME.public, b"record\0", b"body", OTHER.sign(b"record\0", b"body"))


@given(st.integers(0, 64 * 8 - 1))
def test_a_signature_with_any_bit_changed_is_refused(bit: int) -> None:
    signature = bytearray(ME.sign(b"d", b"body"))
    signature[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidSignature):
        verify(ME.public, b"d", b"body", bytes(signature))


@given(st.binary(max_size=80), identities.map(lambda identity: identity.public))
def test_a_signature_that_is_noise_is_refused(noise: bytes, key: bytes) -> None:
    with pytest.raises(InvalidSignature):
        verify(key, b"d", b"body", noise)


@pytest.mark.parametrize("size", [0, KEY_BYTES - 1, KEY_BYTES + 1])
def test_a_key_of_another_length_has_no_peer_id(size: int) -> None:
    with pytest.raises(InvalidSignature):
        peer_of(bytes(size))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0OIl",
        "12D3KooW",
        ME.peer[:-1],
        ME.peer + "1",
        ME.peer + " ",
        ME.peer + "\n",
        "1" + ME.peer,
        "Qm" + ME.peer,
        "é" * 52,
        "1" * 10_000_000,
        # A secp256k1 key's id and a SHA-256 (RSA) one: real ids, but of keys that do not sign here.
        "16Uiu2HAmB5P8HLV9jSQmbqyE3aAHTATtdzbVnFUzYGTL7QpfWqQ7",
        "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
    ],
)
def test_a_text_that_is_not_exactly_an_ed25519_peer_id_holds_no_key(text: str) -> None:
    with pytest.raises(InvalidSignature):
        public_of(text)


@given(st.text(max_size=80))
def test_any_text_is_a_peer_id_or_an_invalid_frame(text: str) -> None:
    try:
        assert peer_of(public_of(text)) == text
    except InvalidFrame:
        assert text not in {identity.peer for identity in IDENTITIES}


def test_an_identity_shows_its_id_and_never_its_seed() -> None:
    assert repr(ME) == f"Identity({ME.peer})"
