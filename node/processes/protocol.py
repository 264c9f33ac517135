"""Protocol between the processes of one node: length-prefixed frames, each a message of a type from a closed list.

Both ends are the same program, joined by a socket pair that no other program holds. Lengths and shapes are checked all the same:
an unreadable message ends the connection, and with it the helper, which is then restarted.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar, cast

from pydantic import Base64Bytes, BeforeValidator, PlainSerializer, TypeAdapter, ValidationError

from node.auth.books import WaitingReceipt
from node.auth.key_table import GrantRules
from node.auth.keys import ApiKey, QuotaSpending, QuotaStanding
from node.auth.usage_row import UsageRow
from node.config.settings import Settings
from node.errors import NodeError
from node.observe.counters import Counts
from node.observe.log_writer import LogLine
from node.observe.measurements import HistogramValue
from node.observe.recent import NoRoomCount
from registry.members.liveness import Evidence, Presence
from registry.records import Load, PeerId, Service
from router.workers import Worker

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""The longest frame. A table of 2,000 workers with every field at full length has some 32 MB."""

_LENGTH = struct.Struct(">I")

Message_contra = TypeVar("Message_contra", contravariant=True)


class Sender(Protocol[Message_contra]):
    """Way to the process at the other end."""

    def send(self, message: Message_contra, /) -> None:
        """Send a message; once the other end is gone, drop it."""


class Unreadable(NodeError):
    """A message of another process of this node cannot be read."""


# From the first process to a helper.


def _text_of(settings: Settings) -> str:
    """Return settings as JSON in ASCII: a path among them need not be UTF-8."""
    return json.dumps(settings.model_dump(mode="json"))


def _settings_in(text: object) -> object:
    return json.loads(text) if isinstance(text, str) else text


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: the node's identity, listeners and settings. `seed` is its key, which no other message carries."""

    seed: Base64Bytes = field(repr=False)
    settings: Annotated[Settings, PlainSerializer(_text_of), BeforeValidator(_settings_in)]
    http: str
    link: str
    grant: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class WorkersHeld:
    """All workers of this machine; replaces the previous table."""

    workers: tuple[Worker, ...]


@dataclass(frozen=True, slots=True)
class KeysHeld:
    """All keys of users, and the rules by which grants are valid; replaces the previous ones."""

    keys: tuple[ApiKey, ...] = field(repr=False)
    rules: GrantRules


@dataclass(frozen=True, slots=True)
class QuotaStandings:
    """Standings of recently used keys' quotas over all processes and all nodes of the site."""

    standings: tuple[QuotaStanding, ...]


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node's presence and its signed record; an empty `frame` means that the record has not changed."""

    node: PeerId
    presence: Presence
    frame: Base64Bytes = b""


@dataclass(frozen=True, slots=True)
class NodeForgotten:
    """The registry no longer holds a record of a node."""

    node: PeerId


@dataclass(frozen=True, slots=True)
class LoadHeard:
    """Load that a node reports of its replicas."""

    node: PeerId
    loads: tuple[tuple[Service, Load], ...]


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """The answer to `ProbeAsked`: whether the node has left a probe of the first process unanswered."""

    node: PeerId
    silent: bool


@dataclass(frozen=True, slots=True)
class StateAsked:
    """Query for a `LoadReport`. A helper answers it after it has taken in all earlier messages.

    `beside` is the number of requests that other processes have at each worker of this machine.
    """

    number: int
    beside: tuple[tuple[Service, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SlotGranted:
    """The answer to `SlotAsked`: the worker whose slot is granted, or `None`."""

    number: int
    service: Service | None


@dataclass(frozen=True, slots=True)
class SlotRefused:
    """The answer to `SlotAsked`: all workers and the queue are full; without `retry_after`, no worker serves the model now."""

    number: int
    why: str
    retry_after: float | None


@dataclass(frozen=True, slots=True)
class Relayed:
    """The answer to `ReachAsked`: whether a peer is connected through a relay."""

    number: int
    relayed: bool


@dataclass(frozen=True, slots=True)
class LinesAsked:
    """Query for the last log lines that are no older than `since`, answered by `LinesTold`."""

    number: int
    since: float


@dataclass(frozen=True, slots=True)
class Leave:
    """Order to accept no more connections of callers, or, after that, to close all others and end."""

    ends: bool = True


ToHelper = (
    Hello
    | WorkersHeld
    | KeysHeld
    | QuotaStandings
    | NodeSeen
    | NodeForgotten
    | LoadHeard
    | NodeSilent
    | StateAsked
    | SlotGranted
    | SlotRefused
    | Relayed
    | LinesAsked
    | Leave
)
"""Messages from the first process to a helper."""


# From a helper to the first process.


@dataclass(frozen=True, slots=True)
class Ready:
    """The helper serves now."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The answer to `StateAsked`. `in_flight` and `loads` exclude borrowed slots, which the first process counts."""

    number: int
    in_flight: int
    loads: tuple[tuple[Service, Load], ...]
    counts: Counts
    loop_lag: float
    loop_busy: float


@dataclass(frozen=True, slots=True)
class EvidenceShown:
    """Evidence about a node from a request."""

    node: PeerId
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class RecordStale:
    """A node has answered that it no longer serves a model: the record held of it is outdated."""

    node: PeerId


@dataclass(frozen=True, slots=True)
class ProbeAsked:
    """Request to probe a node, because a request waits for it."""

    node: PeerId


@dataclass(frozen=True, slots=True)
class SlotAsked:
    """Request for a slot of the first of these workers that has one free; with `waiting`, queue for it."""

    number: int
    services: tuple[Service, ...]
    waiting: bool = False
    model: str = ""
    caller: str = ""
    waits: bool = True
    patience: float = 0.0
    background: bool = False


@dataclass(frozen=True, slots=True)
class SlotCancelled:
    """The request that wanted a slot was cancelled."""

    number: int


@dataclass(frozen=True, slots=True)
class SlotFreed:
    """Return of a slot of this worker."""

    service: Service


@dataclass(frozen=True, slots=True)
class SlotUsed:
    """A request for a model held its slot for this many seconds."""

    model: str
    seconds: float


@dataclass(frozen=True, slots=True)
class QuotaSpent:
    """Spending of keys' quotas since the previous message."""

    spent: tuple[QuotaSpending, ...]


@dataclass(frozen=True, slots=True)
class UsageCounted:
    """Usage of requests since the previous message."""

    rows: tuple[UsageRow, ...]


@dataclass(frozen=True, slots=True)
class ReceiptsMade:
    """Receipts of answers between this node and other nodes since the previous message."""

    receipts: tuple[WaitingReceipt, ...]


@dataclass(frozen=True, slots=True)
class RequestsObserved:
    """Refusals for lack of room, and measurements for a collector, since the previous message."""

    refused: tuple[NoRoomCount, ...]
    measured: tuple[HistogramValue, ...] = ()


@dataclass(frozen=True, slots=True)
class ReachAsked:
    """Request to connect to a peer unless it is connected, answered by `Relayed`."""

    number: int
    node: PeerId


@dataclass(frozen=True, slots=True)
class LinesTold:
    """The answer to `LinesAsked`."""

    number: int
    lines: tuple[LogLine, ...]


ToFirst = (
    Ready
    | LoadReport
    | EvidenceShown
    | RecordStale
    | ProbeAsked
    | SlotAsked
    | SlotCancelled
    | SlotFreed
    | SlotUsed
    | QuotaSpent
    | UsageCounted
    | ReceiptsMade
    | RequestsObserved
    | ReachAsked
    | LinesTold
)
"""Messages from a helper to the first process."""

_ADAPTERS = {kind: TypeAdapter(kind) for kind in (*ToHelper.__args__, *ToFirst.__args__)}
_TO_HELPER = {kind.__name__.encode(): _ADAPTERS[kind] for kind in ToHelper.__args__}
_TO_FIRST = {kind.__name__.encode(): _ADAPTERS[kind] for kind in ToFirst.__args__}


def encode_frame(message: ToHelper | ToFirst) -> bytes:
    """Encode a message as a frame: its type, a space, and its fields in JSON; raise `Unreadable` if it is too long."""
    kind = type(message)
    body = b"%b %b" % (kind.__name__.encode(), _ADAPTERS[kind].dump_json(message))
    if len(body) > MAX_FRAME_BYTES:
        raise Unreadable(f"a frame of {len(body)} bytes is too long")
    return _LENGTH.pack(len(body)) + body


def read_by_helper(body: bytes) -> ToHelper:
    """Decode a message of the first process; raise `Unreadable`."""
    return cast("ToHelper", _read(body, _TO_HELPER))


def read_by_first(body: bytes) -> ToFirst:
    """Decode a message of a helper; raise `Unreadable`."""
    return cast("ToFirst", _read(body, _TO_FIRST))


def _read(body: bytes, adapters: Mapping[bytes, TypeAdapter[Any]]) -> object:
    kind, _, fields = body.partition(b" ")
    try:
        return adapters[kind].validate_json(fields)
    except (KeyError, ValidationError) as error:
        raise Unreadable(f"another process sent an invalid message: {kind[:40]!r}") from error


class Frames:
    """Splitter of received bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def split(self, data: bytes) -> list[bytes]:
        """Add bytes and return the complete frames; raise `Unreadable` for one that is too long."""
        buffer = self._buffer
        buffer += data
        frames, start = list[bytes](), 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise Unreadable(f"a frame of {length} bytes is too long")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            frames.append(bytes(buffer[start + _LENGTH.size : end]))
            start = end
        del buffer[:start]
        return frames
