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
    request = read_or_reject(audio.read_speech, job.request)
    refuse_unread_fields(NAME, request, audio.SPEECH_SHAPING)
    message = {
        "text": request.text,
        "model": job.own_model,
        "voice": voice_of(request.voice, job.voices),
    }
    if request.language:
        message["language"] = request.language
    missing = ignored_parameters(request, speed=request.speed)
    return await _sound_made(job, "TTS", message, request.format, missing)


async def make_sound(job: BackendJob) -> Answer:
    """Generate a sound from a description."""
    request = read_or_reject(audio.read_sound, job.request)
    refuse_unread_fields(NAME, request, audio.SPEECH_SHAPING)
    optional = {
        "duration": request.seconds,
        "temperature": request.influence,
        "sample": request.sample,
        "src_divisor": request.divisor,
    }
    options = {name: value for name, value in optional.items() if value is not None}
    message = {"text": request.text, "model": job.own_model, **options}
    missing = ignored_parameters(request)
    heard = ["src"] if request.source else []
    if not request.source:
        return await _sound_made(job, "SoundGeneration", message, request.format, missing)
    async with shared_folder() as shared:
        path = await shared.write(f"source{type_of(request.source).ending}", request.source)
        return await _sound_made(
            job, "SoundGeneration", {**message, "src": path}, request.format, missing, heard
        )


async def transcribe(job: BackendJob) -> Answer:
    """Transcribe or translate a recording."""
    request = read_or_reject(audio.read_transcription, job.request)
    refuse_unread_fields(NAME, request, audio.TRANSCRIPTION_SHAPING)
    if request.words:
        name = "timestamp_granularities"
        raise WorkerUnable(f"{NAME} reports times of segments, not of words", param=name)
    async with shared_folder() as shared:
        path = await shared.write(f"heard{type_of(request.audio).ending}", request.audio)
        # The field `dst` is the path of the recording.
        message = {"dst": path, "language": request.language, "translate": request.translate}
        reply = await job.ask("AudioTranscription", message)
    unit = time_unit(max((segment.end for segment in reply.segments), default=0))
    segments = [
        Segment(segment.start * unit, segment.end * unit, segment.text, tuple(segment.tokens))
        for segment in reply.segments
    ]
    text = reply.text or "".join(segment.text for segment in segments)
    content_type, body = write_transcript(request, text.strip(), segments)
    # A temperature of 0 is the default.
    missing = ignored_parameters(request, prompt=request.prompt, temperature=request.temperature)
    return backend_answer(body, content_type, unheard=missing)


def voice_of(name: str, directory: str) -> str:
    """Return a voice for a backend: a name, or the path of a file under the operator's directory.

    Raise `WorkerUnable` for any other path: a backend opens a file of that name, and its answer shows whether there is one.
    """
    is_name = name not in (".", "..") and not set(name) & set("/\\\0")
    if directory and "\0" not in name:
        root = Path(directory).resolve()
        path = (root / name).resolve()
        if root in path.parents and (not is_name or path.is_file()):
            return str(path)
    if not is_name:
        problem = "`voice` must be a name without separators"
        raise WorkerUnable(
            f"{problem}, or a path under router.voice_files" if directory else problem,
            param="voice",
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
    message: Mapping[str, object],
    audio_format: AudioFormat | None,
    missing: list[str],
    heard: Sequence[str] = (),
) -> Answer:
    if audio_format not in (None, "wav"):
        raise WorkerUnable(f"{NAME} returns wav, not {audio_format}", param="response_format")
    async with shared_folder() as shared:
        await job.ask(call, {**message, "dst": shared.path_for(_MADE)})
        content = await shared.read_and_remove(_MADE)
    media_type = type_of(content).media
    # Some backends choose the format themselves, which is accepted if the caller named none.
    if not media_type.startswith("audio/") or (audio_format and media_type != "audio/wav"):
        raise WorkerFailed("the worker's sound does not have the requested format")
    return backend_answer(content, media_type, unheard=missing, heard=heard)


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
    request = read_or_reject(image.read, job.request)
    refuse_unread_fields(NAME, request, SHAPING)
    async with shared_folder() as shared:
        return await _image_made(job, request, shared, source="")


async def edit(job: BackendJob) -> Answer:
    """Generate images from a description and another image."""
    request = read_or_reject(image.read_edit, job.request)
    refuse_unread_fields(NAME, request.image, SHAPING)
    source = await _source(job, request)
    async with shared_folder() as shared:
        path = await shared.write(f"source{type_of(source).ending}", source)
        return await _image_made(job, request.image, shared, source=path)


async def _source(job: BackendJob, request: Edit) -> bytes:
    if request.mask is not None:
        raise WorkerUnable(f"{NAME} does not support `mask`", param="mask")
    [source, *more] = request.sources
    if more:
        raise WorkerUnable(f"{NAME} edits one image at a time", param="image")
    if isinstance(source, str):
        return await job.fetch(source, "image")
    if not type_of(source).is_image:
        raise refused("`image` is not an image: send PNG, JPEG, WebP or GIF", "image")
    return source


def localai_parameters(fields: Mapping[str, object]) -> Mapping[str, object]:
    """Return the parameters of LocalAI's own, by the names of its fields; raise `BadRequest`."""
    parameters = {
        "mode": read_integer(fields, "mode", 0, 2**31 - 1),
        "CLIPSkip": read_integer(fields, "clip_skip", 0, 2**31 - 1),
        "EnableParameters": read_text(fields, "enable_parameters", MAX_PARAMETERS),
    }
    return {name: value for name, value in parameters.items() if value}


async def _image_made(job: BackendJob, request: Image, shared: Folder, *, source: str) -> Answer:
    parameters = read_or_reject(localai_parameters, request.others)
    first = randrange(1, MOST_SEED) if request.seed is None else request.seed  # noqa: S311 (it guards nothing)
    images: list[bytes] = []
    for number in range(request.n):
        name = f"made-{number}.png"
        message = {
            "width": request.width or USUAL_SIDE,
            "height": request.height or USUAL_SIDE,
            "step": request.step or USUAL_STEPS,
            # With the same seed all images would be the same, and a seed of 0 is none.
            "seed": (first + number - 1) % MOST_SEED + 1,
            "positive_prompt": request.prompt,
            "negative_prompt": request.negative,
            "dst": shared.path_for(name),
            "src": source,
            **parameters,
        }
        await job.ask("GenerateImage", message)
        content = await shared.read_and_remove(name)
        if not type_of(content).is_image:
            raise WorkerFailed("the worker's result is not an image")
        images.append(content)
    body = write_images(images, created=int(time.time()), base64=request.base64)
    heard = sorted(OWN & set(request.others))
    # A greater seed is changed to one that the backend takes.
    changed = (request.seed or 0) > MOST_SEED
    missing = [name for name in ignored_parameters(request, seed=changed) if name not in heard]
    return backend_answer(body, unheard=missing, heard=heard)
