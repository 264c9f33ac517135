"""Request for speech, or for a sound."""

from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from router.canonical.values import DATA_URI, choice, flag, needed, number, others, text, whole
from router.errors import BadRequest
from router.openai.body import object_of
from router.requests import Request

MAX_TEXT_CHARACTERS = 100_000
"""The longest text that is spoken; OpenAI takes 4,096."""

MAX_VOICE_CHARACTERS = 256
"""The longest name of a voice."""

MAX_LANGUAGE_CHARACTERS = 32
"""The longest name of a language."""

MAX_SOUND_SECONDS = 600.0
"""The longest sound."""

MAX_SOURCE_CHARACTERS = 90_000_000
"""The longest source of a sound, in base64."""

SHAPING = frozenset({"stream", "stream_format", "output_format"})
"""Fields that are not read, and without which the answer would be of another kind."""

READ = frozenset({"model", "models", "input", "voice", "language", "response_format", "speed"})
"""Fields that are read of a request for speech."""

READ_OF_SOUND = frozenset({
    "model", "models", "model_id", "text", "duration_seconds", "prompt_influence", "do_sample", "response_format",
    "src", "src_divisor",
})  # fmt: skip
"""Fields that are read of a request for a sound."""

_USUAL: Mapping[str, object] = {"stream_format": "audio"}

Format: TypeAlias = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


@dataclass(frozen=True, slots=True)
class Speech:
    """A text to be spoken; `format` is `None` if the caller leaves it to the worker."""

    text: str
    voice: str
    language: str
    format: Format | None
    speed: float | None
    others: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Sound:
    """A sound to be made from a description. `influence`, from 0 to 1, is how closely the sound follows it.

    `source` is a sound to continue; with a `divisor`, only the first part of it counts.
    """

    text: str
    seconds: float | None
    influence: float | None
    sample: bool | None
    format: Format | None
    source: bytes
    divisor: int | None
    others: Mapping[str, object]


def read(request: Request) -> Speech:
    """Read a request for speech; raise `BadRequest`, which names the field."""
    fields = object_of(request.body)
    return Speech(
        text=needed(fields, "input", MAX_TEXT_CHARACTERS),
        voice=_voice(fields),
        language=text(fields, "language", MAX_LANGUAGE_CHARACTERS),
        format=_format(fields),
        speed=number(fields, "speed", 0.25, 4, usual=1),
        others=others(fields, READ, _USUAL),
    )


def read_sound(request: Request) -> Sound:
    """Read a request for a sound, in the form of ElevenLabs; raise `BadRequest`, which names the field."""
    fields = object_of(request.body)
    return Sound(
        text=needed(fields, "text", MAX_TEXT_CHARACTERS),
        seconds=number(fields, "duration_seconds", 0.1, MAX_SOUND_SECONDS),
        influence=number(fields, "prompt_influence", 0, 1),
        sample=flag(fields, "do_sample"),
        format=_format(fields),
        source=_source(fields),
        divisor=whole(fields, "src_divisor", 1, 2**31 - 1),
        others=others(fields, READ_OF_SOUND, _USUAL),
    )


def _source(fields: Mapping[str, object]) -> bytes:
    given = text(fields, "src", MAX_SOURCE_CHARACTERS)
    if not given:
        return b""
    if written := DATA_URI.match(given):
        with suppress(ValueError):
            return b64decode(given[written.end() :], validate=True)
    raise BadRequest("`src` must be a sound, as a data URI in base64", param="src")


def _voice(fields: Mapping[str, object]) -> str:
    match fields.get("voice"):
        case {"id": str(name)} if len(name) <= MAX_VOICE_CHARACTERS:
            return name
        case dict():
            raise BadRequest("`voice` must be a name, or an object with an `id`", param="voice")
    return text(fields, "voice", MAX_VOICE_CHARACTERS)


def _format(fields: Mapping[str, object]) -> Format | None:
    said = choice(fields, "response_format", "", "mp3", "opus", "aac", "flac", "wav", "pcm")
    return cast("Format", said) if said else None
