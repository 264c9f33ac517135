"""Request: one value for every kind of request, with its original bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from registry.records import ModelType, PeerId, Service
from registry.values import value_class
from router.openai.prefixes import NONE, Prefixes
from router.translate.verbatim import Verbatim

if TYPE_CHECKING:
    from router.trace import Trace


class Kind(StrEnum):
    """What a request wants done; the value is the path under `/v1/`."""

    # Equal to its value, so hashed like it; an enumeration's own does it in Python.
    __hash__ = str.__hash__

    CHAT = "chat/completions"
    COMPLETION = "completions"
    EMBEDDING = "embeddings"
    IMAGE = "images/generations"
    IMAGE_EDIT = "images/edits"
    TRANSCRIPTION = "audio/transcriptions"
    TRANSLATION = "audio/translations"
    SPEECH = "audio/speech"
    RERANK = "rerank"
    SOUND = "sound-generation"
    TOKENIZE = "tokenize"
    GUTS = "x/guts"
    STORE_SET = "stores/set"
    STORE_DELETE = "stores/delete"
    STORE_GET = "stores/get"
    STORE_FIND = "stores/find"
    BATCH = "services/batch"
    FINE_TUNING = "services/fine-tuning"
    REWARD = "services/reward"
    SYNTHETIC = "services/synthetic"
    VECTORS = "services/vectors"
    MEMORY = "services/memory"
    AGENTS = "services/agents"


STORES = frozenset({Kind.STORE_SET, Kind.STORE_DELETE, Kind.STORE_GET, Kind.STORE_FIND})
"""What may be asked of a store of vectors. It keeps what it is given: two replicas are two stores."""

SERVICES: Mapping[Kind, ModelType] = MappingProxyType(
    {
        kind: ModelType[kind.name]
        for kind in (
            Kind.BATCH,
            Kind.FINE_TUNING,
            Kind.REWARD,
            Kind.SYNTHETIC,
            Kind.VECTORS,
            Kind.MEMORY,
            Kind.AGENTS,
        )
    }
)
"""What is asked of services that are no models: by method and path, see `Target`."""

MODEL_KINDS = tuple(kind for kind in Kind if kind not in SERVICES)
"""What is asked of models."""

NAMED_BY: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.SOUND: "model_id",
        **dict.fromkeys(STORES, "store"),
    }
)
"""Fields that name the model where `model` is missing: clients of ElevenLabs and of LocalAI's stores know no other."""


@value_class
class Pin:
    """Restricts the choice of who may answer; an empty field restricts nothing. `but` is who has failed this very request."""

    project: str = ""
    cid: str | None = None
    node: PeerId | None = None
    but: tuple[PeerId, Service] | None = None


ANYWHERE = Pin()


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked of a service, as its protocol has it: a method, and a path with its query as they are sent.

    `protocol` is the dialect whose words these are. `named_by` is the field of the body that names the service.
    """

    protocol: str
    method: str
    path: str
    named_by: str = ""


class PassedHeaders(dict[str, str]):
    """Headers that travel with requests, by lower-case name, and how they are sent. Not changed, since that is kept."""

    __slots__ = ("lines",)

    lines: str | None

    def __init__(self, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(headers)
        self.lines = None


NOTHING_PASSED = PassedHeaders()


@value_class
class Request:
    """One request. `model` is the name as the caller wrote it, `MODEL` or `PROJECT/MODEL`.

    `own_only` is set for requests that another node sent on: only this node's workers may answer, so there is no
    second hop. `session` is what the caller calls the conversation that it belongs to. `passed` are the headers that travel
    with the request (trace context, nodes passed), lower-case names. `caller` tells whom it is for, so that all get their
    turn, and `waits` says that it may queue: not when it has others to go to, unless a slot is to be expected within
    `patience` seconds. `holds` says that it may wait for somebody to be ready, and `continues` that another worker shall take
    up a text stream whose worker dies. `fallbacks` are the names to be asked for in turn when nobody answers by the first; the
    body holds the first alone. `verbatim` is the same request in its caller's own words, where those are not OpenAI's. `deaths`
    is how many workers have died of it. `prefixes` is how its conversation begins. `aim` are the seconds within which its first
    byte is wanted, if any. `target` is set for requests of services, whose body may be empty. `background` says that all
    others come before it. The body of one that is `plain` has no field that only nodes understand; of others that is not known.
    `trace` is set for what is traced.
    """

    id: str
    kind: Kind
    model: str
    body: bytes
    content_type: str
    stream: bool = False
    pin: Pin = ANYWHERE
    own_only: bool = False
    session: str = ""
    caller: str = ""
    waits: bool = True
    patience: float = 0.0
    aim: float = 0.0
    holds: bool = True
    background: bool = False
    continues: bool = False
    fallbacks: tuple[str, ...] = ()
    verbatim: Verbatim | None = None
    target: Target | None = None
    prefixes: Prefixes = NONE
    passed: PassedHeaders = field(default_factory=lambda: NOTHING_PASSED)
    deaths: int = 0
    plain: bool = False
    trace: "Trace | None" = field(default=None, compare=False)

    @property
    def once(self) -> bool:
        """Whether it must not be done twice: what begins or changes something at a service."""
        return self.target is not None and self.target.method != "GET"
