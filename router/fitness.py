"""Is a replica made for such a request? By what it was registered as, and by how many tokens it can read.

Nobody counts tokens here, that takes the model's own tokenizer. A text has surely more than one for each `MOST_BYTES` bytes,
and probably more than one for each `USUAL_BYTES`; what images and sounds take is not counted. The worker has the last word.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

import orjson

from registry.records import ModelType, Service
from router.requests import Kind, Request

MOST_BYTES = 8
"""Bytes of text for each token that hardly any text exceeds."""

USUAL_BYTES = 4
"""The same of English; code and other scripts have fewer."""

MAX_BYTES = 4 * 1024 * 1024
"""Longer bodies are not read for their length: they are images more often than text."""

_TEXT = frozenset({Kind.CHAT, Kind.COMPLETION})
_IMAGES = frozenset({Kind.IMAGE, Kind.IMAGE_EDIT})
_VECTORS = frozenset({Kind.EMBEDDING, Kind.RERANK})

MADE_FOR: Mapping[ModelType, frozenset[Kind]] = {
    # What is registered without a type is text, and many servers of text answer all of these.
    ModelType.TEXT: frozenset(Kind),
    ModelType.IMAGE: _IMAGES,
    ModelType.IMAGE_EDIT: _IMAGES,
    ModelType.EMBEDDING: _VECTORS,
    ModelType.TRANSCRIPTION: frozenset({Kind.TRANSCRIPTION, Kind.TRANSLATION}),
    ModelType.SPEECH: frozenset({Kind.SPEECH}),
    ModelType.RERANK: _VECTORS,
}
"""What may be asked of a model, by the type that it was registered with."""


def serves(service: Service, kind: Kind) -> bool:
    """Say whether a replica is made for such requests."""
    return service.type is ModelType.TEXT or kind in MADE_FOR[service.type]


class Length:
    """How long a request is in tokens, with those of its answer; read when somebody's context is known, and once."""

    def __init__(self, request: Request) -> None:
        self._request = request

    @cached_property
    def least(self) -> int:
        """How many tokens it surely needs."""
        text, tokens = self._read
        return text // MOST_BYTES + tokens

    @cached_property
    def usual(self) -> int:
        """How many tokens it probably needs."""
        text, tokens = self._read
        return text // USUAL_BYTES + tokens

    def beyond(self, service: Service) -> bool:
        """Say whether it is surely too long for a replica."""
        return 0 < service.context < self.least

    def strains(self, service: Service) -> bool:
        """Say whether it is probably too long for a replica."""
        return 0 < service.context < self.usual

    @cached_property
    def _read(self) -> tuple[int, int]:
        """Return bytes of text, and tokens that are named in numbers."""
        request = self._request
        if len(request.body) > MAX_BYTES or "json" not in request.content_type:
            return 0, 0
        said = orjson.loads(request.body)
        if not isinstance(said, dict):
            return 0, 0
        text = sum(map(_text_of, _list(said.get("messages"))))
        if isinstance(tools := said.get("tools"), list):
            text += sum(map(_text_of_tool, tools))
        inputs = [_input(said.get(name)) for name in ("prompt", "input")]
        answer = max(_count(said.get(name)) for name in ("max_tokens", "max_completion_tokens"))
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
        # Too deep to be written again, so too deep for a tool.
        return 0


def _input(given: object) -> tuple[int, int]:
    """Return bytes and tokens of a text, of tokens, or of the longest of several of either: each is read by itself."""
    match given:
        case [int(), *_] as tokens:
            return 0, len(tokens)
        case list(several):
            return max(map(_alone, several), key=sum, default=(0, 0))
    return _alone(given)


def _alone(given: object) -> tuple[int, int]:
    match given:
        case str(text):
            return len(text.encode(errors="replace")), 0
        case list(tokens):
            return 0, len(tokens)
    return 0, 0


def _count(given: object) -> int:
    return given if isinstance(given, int) and given > 0 else 0


def _list(given: object) -> Iterable[object]:
    return given if isinstance(given, list) else ()
