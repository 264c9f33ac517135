"""Protocol between the processes of one node: frames of JSON behind their length, each of a type from a closed list.

Both ends are this very program, joined by a socket pair that nobody else holds. Lengths and shapes are checked all the same: what
cannot be read ends the connection, and with it the helper, which is then started anew.
"""

import struct
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Base64Bytes, Field, TypeAdapter, ValidationError

from node.auth.key_table import GrantRules
from node.auth.keys import ApiKey
from node.auth.quotas import QuotaSpending, QuotaStanding
from node.auth.receipts import Receipt
from node.auth.usage_row import UsageRow
from node.config.settings import Settings
from node.errors import NodeError
from node.observe.counters import Counts
from node.observe.log_line import LogLine
from node.observe.measurements import Measured
from node.observe.recent import NoRoomCount
from registry.members.liveness import Evidence, Presence
from registry.records import Load, PeerId, Service
from router.workers import Worker

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""The longest frame: a table of 2,000 workers with all that can be said of each, at full length, has some 32 MB."""

_LENGTH = struct.Struct(">I")


class Unreadable(NodeError):
    """What another process of this node said cannot be read."""


# From the first to a helper.


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first word: who this node is, where it listens, and its settings. `seed` is its key: nothing else carries it."""

    seed: Base64Bytes = field(repr=False)
    settings: Settings
    http: str
    link: str
    grant: str = field(default="", repr=False)
    kind: Literal["welcome"] = "welcome"


@dataclass(frozen=True, slots=True)
class Table:
    """All workers of this machine, from now on."""

    workers: tuple[Worker, ...]
    kind: Literal["table"] = "table"


@dataclass(frozen=True, slots=True)
class KeysHeld:
    """All keys of users, and which grants hold, from now on."""

    keys: tuple[ApiKey, ...] = field(repr=False)
    rules: GrantRules
    kind: Literal["keys"] = "keys"


@dataclass(frozen=True, slots=True)
class QuotaStandings:
    """How all processes, and all nodes of the site, stand with keys that were used lately."""

    standings: tuple[QuotaStanding, ...]
    kind: Literal["standings"] = "standings"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a node is to us, and the record that it signed; an empty `frame` says that it has not changed."""

    node: PeerId
    presence: Presence
    frame: Base64Bytes = b""
    kind: Literal["seen"] = "seen"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The registry holds nothing of a node any more."""

    node: PeerId
    kind: Literal["forgotten"] = "forgotten"


@dataclass(frozen=True, slots=True)
class LoadHeard:
    """What a node says of how busy its replicas are."""

    node: PeerId
    loads: tuple[tuple[Service, Load], ...]
    kind: Literal["heard"] = "heard"


@dataclass(frozen=True, slots=True)
class Silent:
    """Whether a node that a helper asked to have looked at left our probe unanswered."""

    node: PeerId
    silent: bool
    kind: Literal["silent"] = "silent"


@dataclass(frozen=True, slots=True)
class Ask:
    """Say how you are, in a `LoadReport`; it comes after all that was told before has been taken in.

    `beside` says how many requests of other processes each worker of this machine has.
    """

    number: int
    beside: tuple[tuple[Service, int], ...] = ()
    kind: Literal["ask"] = "ask"


@dataclass(frozen=True, slots=True)
class SlotGranted:
    """The answer to `Take`: a slot of this worker is yours, or of none."""

    number: int
    service: Service | None
    kind: Literal["granted"] = "granted"


@dataclass(frozen=True, slots=True)
class SlotRefused:
    """The answer to `Take`: all are full, and so is the queue; or, without a time to come again, nobody serves it now."""

    number: int
    why: str
    retry_after: float | None
    kind: Literal["refused"] = "refused"


@dataclass(frozen=True, slots=True)
class Relayed:
    """The answer to `ReachAsked`: whether a peer is connected through a relay."""

    number: int
    relayed: bool
    kind: Literal["relayed"] = "relayed"


@dataclass(frozen=True, slots=True)
class LinesAsked:
    """Say the last lines of your log that are no older than a time, in `LinesTold`."""

    number: int
    since: float
    kind: Literal["lines?"] = "lines?"


@dataclass(frozen=True, slots=True)
class Leave:
    """Take nothing new, let go of who is connected, and end."""

    kind: Literal["leave"] = "leave"


Told = (
    Welcome
    | Table
    | KeysHeld
    | QuotaStandings
    | Seen
    | Forgotten
    | LoadHeard
    | Silent
    | Ask
    | SlotGranted
    | SlotRefused
    | Relayed
    | LinesAsked
    | Leave
)
"""What the first tells a helper."""


# From a helper to the first.


@dataclass(frozen=True, slots=True)
class Ready:
    """This helper serves."""

    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The answer to `Ask`. `in_flight` and `loads` leave out the slots that are borrowed: the first knows of them."""

    number: int
    in_flight: int
    loads: tuple[tuple[Service, Load], ...]
    counts: Counts
    loop_lag: float
    loop_busy: float
    kind: Literal["report"] = "report"


@dataclass(frozen=True, slots=True)
class EvidenceShown:
    """What a request has shown about a node."""

    node: PeerId
    evidence: Evidence
    kind: Literal["shown"] = "shown"


@dataclass(frozen=True, slots=True)
class Stale:
    """A node said that it does not serve a model any more: what we hold of it is behind."""

    node: PeerId
    kind: Literal["stale"] = "stale"


@dataclass(frozen=True, slots=True)
class Look:
    """Somebody waits for this node: have it looked at."""

    node: PeerId
    kind: Literal["look"] = "look"


@dataclass(frozen=True, slots=True)
class Take:
    """Give me a slot of the first of these workers that has one; with `waiting` wait for it in turn."""

    number: int
    services: tuple[Service, ...]
    waiting: bool = False
    model: str = ""
    caller: str = ""
    waits: bool = True
    patience: float = 0.0
    background: bool = False
    kind: Literal["take"] = "take"


@dataclass(frozen=True, slots=True)
class Cancel:
    """Whoever wanted to take a slot has left."""

    number: int
    kind: Literal["cancel"] = "cancel"


@dataclass(frozen=True, slots=True)
class Freed:
    """Have a slot of this worker back."""

    service: Service
    kind: Literal["freed"] = "freed"


@dataclass(frozen=True, slots=True)
class Took:
    """A request for a model had its slot for so many seconds."""

    model: str
    seconds: float
    kind: Literal["took"] = "took"


@dataclass(frozen=True, slots=True)
class QuotaSpent:
    """What requests have spent of keys' quotas since this was said last."""

    spent: tuple[QuotaSpending, ...]
    kind: Literal["spent"] = "spent"


@dataclass(frozen=True, slots=True)
class UsageCounted:
    """What requests have used since this was said last."""

    rows: tuple[UsageRow, ...]
    kind: Literal["usage"] = "usage"


@dataclass(frozen=True, slots=True)
class ReceiptsMade:
    """What was written down of answers between this node and others since this was said last, by peer."""

    receipts: tuple[tuple[str, Receipt], ...]
    kind: Literal["receipts"] = "receipts"


@dataclass(frozen=True, slots=True)
class Observed:
    """What found no room, and what was measured for a collector, since this was said last."""

    refused: tuple[NoRoomCount, ...]
    measured: tuple[Measured, ...] = ()
    kind: Literal["observed"] = "observed"


@dataclass(frozen=True, slots=True)
class ReachAsked:
    """Connect to this peer unless it is connected, and say how."""

    number: int
    node: PeerId
    kind: Literal["reach"] = "reach"


@dataclass(frozen=True, slots=True)
class LinesTold:
    """The answer to `LinesAsked`."""

    number: int
    lines: tuple[LogLine, ...]
    kind: Literal["lines"] = "lines"


Said = (
    Ready
    | LoadReport
    | EvidenceShown
    | Stale
    | Look
    | Take
    | Cancel
    | Freed
    | Took
    | QuotaSpent
    | UsageCounted
    | ReceiptsMade
    | Observed
    | ReachAsked
    | LinesTold
)
"""What a helper says to the first."""

_TOLD: TypeAdapter[Told] = TypeAdapter(Annotated[Told, Field(discriminator="kind")])
_SAID: TypeAdapter[Said] = TypeAdapter(Annotated[Said, Field(discriminator="kind")])


def framed(word: Told | Said) -> bytes:
    """Return a message as the bytes that go over the wire; raise `Unreadable` when it is too long."""
    body = _WRITERS[type(word)].dump_json(word)
    if len(body) > MAX_FRAME_BYTES:
        raise Unreadable(f"a frame of {len(body)} bytes is too long")
    return _LENGTH.pack(len(body)) + body


def told(body: bytes) -> Told:
    """Read what the first tells; raise `Unreadable`."""
    try:
        return _TOLD.validate_json(body)
    except ValidationError as error:
        raise Unreadable(f"the first process sent an invalid message: {error.title}") from error


def said(body: bytes) -> Said:
    """Read what a helper says; raise `Unreadable`."""
    try:
        return _SAID.validate_json(body)
    except ValidationError as error:
        raise Unreadable(f"a helper sent an invalid message: {error.title}") from error


class Frames:
    """Cuts what comes over the wire into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def cut(self, data: bytes) -> list[bytes]:
        """Take in bytes and return the frames that are whole; raise `Unreadable` for one that is too long."""
        buffer = self._buffer
        buffer += data
        found: list[bytes] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise Unreadable(f"a frame of {length} bytes is too long")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            found.append(bytes(buffer[start + _LENGTH.size : end]))
            start = end
        del buffer[:start]
        return found


_WRITERS = {kind: TypeAdapter(kind) for kind in (*Told.__args__, *Said.__args__)}
