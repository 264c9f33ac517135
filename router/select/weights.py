"""Weights of candidates: slots, fullness, and choices that stay where they are while load allows it.

Slots are what a worker was registered with or what its node reported. Where not all candidates' slots are known, all
count alike: a guess for one would be a preference for or against it.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b

from registry.clock import Chance
from registry.records import PeerId, Service
from router.select.candidates import Candidate

SLACK = 1.25
"""How much more than its share of all requests a machine may have and still be preferred."""

GRACE = 2.0
"""Requests beyond that, so that among idle machines a single request moves nobody."""

_UNIT = 2.0**-64


def weights(candidates: Sequence[Candidate]) -> Sequence[int]:
    """Return each candidate's part of the load: its slots, or 1 for all when somebody's are not known."""
    found = [candidate.slots for candidate in candidates]
    return found if all(found) else [1] * len(found)


def draw(weights: Sequence[int], random: Chance) -> int:
    """Draw a place, each as often as its weight says."""
    at = random() * sum(weights)
    for place, weight in enumerate(weights):
        at -= weight
        if at < 0:
            return place
    return len(weights) - 1


def rendezvous(key: bytes, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Order candidates by key: every node alike, each first as often as its weight says, and whoever goes moves its own only."""
    salt = blake2b(key, digest_size=32).digest()

    def rank(weighted: tuple[Candidate, int]) -> float:
        candidate, weight = weighted
        service = candidate.service
        place = f"{candidate.node}\0{service.project}\0{service.model}\0{service.cid}"
        drawn = int.from_bytes(blake2b(place.encode(), key=salt, digest_size=8).digest(), "big")
        return math.log((drawn + 1) * _UNIT) / weight

    ranked = sorted(zip(candidates, weights(candidates), strict=True), key=rank, reverse=True)
    return [candidate for candidate, _ in ranked]


def with_room_first(preferred: Sequence[Candidate]) -> list[Candidate]:
    """Move those that are crowded behind the others; else the order stays."""
    full = crowded(preferred)
    return sorted(preferred, key=lambda c: c.key in full) if full else list(preferred)


def crowded(candidates: Sequence[Candidate]) -> set[tuple[PeerId, Service]]:
    """Return who has far more than its share of all requests, or no free slot while somebody has one."""
    parts = weights(candidates)
    share = SLACK * sum(c.expected for c in candidates) / (sum(parts) or 1)
    # Where slots are not known, only who has nothing to do is sure to have one.
    free = any(c.expected < (c.slots or 1) for c in candidates)
    return {
        c.key
        for c, part in zip(candidates, parts, strict=True)
        if c.expected >= share * part + GRACE or (free and 0 < c.slots <= c.expected)
    }
