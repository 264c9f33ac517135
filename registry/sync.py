"""What is missing, here and there? Anti-entropy between two nodes, as questions and answers without I/O.

A comparison of equal registries costs one question of 33 bytes. Unequal ones compare 64 buckets, then the versions
inside the buckets that differ, then pull what is newer there and push what is newer here, so both end up equal.

    compare   digest of everything                →  equal, or the digests of 64 buckets
    list      the numbers of some buckets         →  what is held in them: node, version, fingerprint
    pull      some nodes                          →  their frames, each with its age
    push      frames, each with its age           →  how many were news
"""

import hashlib
import math
import struct
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry import wire
from registry.catalog import Catalog, Signed
from registry.errors import InvalidFrame, LimitReached
from registry.mesh import MAX_FRAME_BYTES
from registry.records import PeerId, Version
from registry.replica import Effect, Replica

BUCKETS = 64
MAX_LISTED = 20_000
"""Entries of one listing that are read; a registry is not larger."""

MAX_BATCH_BYTES = 2 * 1024 * 1024
"""Frames in one pull or push; the rest waits for the next comparison."""

MAX_AGE = 86_400.0

_COMPARE, _LIST, _PULL, _PUSH = b"c", b"l", b"p", b"P"
_EQUAL = b"="
_FRAME = struct.Struct(">fI")

Clock = Callable[[], float]
"""Returns seconds on a monotonic clock."""

Exchange = Generator[bytes, bytes, list[Effect]]
"""Yields questions for the peer, is sent its answers, returns what the replica wants done."""


@dataclass(frozen=True, slots=True)
class _Held:
    version: Version
    fingerprint: str


class _Listing(BaseModel):
    """Node → [epoch, sequence, fingerprint]."""

    model_config = ConfigDict(strict=True)
    held: Annotated[
        dict[Annotated[str, Field(max_length=64)], tuple[int, int, str]],
        Field(max_length=MAX_LISTED),
    ]


class _Numbers(BaseModel):
    model_config = ConfigDict(strict=True)
    buckets: Annotated[list[int], Field(max_length=BUCKETS)]


class _Wanted(BaseModel):
    model_config = ConfigDict(strict=True)
    nodes: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=MAX_LISTED)]


def compare(replica: Replica, clock: Clock) -> Exchange:
    """Make our registry and a peer's equal, as far as one exchange goes; raise `InvalidFrame` for nonsense."""
    answer = yield _COMPARE + bytes.fromhex(replica.catalog.digest)
    if answer == _EQUAL:
        return []
    unlike = _unlike(_buckets(replica.catalog), answer)
    listing = yield _LIST + orjson.dumps({"buckets": unlike})
    theirs = _read_listing(listing)
    ours = _held(replica.catalog, unlike)
    effects: list[Effect] = []
    if wanted := sorted(node for node in theirs if _is_ahead(theirs, ours, node)):
        frames = yield _PULL + orjson.dumps({"nodes": wanted})
        effects += _learn(replica, _unpack(frames), clock())
    if owed := sorted(node for node in ours if _is_ahead(ours, theirs, node)):
        yield _PUSH + _pack(replica, owed, clock())
    return effects


def answer(replica: Replica, question: bytes, now: float) -> tuple[bytes, list[Effect]]:
    """Answer a peer's question; raise `InvalidFrame` for nonsense."""
    kind, body = question[:1], question[1:]
    catalog = replica.catalog
    try:
        if kind == _COMPARE:
            same = body == bytes.fromhex(catalog.digest)
            return (_EQUAL if same else b"".join(_buckets(catalog))), []
        if kind == _LIST:
            numbers = _Numbers.model_validate_json(body).buckets
            return _write_listing(_held(catalog, numbers)), []
        if kind == _PULL:
            nodes = _Wanted.model_validate_json(body).nodes
            return _pack(replica, [PeerId(node) for node in nodes], now), []
        if kind == _PUSH:
            effects = _learn(replica, _unpack(body), now)
            return str(len(effects)).encode(), effects
    except ValidationError as error:
        raise InvalidFrame("a question that makes no sense") from error
    raise InvalidFrame("a question of an unknown kind")


def _bucket(node: PeerId) -> int:
    return hashlib.sha256(node.encode()).digest()[0] % BUCKETS


def _buckets(catalog: Catalog) -> list[bytes]:
    sums = [0] * BUCKETS
    for node, signed in catalog.held.items():
        sums[_bucket(node)] ^= int.from_bytes(signed.fingerprint[:8])
    return [total.to_bytes(8) for total in sums]


def _unlike(ours: list[bytes], theirs: bytes) -> list[int]:
    if len(theirs) != 8 * BUCKETS:
        raise InvalidFrame(f"{BUCKETS} bucket digests have {8 * BUCKETS} bytes, not {len(theirs)}")
    return [n for n in range(BUCKETS) if ours[n] != theirs[8 * n : 8 * n + 8]]


def _held(catalog: Catalog, buckets: Collection[int]) -> dict[PeerId, _Held]:
    wanted = frozenset(buckets)
    return {
        node: _Held(signed.record.version, signed.fingerprint[:8].hex())
        for node, signed in catalog.held.items()
        if _bucket(node) in wanted
    }


def _is_ahead(a: Mapping[PeerId, _Held], b: Mapping[PeerId, _Held], node: PeerId) -> bool:
    there = b.get(node)
    return there is None or (a[node].version, a[node].fingerprint) > (
        there.version,
        there.fingerprint,
    )


def _write_listing(held: Mapping[PeerId, _Held]) -> bytes:
    return orjson.dumps({"held": {n: [*h.version, h.fingerprint] for n, h in held.items()}})


def _read_listing(listing: bytes) -> dict[PeerId, _Held]:
    try:
        rows = _Listing.model_validate_json(listing).held
    except ValidationError as error:
        raise InvalidFrame("a listing that makes no sense") from error
    return {
        PeerId(node): _Held(Version(epoch, sequence), fingerprint)
        for node, (epoch, sequence, fingerprint) in rows.items()
    }


def _pack(replica: Replica, nodes: Iterable[PeerId], now: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    for node in nodes:
        signed = replica.catalog.held.get(node)
        if signed is None:
            continue
        size += _FRAME.size + len(signed.frame)
        if size > MAX_BATCH_BYTES:
            break
        age = min(now - replica.heard(node, now), MAX_AGE)
        parts += (_FRAME.pack(age, len(signed.frame)), signed.frame)
    return b"".join(parts)


def _unpack(batch: bytes) -> Iterable[tuple[float, bytes]]:
    at = 0
    while at < len(batch):
        head = batch[at : at + _FRAME.size]
        if len(head) < _FRAME.size:
            raise InvalidFrame("a batch that ends in the middle of a frame")
        age, length = _FRAME.unpack(head)
        frame = batch[at + _FRAME.size : at + _FRAME.size + length]
        if len(frame) != length or length > MAX_FRAME_BYTES:
            raise InvalidFrame("a batch with a frame that is cut short")
        yield age, frame
        at += _FRAME.size + length


def _learn(replica: Replica, batch: Iterable[tuple[float, bytes]], now: float) -> list[Effect]:
    # All are checked before the first is learned, so that nonsense changes nothing.
    words = [(_heard(age, now), _record(frame)) for age, frame in batch]
    effects: list[Effect] = []
    for heard, word in words:
        with suppress(LimitReached):
            effects += replica.learn(word, heard=heard, now=now)
    return effects


def _record(frame: bytes) -> Signed:
    word = wire.decode(frame)
    if not isinstance(word, Signed):
        raise InvalidFrame("only records are pulled and pushed")
    return word


def _heard(age: float, now: float) -> float:
    # An age is hearsay: it counts for nodes that we have not heard ourselves, and never as the future.
    return now - min(max(age, 0.0), MAX_AGE) if math.isfinite(age) else float("-inf")
