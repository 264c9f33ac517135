"""What is missing, here and there? Anti-entropy between two nodes, as questions and answers without I/O.

A comparison of equal registries costs one question of 33 bytes. Unequal ones compare 64 buckets, then the versions
inside the buckets that differ, then pull what is newer there and push what is newer here, so both end up equal.

    compare   digest of everything                →  equal, or the digests of 64 buckets
    list      the numbers of some buckets         →  what is held in them: node, version, fingerprint
    pull      some nodes                          →  their frames, each with its age
    push      frames, each with its age           →  how many were news
    heard     after a start only                  →  whom the peer heard lately, each with its age

Pulls and pushes repeat until nothing is left or the exchange has been long enough.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry import signing, wire
from registry.catalog import Catalog, Signed
from registry.errors import InvalidFrame, LimitReached
from registry.mesh import MAX_FRAME_BYTES
from registry.records import PeerId, Version
from registry.replica import Effect, Persist, Replica

BUCKETS = 64
MAX_LISTED = 20_000
"""Entries of one listing that are read; a registry is not larger."""

MAX_LISTING_BYTES = 4 * 1024 * 1024
"""A listing with as many entries takes about 3 MiB."""

MAX_BATCH_BYTES = 512 * 1024
"""Frames in one pull or push. Checking as many signatures keeps the event loop for about 0.2 s."""

MAX_BATCHES = 32
"""Pulls, and pushes, of one exchange; the rest waits for the next."""

MAX_AGE = 86_400.0

_COMPARE, _LIST, _PULL, _PUSH, _HEARD = b"c", b"l", b"p", b"P", b"h"
EQUAL = b"="
"""The answer of a peer whose registry is ours."""

_FRAME = struct.Struct(">fI")
_ROW = struct.Struct(f">{signing.KEY_BYTES}sf")

Clock = Callable[[], float]
"""Returns seconds on a monotonic clock."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to put to the peer next, and what was learned until now: do that first, the peer may never answer."""

    question: bytes
    effects: Sequence[Effect] = ()


Exchange = Generator[Step, bytes, list[Effect]]
"""Yields steps, is sent the peer's answers, returns what the last of them had us learn."""

_Count = Annotated[int, Field(ge=0, le=wire.MAX_COUNTER)]
_Id = Annotated[str, Field(max_length=64)]


@dataclass(frozen=True, slots=True)
class _Held:
    version: Version
    fingerprint: str


class _Listing(BaseModel):
    """Node → [epoch, sequence, fingerprint]."""

    model_config = ConfigDict(strict=True)
    held: Annotated[
        dict[_Id, tuple[_Count, _Count, Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]]],
        Field(max_length=MAX_LISTED),
    ]


class _Numbers(BaseModel):
    model_config = ConfigDict(strict=True)
    buckets: Annotated[list[int], Field(max_length=BUCKETS)]


class _Wanted(BaseModel):
    model_config = ConfigDict(strict=True)
    nodes: Annotated[list[_Id], Field(max_length=MAX_LISTED)]


def digest_question(replica: Replica) -> bytes:
    """Return the question whether a peer's registry is equal: the smallest there is, and a probe as well."""
    return _COMPARE + bytes.fromhex(replica.catalog.digest)


def compare(replica: Replica, clock: Clock) -> Exchange:
    """Make our registry and a peer's equal, as far as one exchange goes; raise `InvalidFrame` for nonsense."""
    answer = yield Step(digest_question(replica))
    if answer == EQUAL:
        return (yield from _ask_whom_it_heard(replica, clock, []))
    unlike = _unlike(_buckets(replica.catalog), answer)
    listing = yield Step(_LIST + orjson.dumps({"buckets": unlike}))
    theirs = _read_listing(listing)
    ours = _held(replica.catalog, unlike)
    wanted = sorted(node for node in theirs if _is_ahead(theirs, ours, node))
    owed = sorted(node for node in ours if _is_ahead(ours, theirs, node))
    effects = yield from _pull(replica, _with_room(replica, wanted), clock)
    effects = yield from _push(replica, owed, clock, effects)
    return (yield from _ask_whom_it_heard(replica, clock, effects))


def _with_room(replica: Replica, wanted: Iterable[PeerId]) -> list[PeerId]:
    # A full registry would be sent the same strangers at every comparison, only to refuse them.
    room = replica.room()
    held = replica.catalog.held
    strangers = 0
    chosen: list[PeerId] = []
    for node in wanted:
        strangers += node not in held
        if node in held or strangers <= room:
            chosen.append(node)
    return chosen


def _pull(replica: Replica, wanted: list[PeerId], clock: Clock) -> Exchange:
    effects: list[Effect] = []
    for _ in range(MAX_BATCHES):
        if not wanted:
            break
        batch = yield Step(_PULL + orjson.dumps({"nodes": wanted}), effects)
        words = _read_batch(batch)
        effects = _learn(replica, words, clock())
        came = {word.record.node for _, word in words}
        if came.isdisjoint(wanted):
            break
        wanted = [node for node in wanted if node not in came]
    return effects


def _push(
    replica: Replica, owed: list[PeerId], clock: Clock, effects: Sequence[Effect]
) -> Exchange:
    for _ in range(MAX_BATCHES):
        batch, owed = _pack(replica, owed, clock())
        if not batch:
            break
        yield Step(_PUSH + batch, effects)
        effects = ()
    return [*effects]


def _ask_whom_it_heard(replica: Replica, clock: Clock, effects: list[Effect]) -> Exchange:
    if not replica.wants_hearsay():
        return effects
    rows = yield Step(_HEARD, effects)
    now = clock()
    return [e for node, age in _read_heard(rows) for e in replica.told(node, _heard(age, now), now)]


def answer(replica: Replica, question: bytes, now: float) -> tuple[bytes, list[Effect]]:
    """Answer a peer's question; raise `InvalidFrame` for nonsense."""
    kind, body = question[:1], question[1:]
    catalog = replica.catalog
    try:
        if kind == _COMPARE:
            same = body == bytes.fromhex(catalog.digest)
            return (EQUAL if same else b"".join(_buckets(catalog))), []
        if kind == _LIST:
            _require_at_most(MAX_FRAME_BYTES, body)
            numbers = _Numbers.model_validate_json(body).buckets
            return _write_listing(_held(catalog, numbers)), []
        if kind == _PULL:
            _require_at_most(MAX_LISTING_BYTES, body)
            nodes = _Wanted.model_validate_json(body).nodes
            batch, _ = _pack(replica, [PeerId(node) for node in nodes], now)
            return batch, []
        if question == _HEARD:
            return _write_heard(replica, now), []
        if kind == _PUSH:
            effects = _learn(replica, _read_batch(body), now)
            news = sum(isinstance(effect, Persist) for effect in effects)
            return str(news).encode(), effects
    except ValidationError as error:
        raise InvalidFrame("a question that makes no sense") from error
    raise InvalidFrame("a question of an unknown kind")


def _bucket(node: PeerId) -> int:
    return hashlib.sha256(node.encode()).digest()[0] % BUCKETS


def _buckets(catalog: Catalog) -> list[bytes]:
    # Hashed, not summed: whoever signs many records could choose some that cancel out another's.
    contents: list[list[bytes]] = [[] for _ in range(BUCKETS)]
    for node, signed in catalog.held.items():
        contents[_bucket(node)].append(signed.fingerprint)
    return [hashlib.sha256(b"".join(sorted(prints))).digest()[:8] for prints in contents]


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


def _require_at_most(limit: int, message: bytes) -> None:
    if len(message) > limit:
        raise InvalidFrame(f"at most {limit:,} bytes are read here, not {len(message):,}")


def _read_listing(listing: bytes) -> dict[PeerId, _Held]:
    _require_at_most(MAX_LISTING_BYTES, listing)
    try:
        rows = _Listing.model_validate_json(listing).held
    except ValidationError as error:
        raise InvalidFrame("a listing that makes no sense") from error
    return {
        PeerId(node): _Held(Version(epoch, sequence), fingerprint)
        for node, (epoch, sequence, fingerprint) in rows.items()
    }


def _pack(replica: Replica, nodes: Sequence[PeerId], now: float) -> tuple[bytes, list[PeerId]]:
    """Return as many frames as one batch holds, and the nodes whose turn comes later."""
    parts: list[bytes] = []
    size = 0
    for place, node in enumerate(nodes):
        signed = replica.catalog.held.get(node)
        if signed is None:
            continue
        size += _FRAME.size + len(signed.frame)
        if size > MAX_BATCH_BYTES:
            return b"".join(parts), [*nodes[place:]]
        age = min(now - replica.heard(node, now), MAX_AGE)
        parts += (_FRAME.pack(age, len(signed.frame)), signed.frame)
    return b"".join(parts), []


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


def _read_batch(batch: bytes) -> list[tuple[float, Signed]]:
    """Read ages and words. All are checked before the first is learned, so that nonsense changes nothing."""
    _require_at_most(MAX_BATCH_BYTES, batch)
    return [(age, _record(frame)) for age, frame in _unpack(batch)]


def _learn(replica: Replica, words: Iterable[tuple[float, Signed]], now: float) -> list[Effect]:
    effects: list[Effect] = []
    for age, word in words:
        with suppress(LimitReached):
            effects += replica.learn(word, heard=_heard(age, now), now=now)
    return effects


def _record(frame: bytes) -> Signed:
    word = wire.decode(frame)
    if not isinstance(word, Signed):
        raise InvalidFrame("only records are pulled and pushed")
    return word


def _heard(age: float, now: float) -> float:
    # An age is hearsay: it counts for nodes that we have not heard ourselves, and never as the future.
    return now - min(max(age, 0.0), MAX_AGE) if math.isfinite(age) else float("-inf")


def _write_heard(replica: Replica, now: float) -> bytes:
    nodes = (replica.peer, *replica.alive()[: MAX_LISTED - 1])
    return b"".join(
        _ROW.pack(signing.public_of(node), min(now - replica.heard(node, now), MAX_AGE))
        for node in nodes
    )


def _read_heard(rows: bytes) -> list[tuple[PeerId, float]]:
    _require_at_most(MAX_LISTED * _ROW.size, rows)
    if len(rows) % _ROW.size:
        raise InvalidFrame("a list of the living that is cut short")
    return [(signing.peer_of(public), age) for public, age in _ROW.iter_unpack(rows)]
