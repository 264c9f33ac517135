"""Messages of a comparison: their shapes, parsed with named limits.

What is too long is not even parsed; what makes no sense is an `InvalidFrame`.
"""

import struct
from collections.abc import Iterable
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry import signing, wire
from registry.catalog import BUCKETS
from registry.errors import InvalidFrame
from registry.mesh import MAX_FRAME_BYTES
from registry.records import PeerId

MAX_LISTED = 20_000
"""Entries of one listing that are read; a registry is not larger."""

MAX_LISTING_BYTES = 4 * 1024 * 1024
"""A listing with as many entries takes about 3 MiB."""

MAX_BATCH_BYTES = 512 * 1024
"""Frames in one pull or push. Checking as many signatures keeps the event loop for about 0.2 s."""

FRAME_HEAD = struct.Struct(">fI")
"""Age in seconds and length of a frame in a batch."""

_ROW = struct.Struct(f">{signing.KEY_BYTES}sf")

_Count = Annotated[int, Field(ge=0, le=wire.MAX_COUNTER)]
_Id = Annotated[PeerId, Field(max_length=64)]


Held = tuple[int, int, str]
"""What one side holds of a node: epoch, sequence, and the beginning of the fingerprint in hex. The greater is the newer."""


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


def require_at_most(limit: int, message: bytes) -> None:
    """Raise `InvalidFrame` when a message is longer than what is read here."""
    if len(message) > limit:
        raise InvalidFrame(f"at most {limit:,} bytes are allowed, not {len(message):,}")


def write_buckets(numbers: Iterable[int]) -> bytes:
    """Name some buckets."""
    return orjson.dumps({"buckets": [*numbers]})


def read_buckets(body: bytes) -> list[int]:
    """Return which buckets a peer wants listed."""
    require_at_most(MAX_FRAME_BYTES, body)
    try:
        return _Numbers.model_validate_json(body).buckets
    except ValidationError as error:
        raise InvalidFrame("a malformed question") from error


def write_wanted(nodes: Iterable[PeerId]) -> bytes:
    """Name some nodes."""
    return orjson.dumps({"nodes": [*nodes]})


def read_wanted(body: bytes) -> list[PeerId]:
    """Return which nodes' records a peer wants."""
    require_at_most(MAX_LISTING_BYTES, body)
    try:
        return _Wanted.model_validate_json(body).nodes
    except ValidationError as error:
        raise InvalidFrame("a malformed question") from error


def write_listing(held: dict[PeerId, Held]) -> bytes:
    """List what is held."""
    return orjson.dumps({"held": held})


def read_listing(listing: bytes) -> dict[PeerId, Held]:
    """Return what a peer holds."""
    require_at_most(MAX_LISTING_BYTES, listing)
    try:
        return _Listing.model_validate_json(listing).held
    except ValidationError as error:
        raise InvalidFrame("a malformed listing") from error


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
    """List nodes with the seconds since their last sign of life."""
    return b"".join(_ROW.pack(signing.public_of(node), age) for node, age in ages)


def read_heard(rows: bytes) -> list[tuple[PeerId, float]]:
    """Return whom a peer heard, and how long ago; an age may be any number there is."""
    require_at_most(MAX_LISTED * _ROW.size, rows)
    if len(rows) % _ROW.size:
        raise InvalidFrame("a list of the living that is cut short")
    return [(signing.peer_of(public), age) for public, age in _ROW.iter_unpack(rows)]
