"""Synchronisation of two registries: anti-entropy between two nodes, as questions and answers without I/O.

A comparison of equal registries costs one question of 33 bytes. Unequal ones compare 64 buckets, then the versions
inside the buckets that differ, then pull what is newer there and push what is newer here, so both end up equal.

    compare   digest of everything                →  equal, or the digests of 64 buckets
    list      the numbers of some buckets         →  what is held in them: node, version, fingerprint
    pull      some nodes                          →  their frames, each with its age
    push      frames, each with its age           →  how many were news
    heard     after a start only                  →  the nodes that the peer heard lately, each with its age

Pulls and pushes repeat until nothing is left or the exchange has been long enough.

A message that is too long is not parsed. Like a malformed one it raises `InvalidFrame`.
"""

import math
import struct
from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry import signing, wire
from registry.catalog import BUCKETS, Catalog, Signed
from registry.clock import Clock
from registry.effects import Effect, Persist, RecordsKeptOut, RecordsRefused
from registry.errors import InvalidFrame, LimitReached, UnknownKind
from registry.members.liveness import Status
from registry.mesh import MAX_FRAME_BYTES
from registry.records import PeerId
from registry.replica import Replica

MAX_LISTED = 20_000
"""Most entries of one listing; no registry is larger."""

MAX_LISTING_BYTES = 4 * 1024 * 1024
"""Most bytes of one listing; with `MAX_LISTED` entries it takes about 3 MiB."""

MAX_BATCH_BYTES = 512 * 1024
"""Most bytes of frames in one pull or push. Checking their signatures keeps the event loop busy for about 0.2 s."""

FRAME_HEAD = struct.Struct(">fI")
"""Age in seconds and length of a frame in a batch."""

_ROW = struct.Struct(f">{signing.KEY_BYTES}sf")

_M = TypeVar("_M", bound=BaseModel)
_Count = Annotated[int, Field(ge=0, le=wire.MAX_COUNTER)]
_Id = Annotated[PeerId, Field(max_length=64)]


Held = tuple[int, int, str]
"""What one side holds of a node: epoch, sequence, and the beginning of the fingerprint in hex. The greater is newer."""


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)


class _Listing(_Message):
    """Node → [epoch, sequence, fingerprint]."""

    held: Annotated[
        dict[_Id, tuple[_Count, _Count, Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]]],
        Field(max_length=MAX_LISTED),
    ]


class _Numbers(_Message):
    buckets: Annotated[list[int], Field(max_length=BUCKETS)]


class _Wanted(_Message):
    nodes: Annotated[list[_Id], Field(max_length=MAX_LISTED)]


def require_at_most(limit: int, message: bytes) -> None:
    """Raise `InvalidFrame` when a message is longer than `limit` bytes."""
    if len(message) > limit:
        raise InvalidFrame(f"at most {limit:,} bytes are allowed, not {len(message):,}")


def _read(kind: type[_M], message: bytes, *, at_most: int) -> _M:
    require_at_most(at_most, message)
    try:
        return kind.model_validate_json(message)
    except ValidationError as error:
        raise InvalidFrame("a malformed message") from error


def write_buckets(numbers: Iterable[int]) -> bytes:
    """Encode the numbers of the buckets to list."""
    return orjson.dumps({"buckets": [*numbers]})


def read_buckets(body: bytes) -> list[int]:
    """Return the numbers of the buckets that a peer wants listed."""
    return _read(_Numbers, body, at_most=MAX_FRAME_BYTES).buckets


def write_wanted(nodes: Iterable[PeerId]) -> bytes:
    """Encode the nodes whose records are wanted."""
    return orjson.dumps({"nodes": [*nodes]})


def read_wanted(body: bytes) -> list[PeerId]:
    """Return the nodes whose records a peer wants."""
    return _read(_Wanted, body, at_most=MAX_LISTING_BYTES).nodes


def write_listing(held: dict[PeerId, Held]) -> bytes:
    """Encode what is held."""
    return orjson.dumps({"held": held})


def read_listing(listing: bytes) -> dict[PeerId, Held]:
    """Return what a peer holds."""
    return _read(_Listing, listing, at_most=MAX_LISTING_BYTES).held


def unpack(batch: bytes) -> Iterable[tuple[float, bytes]]:
    """Yield the age and the bytes of each frame in a batch."""
    require_at_most(MAX_BATCH_BYTES, batch)
    offset = 0
    while offset < len(batch):
        head = batch[offset : offset + FRAME_HEAD.size]
        if len(head) < FRAME_HEAD.size:
            raise InvalidFrame("a batch that ends in the middle of a frame")
        age, length = FRAME_HEAD.unpack(head)
        frame = batch[offset + FRAME_HEAD.size : offset + FRAME_HEAD.size + length]
        if len(frame) != length or length > MAX_FRAME_BYTES:
            raise InvalidFrame("a batch with a frame that is cut short")
        yield age, frame
        offset += FRAME_HEAD.size + length


def write_heard(ages: Iterable[tuple[PeerId, float]]) -> bytes:
    """Encode nodes with the seconds since their last sign of life."""
    return b"".join(_ROW.pack(signing.public_of(node), age) for node, age in ages)


def read_heard(rows: bytes) -> list[tuple[PeerId, float]]:
    """Return the nodes that a peer heard, and how many seconds ago; an age may be any float."""
    require_at_most(MAX_LISTED * _ROW.size, rows)
    if len(rows) % _ROW.size:
        raise InvalidFrame("a list of the living that is cut short")
    return [(signing.peer_of(public), age) for public, age in _ROW.iter_unpack(rows)]


MAX_BATCHES = 32
"""Most pulls, and most pushes, of one exchange; the rest waits for the next."""

MAX_CHECKED = 128
"""Most frames of one batch whose signatures are checked, which keeps the event loop busy for some 30 ms."""

MAX_IN_BATCH = 256
"""Most frames of one batch, and most nodes that one pull asks for."""

MAX_LOOKED_UP = 1_024
"""Most nodes of one pull that are looked up; a peer may ask for more at once than is ever sent."""

MAX_AGE = 30 * 86_400.0
"""Seconds; longer than any lease. This age, or any above it, means: not lately, or never."""

_COMPARE, _LIST, _PULL, _PUSH, _HEARD = b"c", b"l", b"p", b"P", b"h"
EQUAL = b"="
"""The answer of a peer whose registry equals ours."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next question to the peer, and the effects of what was learned so far.

    The effects come first, since the peer may never answer.
    """

    question: bytes
    effects: Sequence[Effect] = ()


Exchange = Generator[Step, bytes, list[Effect]]
"""Yields steps, is sent the peer's answers, and returns the effects of the last answer."""


def digest_question(replica: Replica) -> bytes:
    """Return the question whether a peer's registry is equal: the smallest question, and a probe as well."""
    return _COMPARE + bytes.fromhex(replica.catalog.digest)


def compare(replica: Replica, clock: Clock, peer: PeerId | None = None) -> Exchange:
    """Make our registry and a peer's equal, as far as one exchange goes; raise `InvalidFrame` for a malformed answer.

    A `peer` introduces no more strangers than a neighbour may; `None` stands for a trusted peer, in a simulation.
    """
    answer = yield Step(digest_question(replica))
    if answer == EQUAL:
        return (yield from _ask_hearsay(replica, clock, []))
    unlike = _differing_buckets(_buckets(replica.catalog), answer)
    listing = yield Step(_LIST + write_buckets(unlike))
    # The record of a node that is not admitted is not asked for; the peer may still push it.
    theirs = {node: held for node, held in read_listing(listing).items() if replica.admits(node)}
    ours = _list_records(replica.catalog, unlike)
    wanted = sorted(node for node in theirs if node in ours and theirs[node] > ours[node])
    owed = sorted(node for node in ours if node not in theirs or ours[node] > theirs[node])
    # Records of connected nodes come first on both sides, however many strangers there are.
    owed.sort(key=lambda node: node != replica.peer)
    room, has_met = replica.room_for_strangers(peer, clock()), replica.newcomers.has_met
    unknown = [node for node in theirs if node not in ours]
    met = [node for node in unknown if has_met(node)]
    strangers = _strangers(replica, [n for n in unknown if not has_met(n)], room, clock())
    if strangers and not room:
        yield from _fetch(strangers)
    effects = yield from _pull(replica, met + wanted + strangers[:room], clock, peer)
    effects = yield from _push(replica, owed, clock, effects)
    return (yield from _ask_hearsay(replica, clock, effects))


def _strangers(replica: Replica, listed: Sequence[PeerId], room: int, now: float) -> list[PeerId]:
    """Choose as many as there is room for, and at least one: a peer cannot know which of the listed records it must have."""
    first = int(replica.jitter() * len(listed))
    worth_it = (n for n in chain(listed[first:], listed[:first]) if not replica.is_refused(n, now))
    return [*islice(worth_it, max(room, 1))]


def _fetch(
    nodes: Sequence[PeerId], effects: Sequence[Effect] = ()
) -> Generator[Step, bytes, bytes]:
    batch = yield Step(_PULL + write_wanted(nodes), effects)
    # The peer listed them a moment ago: listing records that are not there makes this node work for nothing.
    if {wire.author_of(frame) for _, frame in unpack(batch)}.isdisjoint(nodes):
        raise InvalidFrame("listed records cannot be fetched")
    return batch


def _pull(replica: Replica, wanted: list[PeerId], clock: Clock, peer: PeerId | None) -> Exchange:
    effects: list[Effect] = []
    for _ in range(MAX_BATCHES):
        if not wanted:
            break
        batch = yield from _fetch(wanted[:MAX_IN_BATCH], effects)
        received, effects = _merge_batch(replica, batch, clock(), via=peer)
        if received.isdisjoint(wanted):
            break
        wanted = [node for node in wanted if node not in received]
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


def _ask_hearsay(replica: Replica, clock: Clock, effects: list[Effect]) -> Exchange:
    if not replica.wants_hearsay():
        return effects
    rows = yield Step(_HEARD, effects)
    now = clock()
    ages = read_heard(rows)
    return [e for node, age in ages for e in replica.note_hearsay(node, _heard_at(age, now), now)]


def answer(
    replica: Replica, question: bytes, now: float, *, asker: PeerId | None = None
) -> tuple[bytes, list[Effect]]:
    """Answer a peer's question; raise `InvalidFrame` for a malformed one. The `asker` is responsible for what it pushes."""
    kind, body = question[:1], question[1:]
    catalog = replica.catalog
    if kind == _COMPARE:
        same = body == bytes.fromhex(catalog.digest)
        return (EQUAL if same else b"".join(_buckets(catalog))), []
    if kind == _LIST:
        return write_listing(_list_records(catalog, read_buckets(body))), []
    if kind == _PULL:
        batch, _ = _pack(replica, read_wanted(body)[:MAX_LOOKED_UP], now)
        return batch, []
    if question == _HEARD:
        return write_heard(_recently_heard(replica, now)), []
    if kind == _PUSH:
        _, effects = _merge_batch(replica, body, now, via=asker)
        news = sum(isinstance(effect, Persist) for effect in effects)
        return str(news).encode(), effects
    raise UnknownKind("a question of an unknown kind")


def _buckets(catalog: Catalog) -> list[bytes]:
    return [bucket.digest for bucket in catalog.held.parts]


def _differing_buckets(ours: list[bytes], theirs: bytes) -> list[int]:
    if len(theirs) != 8 * BUCKETS:
        raise InvalidFrame(f"{BUCKETS} bucket digests have {8 * BUCKETS} bytes, not {len(theirs)}")
    return [n for n in range(BUCKETS) if ours[n] != theirs[8 * n : 8 * n + 8]]


def _list_records(catalog: Catalog, buckets: Collection[int]) -> dict[PeerId, Held]:
    return {
        node: (*signed.record.version, signed.fingerprint[:8].hex())
        for number in buckets
        if 0 <= number < BUCKETS
        for node, signed in catalog.held.parts[number].items()
    }


def _pack(replica: Replica, nodes: Sequence[PeerId], now: float) -> tuple[bytes, list[PeerId]]:
    """Return as many frames as one batch holds, and the nodes that are left for the next."""
    parts: list[bytes] = []
    size = 0
    for index, node in enumerate(nodes):
        signed = replica.catalog.held.get(node)
        if signed is None:
            continue
        size += FRAME_HEAD.size + len(signed.frame)
        if size > MAX_BATCH_BYTES or len(parts) >= MAX_IN_BATCH:
            return b"".join(parts), [*nodes[index:]]
        age = _age(replica, node, now)
        parts += (FRAME_HEAD.pack(age, len(signed.frame)), signed.frame)
    return b"".join(parts), []


def _merge_batch(
    replica: Replica, batch: bytes, now: float, *, via: PeerId | None
) -> tuple[set[PeerId], list[Effect]]:
    """Learn a batch; return the nodes whose records were read, and the effects. A malformed batch changes nothing."""
    records, left_out = _read_batch(replica, batch, now, via=via)
    effects: list[Effect] = []
    refused = [f"{via} introduces more unknown nodes than its limit"] * left_out
    kept_out: list[PeerId] = []
    for age, signed in records:
        if not replica.admits(signed.record.node):
            kept_out.append(signed.record.node)
            continue
        try:
            effects += replica.merge_record(signed, heard_at=_heard_at(age, now), now=now, via=via)
        except LimitReached as error:
            refused.append(str(error))
    if refused:
        effects.append(RecordsRefused(len(refused), refused[-1]))
    if kept_out:
        effects.append(RecordsKeptOut(tuple(kept_out)))
    return {signed.record.node for _, signed in records}, effects


def _read_batch(
    replica: Replica, batch: bytes, now: float, *, via: PeerId | None
) -> tuple[list[tuple[float, Signed]], int]:
    """Return ages and records, and how many strangers were left out.

    Signatures are not checked of frames that are held already, and of strangers beyond those that a neighbour may introduce.
    """
    records: list[tuple[float, Signed]] = []
    room = replica.room_for_strangers(via, now)
    left_out = 0
    for age, frame in unpack(batch):
        author = wire.author_of(frame)
        signed = replica.catalog.held.get(author)
        stranger = signed is None and not replica.newcomers.has_met(author)
        room -= stranger
        if stranger and room < 0:
            left_out += 1
        elif (signed is None or signed.frame != frame) and len(records) < MAX_CHECKED:
            records.append((age, _record(frame)))
    return records, left_out


def _record(frame: bytes) -> Signed:
    signed = wire.decode(frame)
    if not isinstance(signed, Signed):
        raise InvalidFrame("only records are pulled and pushed")
    return signed


def _age(replica: Replica, node: PeerId, now: float) -> float:
    # A node that is lost or suspect here must not count as alive at a peer on our word: the peer may have missed the doubt.
    health = replica.member_health().get(node)
    doubted = health is not None and health.contact in (Status.SUSPECT, Status.LOST)
    return MAX_AGE if doubted else min(now - replica.last_heard(node, now), MAX_AGE)


def _heard_at(age: float, now: float) -> float:
    # An age is hearsay: it counts for nodes that this one has not heard itself, and never as a time in the future.
    fresh = math.isfinite(age) and age < MAX_AGE
    return now - max(age, 0.0) if fresh else float("-inf")


def _recently_heard(replica: Replica, now: float) -> Iterable[tuple[PeerId, float]]:
    for node in (replica.peer, *replica.alive_nodes()[: MAX_LISTED - 1]):
        yield node, _age(replica, node, now)
