"""Record of one node: its models, its addresses, and the order of its versions.

Values only. A record is the whole state of one node; no other node may write it.

The abilities of a model, as its worker reports them, and the protocols that its node forwards unchanged are a few bits of it.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag, StrEnum
from functools import cache
from typing import NamedTuple, NewType

from registry.hashed import Hashed
from registry.values import value_class


class Ability(IntFlag):
    """A model's inputs and outputs, whether it calls tools, and the protocol that its worker speaks besides OpenAI's."""

    NOT_SAID = 0
    TEXT_IN = 1
    IMAGE_IN = 2
    AUDIO_IN = 4
    VIDEO_IN = 8
    TEXT_OUT = 16
    IMAGE_OUT = 32
    AUDIO_OUT = 64
    VIDEO_OUT = 128
    TOOLS = 256
    TGI = 512
    LLAMA_STACK = 1024
    LOCALAI = 2048
    REMOTELLM = 4096
    OWN_PATH = 8192


INPUTS = Ability.TEXT_IN | Ability.IMAGE_IN | Ability.AUDIO_IN | Ability.VIDEO_IN
OUTPUTS = Ability.TEXT_OUT | Ability.IMAGE_OUT | Ability.AUDIO_OUT | Ability.VIDEO_OUT
PROTOCOLS = Ability.TGI | Ability.LLAMA_STACK | Ability.LOCALAI | Ability.REMOTELLM
"""Bits that nodes set and no worker reports. `OWN_PATH` is another: the worker serves only the kinds of its type."""


def input_names(abilities: int) -> list[str]:
    """Return the names of the inputs: `text`, `image`, `audio`, `video`; empty if none was reported."""
    return [*_kind_names(abilities & INPUTS)]


def output_names(abilities: int) -> list[str]:
    """Return the names of the outputs, which are the same words."""
    return [*_kind_names(abilities & OUTPUTS)]


@cache
def _kind_names(abilities: int) -> tuple[str, ...]:
    return tuple(str(ability.name).partition("_")[0].lower() for ability in Ability(abilities))


PeerId = NewType("PeerId", str)
"""The text form of an Ed25519 libp2p peer id, `12D3KooW…`."""


class Version(NamedTuple):
    """Version of one node's record: epochs rise at every start, sequences within an epoch."""

    epoch: int
    sequence: int


class ModelType(IntEnum):
    """What a replica does; 0 to 2 are those of `/api/v0`, the others are ours. From 9 on it is a service, not a model."""

    TEXT = 0
    IMAGE = 1
    IMAGE_EDIT = 2
    EMBEDDING = 3
    TRANSCRIPTION = 4
    SPEECH = 5
    RERANK = 6
    SOUND = 7
    STORE = 8
    BATCH = 9
    FINE_TUNING = 10
    REWARD = 11
    SYNTHETIC = 12
    VECTORS = 13
    MEMORY = 14
    AGENTS = 15

    @property
    def cli_name(self) -> str:
        """The name of the type on the command line."""
        return self.name.lower().replace("_", "-")


SERVICE_TYPES = frozenset(kind for kind in ModelType if kind >= ModelType.BATCH)
"""The types that clients request by what they do: any replica under `service_type_name` will do."""


def service_type_name(kind: ModelType) -> str:
    """Return the name under which every replica of a type is found; no model can be registered under it."""
    return f"\t{kind.cli_name}"


def display_name(name: str) -> str:
    """Return a name as messages have it: in quotes, or as that of a service if it is one of `service_type_name`."""
    return f"the {name[1:]} service" if name.startswith("\t") else repr(name)


class Standing(StrEnum):
    """A node's readiness, as it publishes it."""

    SERVING = "serving"
    DRAINING = "draining"
    LEFT = "left"


Key = tuple[str, str, str, ModelType]
"""What distinguishes the replicas of a node: project, model, cid and type."""


@dataclass(frozen=True, slots=True, order=True)
class Service(Hashed):
    """One replica of one model, as other nodes see it. Never contains a worker's address.

    `context` is how many tokens it can read and write in one request, 0 when that is not known. `abilities` are `Ability`
    bits, also those that only newer versions know. `created` is the Unix time of its registration, 0 when that is not known;
    it does not distinguish services.
    """

    project: str
    model: str
    cid: str = ""
    type: ModelType = ModelType.TEXT
    context: int = 0
    abilities: int = 0
    created: int = field(default=0, compare=False)

    __hash__ = Hashed.__hash__

    def __post_init__(self) -> None:
        # A request makes a dozen look-ups by replica.
        key = self.project, self.model, self.cid, self.type, self.context, self.abilities
        object.__setattr__(self, "_hash", hash(key))

    @property
    def key(self) -> Key:
        """What distinguishes it from the other replicas of its node."""
        return self.project, self.model, self.cid, self.type

    @property
    def typed_cid(self) -> str:
        """The cid by which older nodes know it if another type of the same replica has the plain one."""
        return f"{self.cid}#{int(self.type)}"


@dataclass(frozen=True, slots=True)
class Reach:
    """How to reach a node.

    `mesh` holds libp2p multiaddrs, `links` `host:port` pairs of its HTTPS listener, `certificate` the DER
    certificate that the listener shows: its key is the node's identity key.
    """

    mesh: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    certificate: bytes = b""


@dataclass(frozen=True, slots=True, order=True)
class Revocation:
    """Id of a grant that its issuer revokes, and the Unix time at which the grant would have expired."""

    grant: str
    expires: int


@dataclass(frozen=True, slots=True)
class Record:
    """The whole public state of one node at one version.

    `name` is what the node calls itself, for people: two nodes may have the same. `revoked` are grants of its own. `skipped`
    are the places, in rising order, of services in the list as it was signed whose type is unknown here.
    """

    node: PeerId
    version: Version
    standing: Standing = Standing.SERVING
    services: tuple[Service, ...] = ()
    reach: Reach = Reach()
    agent: str = ""
    name: str = ""
    revoked: tuple[Revocation, ...] = ()
    skipped: tuple[int, ...] = field(default=(), compare=False)

    def service_at(self, position: int) -> Service | None:
        """Return the service at a place of the list as it was signed; `None` if none is known there."""
        before = bisect_left(self.skipped, position)
        index = position - before
        if position in self.skipped[before : before + 1] or index >= len(self.services):
            return None
        return self.services[index]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A note that a node lives: the version of its current record, and a beat that rises with every note."""

    node: PeerId
    version: Version
    beat: int


@dataclass(frozen=True, slots=True)
class Doubt:
    """A note that a node cannot reach another. It is a heartbeat as well, and counts as one."""

    node: PeerId
    version: Version
    beat: int
    about: PeerId


@value_class
class Load:
    """How busy one replica is, as its node measures it.

    `slots` is how many requests it takes at one time, 0 when that is not known. `rate` counts the events of text
    streams that went out per second, about its tokens; 0 when nothing streams. `first` is how many seconds its last
    answer took to its first byte, `None` before there was one.
    """

    in_flight: int = 0
    queued: int = 0
    slots: int = 0
    rate: float = 0.0
    first: float | None = None

    @property
    def waiting(self) -> int:
        """The number of requests that a new one would find there."""
        return self.in_flight + self.queued


@dataclass(frozen=True, slots=True)
class LoadNote:
    """A note of how busy a node is. It is a heartbeat as well, and counts as one.

    `rows` name services by their place in the record's list at that version, in rising order.
    """

    node: PeerId
    version: Version
    beat: int
    rows: tuple[tuple[int, Load], ...]
