"""Images, speech, sounds and transcripts from a LocalAI backend, which takes and returns images and sounds as files.

Images are made one after the other.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import randrange

from router.answer import Answer
from router.canonical import audio, image
from router.canonical.audio import AudioFormat
from router.canonical.image import SHAPING, Edit, Image
from router.canonical.values import read_integer, read_text
from router.dialects.localai_grpc.backend import (
    NAME,
    BackendJob,
    backend_answer,
    ignored_parameters,
)
from router.dialects.localai_grpc.files import Folder, shared_folder
from router.dialects.localai_grpc.request_mapping import MOST_SEED
from router.errors import WorkerFailed, WorkerUnable
from router.openai.media_type import type_of
from router.openai.result_writer import Segment, write_images, write_transcript
from router.openai.text_writer import refused
from router.translate.request import read_or_reject, refuse_unread_fields

_MADE = "made.wav"


async def speak(job: BackendJob) -> Answer:
    """Convert a text to speech."""
    asked = read_or_reject(audio.read_speech, job.request)
    refuse_unread_fields(NAME, asked, audio.SPEECH_SHAPING)
    said = {
        "text": asked.text,
        "model": job.own_model,
        "voice": voice_of(asked.voice, job.voices),
    }
    if asked.language:
        said["language"] = asked.language
    missing = ignored_parameters(asked, speed=asked.speed)
    return await _sound_made(job, "TTS", said, asked.format, missing)


async def make_sound(job: BackendJob) -> Answer:
    """Generate a sound from a description."""
    asked = read_or_reject(audio.read_sound, job.request)
    refuse_unread_fields(NAME, asked, audio.SPEECH_SHAPING)
    optional = {
        "duration": asked.seconds,
        "temperature": asked.influence,
        "sample": asked.sample,
        "src_divisor": asked.divisor,
    }
    given = {name: value for name, value in optional.items() if value is not None}
    said = {"text": asked.text, "model": job.own_model, **given}
    missing = ignored_parameters(asked)
    heard = ["src"] if asked.source else []
    if not asked.source:
        return await _sound_made(job, "SoundGeneration", said, asked.format, missing)
    async with shared_folder() as shared:
        path = await shared.put(f"source{type_of(asked.source).ending}", asked.source)
        return await _sound_made(
            job, "SoundGeneration", {**said, "src": path}, asked.format, missing, heard
        )


async def transcribe(job: BackendJob) -> Answer:
    """Transcribe or translate a recording."""
    asked = read_or_reject(audio.read_transcription, job.request)
    refuse_unread_fields(NAME, asked, audio.TRANSCRIPTION_SHAPING)
    if asked.words:
        name = "timestamp_granularities"
        raise WorkerUnable(f"{NAME} reports times of segments, not of words", param=name)
    async with shared_folder() as shared:
        path = await shared.put(f"heard{type_of(asked.audio).ending}", asked.audio)
        # The field `dst` is the path of the recording.
        said = {"dst": path, "language": asked.language, "translate": asked.translate}
        told = await job.ask("AudioTranscription", said)
    unit = time_unit(max((one.end for one in told.segments), default=0))
    segments = [
        Segment(one.start * unit, one.end * unit, one.text, tuple(one.tokens))
        for one in told.segments
    ]
    text = told.text or "".join(one.text for one in segments)
    content_type, body = write_transcript(asked, text.strip(), segments)
    # A temperature of 0 is the default.
    missing = ignored_parameters(asked, prompt=asked.prompt, temperature=asked.temperature)
    return backend_answer(body, content_type, unheard=missing)


def voice_of(name: str, directory: str) -> str:
    """Return a voice for a backend: a name, or the path of a file under the operator's directory.

    Raise `WorkerUnable` for any other path: a backend opens a file of that name, and its answer shows whether there is one.
    """
    named = name not in (".", "..") and not set(name) & set("/\\\0")
    if directory and "\0" not in name:
        root = Path(directory).resolve()
        path = (root / name).resolve()
        if root in path.parents and (not named or path.is_file()):
            return str(path)
    if not named:
        words = "`voice` must be a name without separators"
        raise WorkerUnable(
            f"{words}, or a path under router.voice_files" if directory else words, param="voice"
        )
    return name


def time_unit(end: int) -> float:
    """Return the unit, in seconds, of the times of a recording that ends at `end`.

    The protocol names no unit. LocalAI's own backend counts nanoseconds, others milliseconds or seconds. Recordings are assumed
    to be longer than a tenth of a second and shorter than a day, and shorter than a quarter of an hour with a backend that
    counts seconds.
    """
    if end >= 100_000_000:
        return 1e-9
    return 1e-3 if end >= 1_000 else 1.0


async def _sound_made(
    job: BackendJob,
    call: str,
    said: Mapping[str, object],
    wanted: AudioFormat | None,
    missing: list[str],
    heard: Sequence[str] = (),
) -> Answer:
    if wanted not in (None, "wav"):
        raise WorkerUnable(f"{NAME} returns wav, not {wanted}", param="response_format")
    async with shared_folder() as shared:
        await job.ask(call, {**said, "dst": shared.place(_MADE)})
        made = await shared.take(_MADE)
    found = type_of(made).media
    # Some backends choose the format themselves, which is accepted if the caller named none.
    if not found.startswith("audio/") or (wanted and found != "audio/wav"):
        raise WorkerFailed("the worker's sound does not have the requested format")
    return backend_answer(made, found, unheard=missing, heard=heard)


USUAL_SIDE = 512
"""Pixels of each side of an image if the caller does not set them: LocalAI's own default."""

USUAL_STEPS = 15
"""Steps in which an image is made if the caller does not set them."""

MAX_PARAMETERS = 1_024
"""The most characters of `enable_parameters`, the names of a pipeline's parameters."""

OWN = frozenset({"mode", "clip_skip", "enable_parameters"})
"""Fields that only this protocol has."""


async def generate(job: BackendJob) -> Answer:
    """Generate images from a description."""
    asked = read_or_reject(image.read, job.request)
    refuse_unread_fields(NAME, asked, SHAPING)
    async with shared_folder() as shared:
        return await _image_made(job, asked, shared, source="")


async def edit(job: BackendJob) -> Answer:
    """Generate images from a description and another image."""
    asked = read_or_reject(image.read_edit, job.request)
    refuse_unread_fields(NAME, asked.image, SHAPING)
    source = await _source(job, asked)
    async with shared_folder() as shared:
        path = await shared.put(f"source{type_of(source).ending}", source)
        return await _image_made(job, asked.image, shared, source=path)


async def _source(job: BackendJob, asked: Edit) -> bytes:
    if asked.mask is not None:
        raise WorkerUnable(f"{NAME} does not support `mask`", param="mask")
    [source, *more] = asked.sources
    if more:
        raise WorkerUnable(f"{NAME} edits one image at a time", param="image")
    if isinstance(source, str):
        return await job.fetch(source, "image")
    if not type_of(source).is_image:
        raise refused("`image` is not an image: send PNG, JPEG, WebP or GIF", "image")
    return source


def localai_parameters(others: Mapping[str, object]) -> Mapping[str, object]:
    """Return the parameters of LocalAI's own, by the names of its fields; raise `BadRequest`."""
    said = {
        "mode": read_integer(others, "mode", 0, 2**31 - 1),
        "CLIPSkip": read_integer(others, "clip_skip", 0, 2**31 - 1),
        "EnableParameters": read_text(others, "enable_parameters", MAX_PARAMETERS),
    }
    return {name: value for name, value in said.items() if value}


async def _image_made(job: BackendJob, asked: Image, shared: Folder, *, source: str) -> Answer:
    own = read_or_reject(localai_parameters, asked.others)
    first = randrange(1, MOST_SEED) if asked.seed is None else asked.seed  # noqa: S311 (it guards nothing)
    images: list[bytes] = []
    for number in range(asked.n):
        name = f"made-{number}.png"
        said = {
            "width": asked.width or USUAL_SIDE,
            "height": asked.height or USUAL_SIDE,
            "step": asked.step or USUAL_STEPS,
            # With the same seed all images would be the same, and a seed of 0 is none.
            "seed": (first + number - 1) % MOST_SEED + 1,
            "positive_prompt": asked.prompt,
            "negative_prompt": asked.negative,
            "dst": shared.place(name),
            "src": source,
            **own,
        }
        await job.ask("GenerateImage", said)
        made = await shared.take(name)
        if not type_of(made).is_image:
            raise WorkerFailed("the worker's result is not an image")
        images.append(made)
    body = write_images(images, created=int(time.time()), base64=asked.base64)
    heard = sorted(OWN & set(asked.others))
    # A greater seed is changed to one that the backend takes.
    changed = (asked.seed or 0) > MOST_SEED
    missing = [name for name in ignored_parameters(asked, seed=changed) if name not in heard]
    return backend_answer(body, unheard=missing, heard=heard)
