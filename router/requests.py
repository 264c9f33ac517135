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
    """What a request asks for; the value is the path under `/v1/`."""

    # A kind equals its value, so it is hashed like it; the hash of an enumeration would run in Python.
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
"""Requests to a vector store. It keeps its own data: two replicas are two stores."""

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
"""Requests to services that are not models, by method and path (see `Target`), with the service's type."""

MODEL_KINDS = tuple(kind for kind in Kind if kind not in SERVICES)
"""Requests to models."""

NAMED_BY: dict[Kind, str] = {Kind.SOUND: "model_id", **dict.fromkeys(STORES, "store")}
"""Fields that name the model where `model` is missing: clients of ElevenLabs and of LocalAI's stores send no other."""


@value_class
class Pin:
    """Restriction of the replicas that may answer; an empty field restricts nothing. `but` has failed this very request."""

    project: str = ""
    cid: str | None = None
    node: PeerId | None = None
    but: tuple[PeerId, Service] | None = None


ANYWHERE = Pin()


@dataclass(frozen=True, slots=True)
class Target:
    """Request to a service in its own protocol: a method, and a path with its query as they are sent.

    `protocol` is the dialect of that protocol. `named_by` is the field of the body that names the service.
    """

    protocol: str
    method: str
    path: str
    named_by: str = ""


class PassedHeaders(dict[str, str]):
    """Headers that travel with requests, by lower-case name. Never modified, since their `lines` as sent are cached."""

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
    second hop. `session` is the caller's name for the conversation that it belongs to. `passed` are the headers that travel
    with the request (trace context, nodes passed), by lower-case name. `caller` says for which caller it is, so that all get
    their turn. `waits` says that it may queue: not if it can go to other replicas, unless a slot is expected within `patience`
    seconds. `holds` says that it may wait for a worker to be ready, and `continues` that another worker continues a text stream
    whose worker dies. `fallbacks` are the names to try in turn if no worker answers by the first; the body holds the first
    alone. `verbatim` is the same request in its caller's own protocol, if that is not OpenAI's. `deaths` is the number of
    workers that have died of it. `prefixes` is how its conversation begins. `aim` is the number of seconds within which its
    first byte is wanted, 0 for none. `target` is set for requests to services, whose body may be empty. `background` says that
    all other requests come before it. A `plain` body has no field that only nodes understand; of others that is not known.
    `trace` is set if it is traced.
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

    def for_candidate(
        self, *, waits: bool, patience: float, holds: bool, passed: PassedHeaders
    ) -> "Request":
        """Return it with these fields changed, as a candidate gets it: written out, since it is done for most requests."""
        return Request(
            self.id, self.kind, self.model, self.body, self.content_type, self.stream, self.pin, self.own_only,
            self.session, self.caller, waits, patience, self.aim, holds, self.background, self.continues,
            self.fallbacks, self.verbatim, self.target, self.prefixes, passed, self.deaths, self.plain, self.trace,
        )  # fmt: skip

    @property
    def is_once_only(self) -> bool:
        """Whether it must not be done twice: it begins or changes something at a service."""
        return self.target is not None and self.target.method != "GET"
