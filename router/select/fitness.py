"""Fitness of a replica for a request: by what it was registered as, by what its model takes, and by how many tokens it reads.

Tokens are not counted here, since that takes the model's own tokenizer. A text has surely more than one for each `MOST_BYTES`
bytes, and probably more than one for each `USUAL_BYTES`; those of images and sounds are ignored. The worker has the last word.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import orjson

from registry.records import INPUTS, Ability, ModelType, PeerId, Service, input_names
from router.requests import SERVICES, STORES, Kind, Request

MOST_BYTES = 8
"""Bytes for each token that hardly any text exceeds."""

USUAL_BYTES = 4
"""Bytes for each token of English; code and other scripts have fewer."""

MAX_BYTES = 4 * 1024 * 1024
"""Longer bodies are not parsed for their length: they are images more often than text."""

_TEXT = frozenset({Kind.CHAT, Kind.COMPLETION})
_IMAGES = frozenset({Kind.IMAGE, Kind.IMAGE_EDIT})
_VECTORS = frozenset({Kind.EMBEDDING, Kind.RERANK, Kind.TOKENIZE})
_SERVICE_KINDS = {type_: frozenset({kind}) for kind, type_ in SERVICES.items()}

MADE_FOR: Mapping[ModelType, frozenset[Kind]] = {
    # A model registered without a type is text, and many text servers answer all of these.
    ModelType.TEXT: frozenset(Kind) - frozenset(SERVICES),
    ModelType.IMAGE: _IMAGES,
    ModelType.IMAGE_EDIT: _IMAGES,
    ModelType.EMBEDDING: _VECTORS,
    ModelType.TRANSCRIPTION: frozenset({Kind.TRANSCRIPTION, Kind.TRANSLATION}),
    ModelType.SPEECH: frozenset({Kind.SPEECH}),
    ModelType.RERANK: _VECTORS,
    ModelType.SOUND: frozenset({Kind.SOUND}),
    ModelType.STORE: STORES,
    **_SERVICE_KINDS,
}
"""Kinds of request that a model may get, by the type that it was registered with."""


OWN_KINDS: Mapping[ModelType, frozenset[Kind]] = {
    # Prompts are sent to it as chats.
    ModelType.TEXT: _TEXT,
    ModelType.IMAGE: frozenset({Kind.IMAGE}),
    ModelType.IMAGE_EDIT: frozenset({Kind.IMAGE_EDIT}),
    ModelType.EMBEDDING: frozenset({Kind.EMBEDDING}),
    ModelType.TRANSCRIPTION: frozenset({Kind.TRANSCRIPTION}),
    ModelType.SPEECH: frozenset({Kind.SPEECH}),
    ModelType.RERANK: frozenset({Kind.RERANK}),
    ModelType.SOUND: frozenset({Kind.SOUND}),
    ModelType.STORE: STORES,
    **_SERVICE_KINDS,
}
"""The same for a worker that was registered by the address of a single endpoint."""

_MEANT_TYPES: Mapping[Kind, ModelType] = {
    **{kind: type_ for type_, kinds in OWN_KINDS.items() for kind in kinds},
    Kind.TRANSLATION: ModelType.TRANSCRIPTION,
}
"""The type that a kind of request means, if one replica was registered with several."""


# Plain numbers: flags are slow to compare, and every candidate is compared.
_OWN_PATH, _INPUTS = int(Ability.OWN_PATH), int(INPUTS)


def estimated_tokens(size: int) -> int:
    """Return the probable number of tokens in `size` bytes of text."""
    return -(-size // USUAL_BYTES)


def type_for(kind: Kind) -> ModelType | None:
    """Return the type that a kind of request means, if any."""
    return _MEANT_TYPES.get(kind)


def main_kind(type_: ModelType) -> Kind:
    """Return the kind of request that a type is mainly for."""
    return min(OWN_KINDS[type_], key=[*Kind].index)


def kinds_of(service: Service) -> frozenset[Kind]:
    """Return the kinds of request that a replica may get."""
    return (OWN_KINDS if service.abilities & _OWN_PATH else MADE_FOR)[service.type]


def serves(service: Service, kind: Kind) -> bool:
    """Return whether a replica is made for this kind of request."""
    if service.type is ModelType.TEXT and not service.abilities & _OWN_PATH:
        return kind not in SERVICES
    return kind in kinds_of(service)


class Types:
    """Choice of type: of a replica registered with several types, only the one that a kind of request means is asked."""

    def __init__(self, kind: Kind, offered: Callable[[], Iterable[tuple[PeerId, Service]]]) -> None:
        """`offered` returns all replicas of the name; most have the type that is meant, and then it is not called."""
        self._kind = kind
        self._meant_type = _MEANT_TYPES.get(kind)
        self._offered = offered

    def fits(self, node: PeerId, service: Service) -> bool:
        """Return whether a replica is made for such requests, and no other type of it is meant."""
        if service.type is self._meant_type:
            return not service.abilities & _OWN_PATH or serves(service, self._kind)
        if not serves(service, self._kind):
            return False
        return (node, service.project, service.model, service.cid) not in self._exact_matches

    @cached_property
    def _exact_matches(self) -> frozenset[tuple[PeerId, str, str, str]]:
        return frozenset(
            (node, s.project, s.model, s.cid)
            for node, s in self._offered()
            if s.type is self._meant_type and serves(s, self._kind)
        )


# Inside a text, its quotes would be escaped, so what this finds is a part of a message.
_PARTS: Mapping[bytes, Ability] = {
    b"image_url": Ability.IMAGE_IN,
    b"input_audio": Ability.AUDIO_IN,
    b"video_url": Ability.VIDEO_IN,
}
_PART = re.compile(rb'"type"\s*:\s*"(%b)"' % b"|".join(_PARTS))


def has_known_inputs(service: Service) -> bool:
    """Return whether the inputs of a replica's model are known."""
    return bool(service.abilities & _INPUTS)


class MediaNeeds:
    """Media that a request holds besides text; searched for once, when some replica's abilities are known."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def missing(self, service: Service) -> str:
        """Name the media that the replica's model does not accept, as far as its worker reported; empty if it accepts all."""
        if not has_known_inputs(service):
            return ""
        return " and ".join(input_names(self._needed_media & ~service.abilities))

    @cached_property
    def _needed_media(self) -> Ability:
        needed = Ability.NOT_SAID
        if self._request.kind is Kind.CHAT:
            for part in _PART.finditer(self._request.body):
                needed |= _PARTS[part[1]]
        return needed


class RequestLength:
    """Length of a request in tokens, with those of its answer; computed once, when some replica's context is known."""

    def __init__(self, request: Request) -> None:
        self._request = request

    @cached_property
    def minimum_tokens(self) -> int:
        """Number of tokens that it surely needs."""
        text, tokens = self._read
        return text // MOST_BYTES + tokens

    @cached_property
    def likely_tokens(self) -> int:
        """Number of tokens that it probably needs."""
        text, tokens = self._read
        return text // USUAL_BYTES + tokens

    def exceeds(self, service: Service) -> bool:
        """Return whether it is surely too long for a replica."""
        return 0 < service.context < self.minimum_tokens

    def may_exceed_context(self, service: Service) -> bool:
        """Return whether it is probably too long for a replica."""
        return 0 < service.context < self.likely_tokens

    @cached_property
    def _read(self) -> tuple[int, int]:
        """Return the bytes of text, and the number of tokens that are given as numbers."""
        request = self._request
        # A text to tokenize is not read by the model, and a service's body may be anything.
        if request.kind is Kind.TOKENIZE or request.target is not None:
            return 0, 0
        if len(request.body) > MAX_BYTES or "json" not in request.content_type:
            return 0, 0
        fields = orjson.loads(request.body)
        if not isinstance(fields, dict):
            return 0, 0
        text = sum(map(_text_of, _list(fields.get("messages"))))
        if isinstance(tools := fields.get("tools"), list):
            text += sum(map(_text_of_tool, tools))
        inputs = [_measure_input(fields.get(name)) for name in ("prompt", "input")]
        answer = max(_count(fields.get(name)) for name in ("max_tokens", "max_completion_tokens"))
        return text + sum(t for t, _ in inputs), answer + sum(n for _, n in inputs)


def _text_of(message: object) -> int:
    if not isinstance(message, dict):
        return 0
    match message.get("content"):
        case str(text):
            return len(text.encode(errors="replace"))
        case list(parts):
            texts = (part.get("text") for part in parts if isinstance(part, dict))
            return sum(len(t.encode(errors="replace")) for t in texts if isinstance(t, str))
    return 0


def _text_of_tool(tool: object) -> int:
    try:
        return len(orjson.dumps(tool))
    except orjson.JSONEncodeError:
        # Too deep to be serialized again, so too deep for a tool.
        return 0


def _measure_input(value: object) -> tuple[int, int]:
    """Return the bytes and tokens of a text, of tokens, or of the longest of several of these: each is read separately."""
    match value:
        case [int(), *_] as tokens:
            return 0, len(tokens)
        case list(several):
            return max(map(_measure_one, several), key=sum, default=(0, 0))
    return _measure_one(value)


def _measure_one(value: object) -> tuple[int, int]:
    match value:
        case str(text):
            return len(text.encode(errors="replace")), 0
        case list(tokens):
            return 0, len(tokens)
    return 0, 0


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _list(value: object) -> Iterable[object]:
    return value if isinstance(value, list) else ()
