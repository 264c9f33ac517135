"""Ed25519 signatures over exact bytes, and the peer id that a key implies.

A peer id carries its own public key (the libp2p specification's identity multihash), so a signature can be checked
with nothing but the id. Every signature covers a domain tag: one made for one purpose is worthless for another.
"""

from functools import lru_cache

import base58
from cryptography.exceptions import InvalidSignature as BadSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from registry.errors import InvalidSignature
from registry.records import PeerId

KEY_BYTES = 32
SIGNATURE_BYTES = 64

# libp2p's peer-ids specification: multihash "identity" (0x00) of length 36 over the protobuf
# PublicKey{Type: Ed25519, Data: 32 bytes}.
_ID_PREFIX = bytes.fromhex("002408011220")
ID_HEAD = "12D3KooW"
"""Beginning of the text of every peer id; it follows from the prefix alone."""

# The points of order 1, 2, 4 and 8 in every encoding, sign bit aside. For such a key, anyone can make a signature without
# a secret for one message in a few, so it identifies no node.
_WEAK_KEYS = frozenset(
    bytes.fromhex(spelling)
    for spelling in (
        f"{0:064x}",
        f"01{0:062x}",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        f"ec{'ff' * 30}7f",
        f"ed{'ff' * 30}7f",
        f"ee{'ff' * 30}7f",
    )
)


@lru_cache(maxsize=16_384)
def peer_of(public: bytes) -> PeerId:
    """Return the peer id of a raw 32-byte Ed25519 public key."""
    if len(public) != KEY_BYTES:
        raise InvalidSignature(f"a public key has {KEY_BYTES} bytes, not {len(public)}")
    if public[:-1] + bytes((public[-1] & 0x7F,)) in _WEAK_KEYS:
        raise InvalidSignature("this key is unsafe: anyone can sign for it")
    return PeerId(base58.b58encode(_ID_PREFIX + public).decode())


@lru_cache(maxsize=16_384)
def public_of(peer: str) -> bytes:
    """Return the raw public key inside a peer id; raise `InvalidSignature` when it holds none."""
    if len(peer) > 64:
        raise InvalidSignature("a peer id has at most 64 characters")
    try:
        decoded = base58.b58decode(peer)
    except ValueError as error:
        raise InvalidSignature(f"{peer!r} is not a peer id") from error
    if len(decoded) != len(_ID_PREFIX) + KEY_BYTES or not decoded.startswith(_ID_PREFIX):
        raise InvalidSignature(f"{peer!r} is not the id of an Ed25519 key")
    public = decoded[len(_ID_PREFIX) :]
    # The decoder ignores white space; two spellings of one id would be two nodes with one key.
    if peer_of(public) != peer:
        raise InvalidSignature(f"{peer!r} is not a canonical peer id")
    return public


class Identity:
    """This node's key, which signs, and the peer id that it implies."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.seed = seed
        self.public = self._key.public_key().public_bytes_raw()
        self.peer = peer_of(self.public)

    def __repr__(self) -> str:
        return f"Identity({self.peer})"

    def sign(self, domain: bytes, body: bytes) -> bytes:
        """Sign `body` for the one purpose that `domain` names."""
        return self._key.sign(domain + body)


def verify(public: bytes, domain: bytes, body: bytes, signature: bytes) -> None:
    """Raise `InvalidSignature` unless the key signed exactly this body for exactly this purpose."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, domain + body)
    except (BadSignature, ValueError) as error:
        raise InvalidSignature(f"the signature is not {peer_of(public)}'s") from error
