"""Wire format of the mesh. Frames: encode, decode, and every limit by name.

    version  kind  public key  signature  body
    1        1     32          64         the rest

The signature covers the kind's domain tag and the body. Decoding checks length, version, shape, signature, in that
order. The bytes received are kept: fields that this version does not know are ignored, never lost.
"""

import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry import signing
from registry.catalog import Signed
from registry.errors import InvalidFrame, LimitReached, UnknownKind
from registry.mesh import MAX_FRAME_BYTES
from registry.records import (
    Doubt,
    Heartbeat,
    Load,
    LoadNote,
    ModelType,
    PeerId,
    Reach,
    Record,
    Revocation,
    Service,
    Standing,
    Version,
)

VERSION = 1
RECORD, HEARTBEAT, DOUBT, PROOF, LOAD = 1, 2, 3, 4, 5
DOMAINS = {
    RECORD: b"modelvine/1/record\0",
    HEARTBEAT: b"modelvine/1/heartbeat\0",
    DOUBT: b"modelvine/1/doubt\0",
    PROOF: b"modelvine/1/proof\0",
    LOAD: b"modelvine/1/load\0",
}
CHALLENGE_BYTES = 16
"""Random bytes that a proof of life signs, so that it cannot have been made before."""

_READ_LATELY = 8  # frames: the mesh judges each, and a moment later the registry decodes it again

HEADER_BYTES = 2 + signing.KEY_BYTES + signing.SIGNATURE_BYTES
MAX_NAME_BYTES = 256
MAX_SERVICES = 2_000
MAX_CONTEXT = 2**31 - 1
MAX_ABILITIES = 2**16 - 1
MAX_CREATED = 2**33
"""The latest Unix time of a registration, in 2242."""
MAX_ADDRESSES = 16
MAX_ADDRESS_CHARACTERS = 256
MAX_CERTIFICATE_CHARACTERS = 2_048
MAX_AGENT_CHARACTERS = 128
MAX_NODE_NAME_CHARACTERS = 64
MAX_REVOKED = 1_024
"""Grants that one node may have revoked and that have not expired yet."""
GRANT_CHARACTERS = 32
"""Hexadecimal characters of a grant's id."""
MAX_LOADS = 64
"""Rows of one load note; a node with more busy replicas sends those whose load changed most."""
MAX_COUNT = (1 << 16) - 1
"""Greatest whole number in a load; a greater one is sent as this."""
MAX_FIGURE = 1e6
"""Greatest number of seconds, and of events per second, in a load."""
# JSON readers in other languages keep integers exact only to 2^53.
MAX_COUNTER = (1 << 53) - 1

_TYPES = {int(kind): kind for kind in ModelType}
_SHORTEST_ROW = 4
_CID, _CREATED = 6, 7
"""Places in a row: the cid, if the third element is the typed one for older nodes, and the time of registration."""
_HEARTBEAT_BODY = struct.Struct(">QQQ")
_DOUBT_BODY = struct.Struct(f">QQQ{signing.KEY_BYTES}s")
_LOAD_HEAD = struct.Struct(">QQQH")
_LOAD_ROW = struct.Struct(">HHHHff")
_SHORTEST = 1e-6

_Counter = Annotated[int, Field(ge=0, le=MAX_COUNTER)]
# Printable ASCII: an address is logged, shown and dialled, so it carries no control characters.
_Address = Annotated[str, Field(pattern=r"^[!-~]+$", max_length=MAX_ADDRESS_CHARACTERS)]
_Grant = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{GRANT_CHARACTERS}}}$")]


class _Body(BaseModel):
    """The shape of a record's body."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    version: Annotated[list[_Counter], Field(min_length=2, max_length=2)]
    standing: str
    services: Annotated[list[list[object]], Field(max_length=MAX_SERVICES)]
    mesh: Annotated[list[_Address], Field(max_length=MAX_ADDRESSES)] = []
    links: Annotated[list[_Address], Field(max_length=MAX_ADDRESSES)] = []
    certificate: Annotated[str, Field(max_length=MAX_CERTIFICATE_CHARACTERS)] = ""
    agent: Annotated[str, Field(max_length=MAX_AGENT_CHARACTERS)] = ""
    name: object = ""
    revoked: Annotated[list[tuple[_Grant, _Counter]], Field(max_length=MAX_REVOKED)] = []


def is_name(text: str) -> bool:
    """Return whether a text may name a project, model or cid: at most 256 bytes of UTF-8, nothing unprintable."""
    # A character takes at most four bytes, so short names need no second look.
    short = len(text) * 4 <= MAX_NAME_BYTES
    return text.isprintable() and (short or len(text.encode()) <= MAX_NAME_BYTES)


def is_node_name(text: str) -> bool:
    """Return whether a text may name a node: 1 to 64 printable characters, no spaces, and no beginning of a peer id."""
    # Unprintable characters control terminals or, like the marks that change the direction of writing, mislead the reader.
    fits = 0 < len(text) <= MAX_NODE_NAME_CHARACTERS
    return fits and text.isprintable() and " " not in text and not text.startswith(signing.ID_HEAD)


def encode_record(record: Record, identity: signing.Identity) -> Signed:
    """Sign a record; raise `LimitReached` when it does not fit one frame, or when other nodes would refuse it."""
    body = orjson.dumps(
        {
            "version": list(record.version),
            "standing": record.standing.value,
            "services": [*_rows(record.services)],
            "mesh": record.reach.mesh,
            "links": record.reach.links,
            "certificate": b64encode(record.reach.certificate).decode(),
            "agent": record.agent,
            **({"name": record.name} if record.name else {}),
            **(
                {"revoked": [[r.grant, r.expires] for r in record.revoked]}
                if record.revoked
                else {}
            ),
        }
    )
    frame = _seal(RECORD, body, identity)
    if len(frame) > MAX_FRAME_BYTES or len(record.services) > MAX_SERVICES:
        raise LimitReached(
            f"{len(record.services)} models make a record of {len(frame):,} bytes; "
            f"a node's record holds {MAX_SERVICES:,} models and {MAX_FRAME_BYTES:,} bytes"
        )
    _require_readable(record, body)
    return Signed(record, frame)


def encode_heartbeat(beat: Heartbeat, identity: signing.Identity) -> bytes:
    """Sign a heartbeat: 122 bytes."""
    return _seal(HEARTBEAT, _HEARTBEAT_BODY.pack(*beat.version, beat.beat), identity)


def encode_doubt(doubt: Doubt, identity: signing.Identity) -> bytes:
    """Sign a doubt: 154 bytes."""
    about = signing.public_of(doubt.about)
    return _seal(DOUBT, _DOUBT_BODY.pack(*doubt.version, doubt.beat, about), identity)


def encode_load(note: LoadNote, identity: signing.Identity) -> bytes:
    """Sign a load: 124 bytes and 16 for each row; a number that is too great is sent as the greatest that fits."""
    head = _LOAD_HEAD.pack(*note.version, note.beat, len(note.rows))
    return _seal(LOAD, head + b"".join(_load_row(*row) for row in note.rows), identity)


def encode_proof(challenge: bytes, identity: signing.Identity) -> bytes:
    """Sign a challenge: 114 bytes that prove life now; raise `InvalidFrame` when it has another length."""
    if len(challenge) != CHALLENGE_BYTES:
        raise InvalidFrame(f"a challenge has {CHALLENGE_BYTES} bytes, not {len(challenge)}")
    return _seal(PROOF, challenge, identity)


def check_proof(frame: bytes, *, node: PeerId, challenge: bytes) -> None:
    """Raise `InvalidFrame` unless this frame proves that `node` has just seen the challenge."""
    head = bytes((VERSION, PROOF)) + signing.public_of(node)
    if not frame.startswith(head) or frame[HEADER_BYTES:] != challenge:
        raise InvalidFrame(f"no proof that {node} lives")
    signing.verify(head[2:], DOMAINS[PROOF], challenge, frame[len(head) : HEADER_BYTES])


def peer_named(text: bytes) -> PeerId:
    """Return the peer id that `text` is; raise `InvalidFrame` when it is none."""
    if not text.isascii():
        raise InvalidFrame("a peer id is ASCII")
    return signing.peer_of(signing.public_of(text.decode()))


def author_of(frame: bytes) -> PeerId:
    """Return the node that a frame claims to be from, unverified; raise `InvalidFrame` if its key is too short or weak."""
    return signing.peer_of(frame[2 : 2 + signing.KEY_BYTES])


@lru_cache(maxsize=_READ_LATELY)
def decode(frame: bytes) -> Signed | Heartbeat | Doubt | LoadNote:
    """Read and verify a frame; raise `InvalidFrame` or `InvalidSignature`."""
    if not HEADER_BYTES <= len(frame) <= MAX_FRAME_BYTES:
        raise InvalidFrame(
            f"a frame has {HEADER_BYTES} to {MAX_FRAME_BYTES} bytes, not {len(frame)}"
        )
    version, kind = frame[0], frame[1]
    if version != VERSION:
        raise UnknownKind(f"frames of version {version} are unknown")
    if kind not in _READERS:
        raise UnknownKind(f"frames of kind {kind} are unknown")
    public = frame[2 : 2 + signing.KEY_BYTES]
    signature = frame[2 + signing.KEY_BYTES : HEADER_BYTES]
    body = frame[HEADER_BYTES:]
    message = _READERS[kind](public, body, frame)
    signing.verify(public, DOMAINS[kind], body, signature)
    return message


def _seal(kind: int, body: bytes, identity: signing.Identity) -> bytes:
    signature = identity.sign(DOMAINS[kind], body)
    return bytes((VERSION, kind)) + identity.public + signature + body


def _require_readable(record: Record, body: bytes) -> None:
    # A node whose record all others drop would vanish without noticing.
    try:
        _Body.model_validate_json(body)
    except ValidationError as error:
        fields = ", ".join(str(wrong["loc"][0]) for wrong in error.errors())
        raise LimitReached(f"other nodes would refuse this record's {fields}") from error
    keys = {(str(row[0]), str(row[1]), str(row[2])) for row in _rows(record.services)}
    named = all(p and m and is_name(p) and is_name(m) and is_name(c) for p, m, c in keys)
    once = len(keys) == len({s.key for s in record.services}) == len(record.services)
    if not named or not once:
        raise LimitReached(
            f"projects and models are named in 1 to {MAX_NAME_BYTES} printable bytes, and once"
        )
    if record.name and not is_node_name(record.name):
        raise LimitReached(f"other nodes would ignore the name {record.name!r}")


def _heartbeat(public: bytes, body: bytes, _: bytes) -> Heartbeat:
    if len(body) != _HEARTBEAT_BODY.size:
        raise InvalidFrame(f"a heartbeat's body has {_HEARTBEAT_BODY.size} bytes, not {len(body)}")
    return Heartbeat(signing.peer_of(public), *_counted(*_HEARTBEAT_BODY.unpack(body)))


def _doubt(public: bytes, body: bytes, _: bytes) -> Doubt:
    if len(body) != _DOUBT_BODY.size:
        raise InvalidFrame(f"a doubt's body has {_DOUBT_BODY.size} bytes, not {len(body)}")
    epoch, sequence, beat, about = _DOUBT_BODY.unpack(body)
    counted = _counted(epoch, sequence, beat)
    return Doubt(signing.peer_of(public), *counted, signing.peer_of(about))


def _load(public: bytes, body: bytes, _: bytes) -> LoadNote:
    if len(body) < _LOAD_HEAD.size:
        raise InvalidFrame(f"a load's body has at least {_LOAD_HEAD.size} bytes, not {len(body)}")
    *counters, count = _LOAD_HEAD.unpack_from(body)
    size = _LOAD_HEAD.size + count * _LOAD_ROW.size
    if not 1 <= count <= MAX_LOADS or len(body) != size:
        raise InvalidFrame(f"a load of {count} rows in {len(body)} bytes")
    rows = [*_LOAD_ROW.iter_unpack(body[_LOAD_HEAD.size :])]
    positions = [row[0] for row in rows]
    # Rising places name no service twice, and leave one encoding of a load.
    if positions[-1] >= MAX_SERVICES or any(a >= b for a, b in pairwise(positions)):
        raise InvalidFrame("a load's rows are out of order or range")
    # Written so that NaN fails too.
    if not all(0 <= figure <= MAX_FIGURE for row in rows for figure in row[4:]):
        raise InvalidFrame("a load's figure is out of range")
    return LoadNote(signing.peer_of(public), *_counted(*counters), tuple(map(_read_row, rows)))


def _read_row(row: tuple[int, int, int, int, float, float]) -> tuple[int, Load]:
    position, in_flight, queued, slots, rate, first = row
    return position, Load(in_flight, queued, slots, rate, first or None)


def _load_row(position: int, load: Load) -> bytes:
    counts = (min(count, MAX_COUNT) for count in (load.in_flight, load.queued, load.slots))
    # No answer takes 0 seconds, so 0 stands for "there was none".
    first = 0.0 if load.first is None else max(load.first, _SHORTEST)
    return _LOAD_ROW.pack(position, *counts, min(load.rate, MAX_FIGURE), min(first, MAX_FIGURE))


def _counted(epoch: int, sequence: int, beat: int) -> tuple[Version, int]:
    if max(epoch, sequence, beat) > MAX_COUNTER:
        raise InvalidFrame("a heartbeat's counter is out of range")
    return Version(epoch, sequence), beat


def _record(public: bytes, body: bytes, frame: bytes) -> Signed:
    try:
        parsed = _Body.model_validate_json(body)
        certificate = b64decode(parsed.certificate, validate=True)
        standing = Standing(parsed.standing)
    except ValueError as error:
        raise InvalidFrame(f"not a record: {type(error).__name__}") from error
    read = [_service(row) for row in parsed.services]
    services = tuple(service for service in read if service is not None)
    rows = (row for row, service in zip(parsed.services, read, strict=True) if service)
    # Also by the cids in the rows, which are the only ones that older nodes read.
    if not len({s.key for s in services}) == len({(*row[:3],) for row in rows}) == len(services):
        raise InvalidFrame("a record names one replica twice")
    record = Record(
        node=signing.peer_of(public),
        version=Version(*parsed.version),
        standing=standing,
        services=services,
        reach=Reach(tuple(parsed.mesh), tuple(parsed.links), certificate),
        agent=parsed.agent if parsed.agent.isprintable() else "",
        name=_node_name(parsed.name),
        revoked=tuple(Revocation(*row) for row in parsed.revoked),
        skipped=tuple(position for position, service in enumerate(read) if service is None),
    )
    return Signed(record, frame)


def _service(row: list[object]) -> Service | None:
    """Read one row; return `None` for a type that only newer versions know."""
    # Plain checks: a `match` takes three times as long, and this runs for every model of every record.
    if len(row) < _SHORTEST_ROW:
        raise InvalidFrame("a service is [project, model, cid, type]")
    project, model, cid, kind = row[:4]
    if not (isinstance(project, str) and isinstance(model, str) and isinstance(cid, str)):
        raise InvalidFrame("project, model and cid are strings")
    if not isinstance(kind, int) or isinstance(kind, bool):
        raise InvalidFrame("a model's type is a number")
    if not (project and model and is_name(project) and is_name(model) and is_name(cid)):
        raise InvalidFrame("a name in a record is empty, too long or unprintable")
    service_type = _TYPES.get(kind)
    if service_type is None:
        return None
    numbers = _number(row, 4, MAX_CONTEXT), _number(row, 5, MAX_ABILITIES)
    created = _number(row, _CREATED, MAX_CREATED)
    if len(row) > _CID and isinstance(plain := row[_CID], str):
        service = Service(project, model, plain, service_type, *numbers, created)
        if service.typed_cid == cid:
            return service
    return Service(project, model, cid, service_type, *numbers, created)


def _rows(services: Iterable[Service]) -> Iterator[list[object]]:
    """Encode the services. Of several types of one replica, all but the first get the typed cid, for older nodes."""
    seen: set[tuple[str, str, str]] = set()
    for service in services:
        replica = service.project, service.model, service.cid
        yield _row(service, service.typed_cid if replica in seen else service.cid)
        seen.add(replica)


def _row(service: Service, cid: str) -> list[object]:
    """Encode a service, without the zeros at the end of its row."""
    row: list[object] = [service.project, service.model, cid, int(service.type)]
    row += [service.context, service.abilities, service.cid if cid != service.cid else 0]
    row.append(service.created)
    while row[-1] == 0 and len(row) > _SHORTEST_ROW:
        row.pop()
    return row


def _node_name(value: object) -> str:
    """Read a node's name; an invalid one counts as empty, and the record is valid without it."""
    return value if isinstance(value, str) and is_node_name(value) else ""


def _number(row: list[object], index: int, limit: int) -> int:
    """Read a number that a newer version added to the end of a row; 0 for what only a still newer version can read."""
    value = row[index] if len(row) > index else 0
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 < value <= limit else 0


_READERS: Mapping[int, Callable[[bytes, bytes, bytes], Signed | Heartbeat | Doubt | LoadNote]] = {
    RECORD: _record,
    HEARTBEAT: _heartbeat,
    DOUBT: _doubt,
    LOAD: _load,
}
