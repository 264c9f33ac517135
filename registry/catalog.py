"""Catalog: the newest record of every node, and which nodes serve a model.

Each key has one writer, and merging keeps the newer record, so it is commutative, associative and idempotent whatever the
order of delivery. Expiry is deliberately not part of merging: clocks differ between nodes, merge results must not.

It is made of persistent maps: a change copies the part that it touches and shares all others. No I/O.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Generic, TypeVar, overload

from registry.records import SERVICE_TYPES, PeerId, Reach, Record, Service, service_type_name
from registry.signing import ID_HEAD

Key = TypeVar("Key")
Value = TypeVar("Value")
Other = TypeVar("Other")
Part = TypeVar("Part", bound=dict[Any, Any])


class PersistentMap(Mapping[Key, Value], Generic[Key, Value, Part]):
    """An immutable map. `index_of` returns the index of a key's part in `parts`; `make` copies a part that is to change."""

    __slots__ = ("_index_of", "_make", "_size", "parts")

    def __init__(
        self,
        parts: tuple[Part, ...],
        index_of: Callable[[Key], int],
        make: Callable[[Part], Part],
        size: int | None = None,
    ) -> None:
        self.parts = parts
        self._index_of = index_of
        self._make = make
        self._size = sum(map(len, parts)) if size is None else size

    def __getitem__(self, key: Key) -> Value:
        value: Value = self.parts[self._index_of(key)][key]
        return value

    @overload
    def get(self, key: Key) -> Value | None: ...
    @overload
    def get(self, key: Key, default: Value | Other) -> Value | Other: ...
    def get(self, key: Key, default: object = None) -> object:
        """Return the value at a key. The inherited method raises and catches an exception for a missing key."""
        value: object = self.parts[self._index_of(key)].get(key, default)
        return value

    def __iter__(self) -> Iterator[Key]:
        for part in self.parts:
            yield from part

    def __len__(self) -> int:
        return self._size

    def with_changes(
        self, put: Mapping[Key, Value], drop: Iterable[Key] = ()
    ) -> "PersistentMap[Key, Value, Part]":
        """Return a map with the entries of `put`, and without the keys of `drop`, which may be missing already."""
        index_of, make, parts, size = self._index_of, self._make, list(self.parts), self._size
        fresh: dict[int, Part] = {}
        for key in drop:
            number = index_of(key)
            if (part := fresh.get(number)) is None:
                part = fresh[number] = make(parts[number])
            part.pop(key, None)
        for key, value in put.items():
            number = index_of(key)
            if (part := fresh.get(number)) is None:
                part = fresh[number] = make(parts[number])
            part[key] = value
        if not fresh:
            return self
        for number, part in fresh.items():
            size += len(part) - len(parts[number])
            parts[number] = part
        return PersistentMap(tuple(parts), index_of, make, size)


_DIGEST_MODULUS = 1 << 256

BUCKETS = 64
"""Parts of a registry that are compared one by one when two registries differ."""


@dataclass(frozen=True)
class Signed:
    """A record together with the exact bytes that its owner signed; both are kept, stored and passed on."""

    record: Record
    frame: bytes

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of the frame: tells two records of the same version apart."""
        return hashlib.sha256(self.frame).digest()


@dataclass(frozen=True, slots=True)
class Offer:
    """One replica of a model, and the node that serves it."""

    node: PeerId
    service: Service


def newer(a: Signed, b: Signed) -> Signed:
    """Return the newer of two records of one node. Equal versions with unlike bytes are ordered by fingerprint."""
    return max(a, b, key=lambda signed: (signed.record.version, signed.fingerprint))


def names_of(service: Service) -> tuple[str, ...]:
    """Return the names under which clients may request a service: `MODEL`, `PROJECT/MODEL`, and its type if it is no model."""
    names = service.model, f"{service.project}/{service.model}"
    return (*names, service_type_name(service.type)) if service.type in SERVICE_TYPES else names


@lru_cache(maxsize=32_768)
def bucket_of(node: PeerId) -> int:
    """Return the number of the bucket that a node belongs to; the protocol fixes it."""
    return hashlib.sha256(node.encode()).digest()[0] % BUCKETS


class Bucket(dict[PeerId, Signed]):
    """One part of the held records; not changed once its digest was read."""

    @cached_property
    def digest(self) -> bytes:
        """Eight bytes that are equal in equal buckets."""
        # Hashed, not summed: a node that signs many records could choose some that cancel out another's.
        prints = sorted(signed.fingerprint for signed in self.values())
        return hashlib.sha256(b"".join(prints)).digest()[:8]


_NAME_PARTS = 16_384

_Held = PersistentMap[PeerId, Signed, Bucket]
_Offers = PersistentMap[str, tuple[Offer, ...], dict[str, tuple[Offer, ...]]]


def _nothing_held() -> _Held:
    return PersistentMap(tuple(Bucket() for _ in range(BUCKETS)), bucket_of, Bucket)


def _nothing_offered() -> _Offers:
    # A record may change thousands of names: with few parts, all of them would be copied.
    return PersistentMap(({},) * _NAME_PARTS, lambda name: hash(name) % _NAME_PARTS, dict)


@dataclass(frozen=True, slots=True)
class Catalog:
    """An immutable snapshot; readers never see it half-changed. A change costs as much as the buckets that it touches."""

    held: _Held = field(default_factory=_nothing_held)
    # Derived from `held`, except for the order of the offers of a name.
    offers: _Offers = field(default_factory=_nothing_offered, compare=False)
    total: int = 0

    @property
    def digest(self) -> str:
        """Equal digests mean equal registries: the sum of all fingerprints modulo 2^256, in hex."""
        return f"{self.total:064x}"

    def reach_of(self, node: PeerId) -> Reach | None:
        """Return the addresses in a node's record, `None` for an unknown node."""
        signed = self.held.get(node)
        return signed.record.reach if signed else None

    def find_records(self, text: str) -> tuple[Record, ...]:
        """Return the nodes that a person may mean by `text`: a node id, else the beginning of one, else a node's name."""
        exact = self.held.get(PeerId(text))
        if exact is not None or not text:
            return (exact.record,) if exact else ()
        # All ids begin with `ID_HEAD`, which alone identifies none.
        begins = len(text) > len(ID_HEAD) and text.startswith(ID_HEAD)
        return tuple(
            signed.record
            for node, signed in sorted(self.held.items())
            if (node.startswith(text) if begins else signed.record.name == text)
        )

    def merge(self, incoming: Iterable[Signed]) -> "Catalog":
        """Merge records; return `self` when none of them is newer."""
        news: dict[PeerId, Signed] = {}
        for signed in incoming:
            node = signed.record.node
            current = news.get(node) or self.held.get(node)
            if current is None or newer(current, signed).frame != current.frame:
                news[node] = signed
        if not news:
            return self
        total, offers = self.total, dict[str, tuple[Offer, ...]]()
        for node, signed in news.items():
            before = self.held.get(node)
            total += _weight(signed) - (_weight(before) if before else 0)
            self._reindex(offers, node, _services_of(before), _services_of(signed))
        return replace(
            self,
            held=self.held.with_changes(news),
            offers=self._with_offers(offers),
            total=total % _DIGEST_MODULUS,
        )

    def without(self, node: PeerId) -> "Catalog":
        """Return a catalog without a node, to make room under a limit; merging alone never forgets."""
        signed = self.held.get(node)
        if signed is None:
            return self
        offers: dict[str, tuple[Offer, ...]] = {}
        self._reindex(offers, node, _services_of(signed), frozenset())
        return replace(
            self,
            held=self.held.with_changes({}, drop=[node]),
            offers=self._with_offers(offers),
            total=(self.total - _weight(signed)) % _DIGEST_MODULUS,
        )

    def _reindex(
        self,
        offers: dict[str, tuple[Offer, ...]],
        node: PeerId,
        before: frozenset[Service],
        after: frozenset[Service],
    ) -> None:
        """Set in `offers` the new offers of every name that changes with a node's services."""
        # Each name once: a record may serve one model by thousands of replicas.
        names = {name for service in before ^ after for name in names_of(service)}
        added: dict[str, list[Offer]] = {}
        for service in after:
            offer = Offer(node, service)
            for name in names_of(service):
                added.setdefault(name, []).append(offer)
        for name in names:
            current = offers.get(name)
            current = self.offers.get(name, ()) if current is None else current
            offers[name] = (*(o for o in current if o.node != node), *added.get(name, ()))

    def _with_offers(self, offers: Mapping[str, tuple[Offer, ...]]) -> _Offers:
        some = {name: listed for name, listed in offers.items() if listed}
        return self.offers.with_changes(some, drop=offers.keys() - some.keys())


def _weight(signed: Signed) -> int:
    return int.from_bytes(signed.fingerprint)


def _services_of(signed: Signed | None) -> frozenset[Service]:
    # Also of a node that left: it may be back in a moment, and its services stay known until it publishes others.
    return frozenset(signed.record.services) if signed else frozenset()
