"""Rendezvous hashing: an order of candidates by a key, the same on every node. A replica that goes moves only its own keys."""

import math
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from registry.records import PeerId, Service
from router.requests import Request
from router.select.candidates import Candidate

_STEP = 4
_MASK = 2**64 - 1
_UNIT = 2.0**-64


def conversation_key(request: Request) -> bytes:
    """Return the key of a request's conversation: its caller's name for it, else that of its first words; empty if none."""
    return request.session.encode() or request.prefixes.key


def order_by_key(key: bytes, candidates: Sequence[Candidate], parts: Sequence[float]) -> list[int]:
    """Return the indices of candidates in a key's order; each is first in proportion to its part of all requests.

    Each part is rounded to the nearest power of four, so that keys seldom move though nodes learn all the time.
    """
    salt = hash_key(key)
    scores = [
        math.log((_mix_bits(salt ^ hash_replica(c.node, c.service)) + 1) * _UNIT)
        / float(_STEP) ** round(math.log(part, _STEP))
        for c, part in zip(candidates, parts, strict=True)
    ]
    return sorted(range(len(candidates)), key=scores.__getitem__, reverse=True)


def hash_key(key: bytes) -> int:
    """Return a 64-bit hash of a key, the same on every node."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


@lru_cache(maxsize=4_096)
def hash_replica(node: PeerId, service: Service) -> int:
    """Return a 64-bit hash of a replica, the same on every node."""
    return hash_key(f"{node}\0{service.project}\0{service.model}\0{service.cid}".encode())


def _mix_bits(bits: int) -> int:
    """Mix 64 bits, as the last steps of SplitMix64 do, which suffices: nobody gains by a collision."""
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & _MASK
    return bits ^ (bits >> 31)
