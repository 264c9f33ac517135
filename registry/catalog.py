"""Which word of every node is the newest? The replicated map from node to record, and who offers a model.

One writer per key, and merging keeps the greater word, so it is commutative, associative and idempotent whatever the
order of delivery. Expiry is deliberately not part of merging: clocks differ between nodes, merge results must not.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from registry.records import PeerId, Record, Service, Standing

_DIGEST_MODULUS = 1 << 256


@dataclass(frozen=True)
class Signed:
    """A record together with the exact bytes that its owner signed; both are kept, stored and passed on."""

    record: Record
    frame: bytes

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of the frame: tells two words of the same version apart."""
        return hashlib.sha256(self.frame).digest()


@dataclass(frozen=True, slots=True)
class Offer:
    """One node serves one replica of a model."""

    node: PeerId
    service: Service


def newer(a: Signed, b: Signed) -> Signed:
    """Choose between two words of one node. Equal versions with unlike bytes are ordered by fingerprint."""
    return max(a, b, key=lambda signed: (signed.record.version, signed.fingerprint))


def names_of(service: Service) -> tuple[str, str]:
    """Return the names under which clients may ask for a service: `MODEL` and `PROJECT/MODEL`."""
    return service.model, f"{service.project}/{service.model}"


@dataclass(frozen=True, slots=True)
class Catalog:
    """An immutable snapshot; readers never see it half-changed."""

    held: Mapping[PeerId, Signed] = field(
        default_factory=lambda: MappingProxyType(dict[PeerId, Signed]())
    )
    offers: Mapping[str, frozenset[Offer]] = field(
        default_factory=lambda: MappingProxyType(dict[str, frozenset[Offer]]())
    )
    total: int = 0

    @property
    def digest(self) -> str:
        """Equal digests mean equal registries: the sum of all fingerprints modulo 2^256, in hex."""
        return f"{self.total:064x}"

    def merge(self, incoming: Iterable[Signed]) -> "Catalog":
        """Fold records in; return `self` when they teach us nothing."""
        news: dict[PeerId, Signed] = {}
        for signed in incoming:
            node = signed.record.node
            known = news.get(node) or self.held.get(node)
            if known is None or newer(known, signed).frame != known.frame:
                news[node] = signed
        if not news:
            return self
        total, offers = self.total, dict(self.offers)
        for node, signed in news.items():
            before = self.held.get(node)
            total += _weight(signed) - (_weight(before) if before else 0)
            _reindex(offers, node, _offered(before), _offered(signed))
        return replace(
            self,
            held=MappingProxyType({**self.held, **news}),
            offers=MappingProxyType(offers),
            total=total % _DIGEST_MODULUS,
        )

    def without(self, node: PeerId) -> "Catalog":
        """Forget a node altogether, to make room under a limit; merging alone never forgets."""
        gone = self.held.get(node)
        if gone is None:
            return self
        offers = dict(self.offers)
        _reindex(offers, node, _offered(gone), frozenset())
        return replace(
            self,
            held=MappingProxyType({n: s for n, s in self.held.items() if n != node}),
            offers=MappingProxyType(offers),
            total=(self.total - _weight(gone)) % _DIGEST_MODULUS,
        )


def _weight(signed: Signed) -> int:
    return int.from_bytes(signed.fingerprint)


def _offered(signed: Signed | None) -> frozenset[Service]:
    if signed is None or signed.record.standing is Standing.LEFT:
        return frozenset()
    return frozenset(signed.record.services)


def _reindex(
    offers: dict[str, frozenset[Offer]],
    node: PeerId,
    before: frozenset[Service],
    after: frozenset[Service],
) -> None:
    for service in before - after:
        for name in names_of(service):
            left = offers[name] - {Offer(node, service)}
            if left:
                offers[name] = left
            else:
                del offers[name]
    for service in after - before:
        for name in names_of(service):
            offers[name] = offers.get(name, frozenset()) | {Offer(node, service)}
