"""Messages of a comparison: their shapes, parsed with named limits.

A message that is too long is not parsed. Like a malformed one it raises `InvalidFrame`.
"""

import struct
from collections.abc import Iterable
from typing import Annotated, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry import signing, wire
from registry.catalog import BUCKETS
from registry.errors import InvalidFrame
from registry.mesh import MAX_FRAME_BYTES
from registry.records import PeerId

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
    at = 0
    while at < len(batch):
        head = batch[at : at + FRAME_HEAD.size]
        if len(head) < FRAME_HEAD.size:
            raise InvalidFrame("a batch that ends in the middle of a frame")
        age, length = FRAME_HEAD.unpack(head)
        frame = batch[at + FRAME_HEAD.size : at + FRAME_HEAD.size + length]
        if len(frame) != length or length > MAX_FRAME_BYTES:
            raise InvalidFrame("a batch with a frame that is cut short")
        yield age, frame
        at += FRAME_HEAD.size + length


def write_heard(ages: Iterable[tuple[PeerId, float]]) -> bytes:
    """Encode nodes with the seconds since their last sign of life."""
    return b"".join(_ROW.pack(signing.public_of(node), age) for node, age in ages)


def read_heard(rows: bytes) -> list[tuple[PeerId, float]]:
    """Return the nodes that a peer heard, and how many seconds ago; an age may be any float."""
    require_at_most(MAX_LISTED * _ROW.size, rows)
    if len(rows) % _ROW.size:
        raise InvalidFrame("a list of the living that is cut short")
    return [(signing.peer_of(public), age) for public, age in _ROW.iter_unpack(rows)]
