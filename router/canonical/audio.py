"""Requests for speech, for a sound, and for the transcript of a recording, in its own language or in English."""

from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from router.canonical.values import (
    DATA_URI,
    read_choice,
    read_flag,
    read_form,
    read_integer,
    read_number,
    read_required_text,
    read_text,
    unread_fields,
)
from router.errors import BadRequest
from router.openai.body import parse_json_object
from router.requests import Kind, Request

MAX_TEXT_CHARACTERS = 100_000
"""The longest text that is spoken; OpenAI takes 4,096."""

MAX_VOICE_CHARACTERS = 256
"""The longest name of a voice."""

MAX_LANGUAGE_CHARACTERS = 32
"""The longest name of a language; `en` and `zh-Hans` are usual."""

MAX_SOUND_SECONDS = 600.0
"""The longest sound."""

MAX_SOURCE_CHARACTERS = 90_000_000
"""The longest source of a sound, in base64."""

SPEECH_SHAPING = frozenset({"stream", "stream_format", "output_format"})
"""Fields that are not read, and without which the answer would be of another kind."""

SPEECH_FIELDS = frozenset(
    {"model", "models", "input", "voice", "language", "response_format", "speed"}
)
"""Fields that are read of a request for speech."""

SOUND_FIELDS = frozenset({
    "model", "models", "model_id", "text", "duration_seconds", "prompt_influence", "do_sample", "response_format",
    "src", "src_divisor",
})  # fmt: skip
"""Fields that are read of a request for a sound."""

_USUAL_SPEECH: Mapping[str, object] = {"stream_format": "audio"}

AudioFormat: TypeAlias = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


@dataclass(frozen=True, slots=True)
class Speech:
    """A text to be spoken; `format` is `None` if the caller leaves it to the worker."""

    text: str
    voice: str
    language: str
    format: AudioFormat | None
    speed: float | None
    others: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SoundRequest:
    """A sound to be made from a description. `influence`, from 0 to 1, is how closely the sound follows it.

    `source` is a sound to continue; with a `divisor`, only the first part of it counts.
    """

    text: str
    seconds: float | None
    influence: float | None
    sample: bool | None
    format: AudioFormat | None
    source: bytes
    divisor: int | None
    others: Mapping[str, object]


def read_speech(request: Request) -> Speech:
    """Read a request for speech; raise `BadRequest`, which names the field."""
    fields = parse_json_object(request.body)
    return Speech(
        text=read_required_text(fields, "input", MAX_TEXT_CHARACTERS),
        voice=_voice(fields),
        language=read_text(fields, "language", MAX_LANGUAGE_CHARACTERS),
        format=_audio_format(fields),
        speed=read_number(fields, "speed", 0.25, 4, usual=1),
        others=unread_fields(fields, SPEECH_FIELDS, _USUAL_SPEECH),
    )


def read_sound(request: Request) -> SoundRequest:
    """Read a request for a sound, in the form of ElevenLabs; raise `BadRequest`, which names the field."""
    fields = parse_json_object(request.body)
    return SoundRequest(
        text=read_required_text(fields, "text", MAX_TEXT_CHARACTERS),
        seconds=read_number(fields, "duration_seconds", 0.1, MAX_SOUND_SECONDS),
        influence=read_number(fields, "prompt_influence", 0, 1),
        sample=read_flag(fields, "do_sample"),
        format=_audio_format(fields),
        source=_sound_source(fields),
        divisor=read_integer(fields, "src_divisor", 1, 2**31 - 1),
        others=unread_fields(fields, SOUND_FIELDS, _USUAL_SPEECH),
    )


def _sound_source(fields: Mapping[str, object]) -> bytes:
    source = read_text(fields, "src", MAX_SOURCE_CHARACTERS)
    if not source:
        return b""
    if written := DATA_URI.match(source):
        with suppress(ValueError):
            return b64decode(source[written.end() :], validate=True)
    raise BadRequest("`src` must be a sound, as a data URI in base64", param="src")


def _voice(fields: Mapping[str, object]) -> str:
    match fields.get("voice"):
        case {"id": str(name)} if len(name) <= MAX_VOICE_CHARACTERS:
            return name
        case dict():
            raise BadRequest("`voice` must be a name, or an object with an `id`", param="voice")
    return read_text(fields, "voice", MAX_VOICE_CHARACTERS)


def _audio_format(fields: Mapping[str, object]) -> AudioFormat | None:
    choice = read_choice(fields, "response_format", "", "mp3", "opus", "aac", "flac", "wav", "pcm")
    return cast("AudioFormat", choice) if choice else None


MAX_HINT_CHARACTERS = 32_000
"""The longest `prompt`, a text that sets the style."""

TRANSCRIPTION_SHAPING = frozenset({"stream"})
"""Fields that are not read, and without which the answer would be of another kind."""

TRANSCRIPTION_FIELDS = frozenset({
    "model", "models", "file", "language", "prompt", "response_format", "temperature", "timestamp_granularities",
})  # fmt: skip
"""Fields that are read of a request for a transcript."""

TranscriptFormat: TypeAlias = Literal["json", "text", "srt", "verbose_json", "vtt"]
_GRANULARITIES = ("segment", "word")


@dataclass(frozen=True, slots=True)
class Transcription:
    """A recording to be transcribed; `words` requests the time of each word, `translate` a text in English."""

    audio: bytes
    language: str
    prompt: str
    temperature: float | None
    format: TranscriptFormat
    words: bool
    translate: bool
    others: Mapping[str, object]


def read_transcription(request: Request) -> Transcription:
    """Read a form with a recording; raise `BadRequest`, which names the field."""
    form = read_form(request, frozenset({"temperature", "stream"}))
    fields, files = form.fields, form.files.get("file", ())
    if len(files) != 1 or not files[0]:
        raise BadRequest("`file` must be one recording, in a multipart form", param="file")
    return Transcription(
        audio=files[0],
        language=read_text(fields, "language", MAX_LANGUAGE_CHARACTERS),
        prompt=read_text(fields, "prompt", MAX_HINT_CHARACTERS),
        temperature=read_number(fields, "temperature", 0, 1),
        format=cast(
            "TranscriptFormat",
            read_choice(fields, "response_format", "json", "text", "srt", "verbose_json", "vtt"),
        ),
        words="word" in _granularities(fields),
        translate=request.kind is Kind.TRANSLATION,
        others=unread_fields(fields, TRANSCRIPTION_FIELDS),
    )


def _granularities(fields: Mapping[str, object]) -> list[object]:
    value = fields.get("timestamp_granularities")
    entries = value if isinstance(value, list) else [value] if value else []
    if any(entry not in _GRANULARITIES for entry in entries):
        name = "timestamp_granularities"
        raise BadRequest(f"`{name}` are of: {', '.join(_GRANULARITIES)}", param=name)
    return entries
