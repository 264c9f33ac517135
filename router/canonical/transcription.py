"""Request for the transcript of a recording, in its own language or in English."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from router.canonical.values import choice, filled, number, others, text
from router.errors import BadRequest
from router.requests import Kind, Request

MAX_LANGUAGE_CHARACTERS = 32
"""The longest name of a language; `en` and `zh-Hans` are usual."""

MAX_HINT_CHARACTERS = 32_000
"""The longest `prompt`, a text that sets the style."""

SHAPING = frozenset({"stream"})
"""Fields that are not read, and without which the answer would be of another kind."""

READ = frozenset({
    "model", "models", "file", "language", "prompt", "response_format", "temperature", "timestamp_granularities",
})  # fmt: skip
"""Fields that are read here."""

Format: TypeAlias = Literal["json", "text", "srt", "verbose_json", "vtt"]
_GRANULARITIES = ("segment", "word")


@dataclass(frozen=True, slots=True)
class Transcription:
    """A recording to be transcribed; `words` requests the time of each word, `translate` a text in English."""

    audio: bytes
    language: str
    prompt: str
    temperature: float | None
    format: Format
    words: bool
    translate: bool
    others: Mapping[str, object]


def read(request: Request) -> Transcription:
    """Read a form with a recording; raise `BadRequest`, which names the field."""
    form = filled(request, frozenset({"temperature", "stream"}))
    fields, files = form.fields, form.files.get("file", ())
    if len(files) != 1 or not files[0]:
        raise BadRequest("`file` must be one recording, in a multipart form", param="file")
    return Transcription(
        audio=files[0],
        language=text(fields, "language", MAX_LANGUAGE_CHARACTERS),
        prompt=text(fields, "prompt", MAX_HINT_CHARACTERS),
        temperature=number(fields, "temperature", 0, 1),
        format=cast(
            "Format",
            choice(fields, "response_format", "json", "text", "srt", "verbose_json", "vtt"),
        ),
        words="word" in _granularities(fields),
        translate=request.kind is Kind.TRANSLATION,
        others=others(fields, READ),
    )


def _granularities(fields: Mapping[str, object]) -> list[object]:
    given = fields.get("timestamp_granularities")
    said = given if isinstance(given, list) else [given] if given else []
    if any(one not in _GRANULARITIES for one in said):
        name = "timestamp_granularities"
        raise BadRequest(f"`{name}` are of: {', '.join(_GRANULARITIES)}", param=name)
    return said
