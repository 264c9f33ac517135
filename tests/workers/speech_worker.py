"""Real worker for speech and transcription, by espeak-ng and pocketsphinx: `python -m tests.workers.speech_worker`.

It has OpenAI's paths over HTTP, and a LocalAI backend's RPCs. Speech is WAV. pocketsphinx is older than such voices: given
the words that may occur, by a transcription's `prompt` or `--words`, it understands short sentences of `VOICE`.
"""

import argparse
import asyncio
import ctypes
import io
import signal
import sys
import wave
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import espeakng_loader
from aiohttp import web
from pocketsphinx import Decoder

from router.rpc.messages import LOCALAI, message_class, methods_of
from router.rpc.server import Answers, serving

METHODS = methods_of(LOCALAI)

VOICE = "en-us+f2"
WORDS_PER_MINUTE = 160
"""The rate of speech at OpenAI's speed of 1."""

_RATE, _WORD_GAP = 1, 7
"""Parameters of espeak-ng's voices that are set."""

_SYNCHRONOUS = 2
_BEGINNING, _CHARACTERS, _UTF_8 = 0, 1, 1
_GAP = 10
"""Silence between words, in hundredths of a second."""

_SILENCE = 0.4
"""Seconds of silence added before and after a recording; without them its first and last sounds are missed."""

_SAMPLE_BYTES = 2
_FRAME, _NANOSECOND = 0.01, 1e-9
_Take = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


class Speaker:
    """The espeak-ng library; it speaks one text at a time."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        self._samples = bytearray()
        # The library keeps only the address, so the callback must stay referenced.
        self._taking = _Take(self._take)
        data = espeakng_loader.get_data_path().encode()
        self.rate: int = self._library.espeak_Initialize(_SYNCHRONOUS, 0, data, 0)
        assert self.rate > 0, "espeak-ng does not find its voices"
        self._library.espeak_SetSynthCallback(self._taking)

    def say(self, text: str, voice: str, speed: float) -> bytes:
        """Return a WAV file; raise `ValueError` for an unknown voice."""
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        self._library.espeak_SetParameter(_RATE, int(WORDS_PER_MINUTE * speed), 0)
        self._library.espeak_SetParameter(_WORD_GAP, _GAP, 0)
        self._samples.clear()
        data = text.encode() + b"\0"
        self._library.espeak_Synth(
            data, len(data), _BEGINNING, _CHARACTERS, 0, _UTF_8, None, None
        )  # fmt: skip
        self._library.espeak_Synchronize()
        file = io.BytesIO()
        with wave.open(file, "wb") as recording:
            recording.setnchannels(1)
            recording.setsampwidth(_SAMPLE_BYTES)
            recording.setframerate(self.rate)
            recording.writeframes(bytes(self._samples))
        return file.getvalue()

    def _take(self, samples: Any, count: int, _: object) -> int:
        if samples and count:
            self._samples += ctypes.string_at(samples, count * _SAMPLE_BYTES)
        return 0


@dataclass(frozen=True, slots=True)
class TextEvent:
    """The words of a recording, with their begin and end in seconds."""

    text: str
    start: float = 0.0
    end: float = 0.0


def transcribed(recording: bytes, words: frozenset[str]) -> TextEvent:
    """Transcribe a WAV file, restricted to `words` if there are any; raise `wave.Error`."""
    with wave.open(io.BytesIO(recording)) as file:
        if file.getnchannels() != 1 or file.getsampwidth() != _SAMPLE_BYTES:
            raise wave.Error("one channel of 16 bits is understood")
        rate, samples = file.getframerate(), file.readframes(file.getnframes())
    settings = {"samprate": rate, "nfft": 1024, "cmn": "batch", "loglevel": "FATAL"}
    decoder = Decoder(**settings, **({"lm": None} if words else {}))
    if words:
        choice = " | ".join(sorted(words))
        grammar = f"#JSGF V1.0; grammar said; public <said> = ( {choice} )+;"
        decoder.add_jsgf_string("said", grammar)
        decoder.activate_search("said")
    silence = bytes(_SAMPLE_BYTES * int(_SILENCE * rate))
    decoder.start_utt()
    decoder.process_raw(silence + samples + silence, full_utt=True)
    decoder.end_utt()
    hypothesis = decoder.hyp()
    spoken = [part for part in decoder.seg() or () if not part.word.startswith("<")]
    if hypothesis is None or not spoken:
        return TextEvent("")
    first, last = spoken[0].start_frame * _FRAME, spoken[-1].end_frame * _FRAME
    return TextEvent(hypothesis.hypstr, max(0.0, first - _SILENCE), max(0.0, last - _SILENCE))


@dataclass(slots=True)
class Studio:
    """Both programs, one request at a time, since neither supports two. `words` are the default of requests without any."""

    words: frozenset[str] = frozenset()
    speaker: Speaker = field(default_factory=Speaker)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def say(self, text: str, voice: str, speed: float = 1.0) -> bytes:
        """Return a WAV file; raise `ValueError`."""
        async with self.turn:
            return await asyncio.to_thread(self.speaker.say, text, voice, speed)

    async def hear(self, recording: bytes, words: frozenset[str] = frozenset()) -> TextEvent:
        """Transcribe a WAV file; raise `ValueError`."""
        async with self.turn:
            try:
                return await asyncio.to_thread(transcribed, recording, words or self.words)
            except (wave.Error, EOFError) as error:
                raise ValueError(f"this is no WAV file that is understood: {error}") from error


@dataclass(frozen=True, slots=True)
class OverHttp:
    """OpenAI's paths."""

    studio: Studio

    async def speech(self, request: web.Request) -> web.Response:
        """Answer `/v1/audio/speech`."""
        fields = await request.json()
        if fields.get("response_format", "wav") != "wav":
            return _refused("response_format must be wav")
        try:
            recording = await self.studio.say(
                fields["input"], fields["voice"], fields.get("speed", 1.0)
            )
        except ValueError as error:
            return _refused(str(error))
        return web.Response(body=recording, content_type="audio/wav")

    async def transcription(self, request: web.Request) -> web.Response:
        """Answer `/v1/audio/transcriptions`."""
        form = await request.post()
        file = form["file"]
        assert isinstance(file, web.FileField)
        words = frozenset(str(form.get("prompt", "")).lower().split())
        try:
            transcript = await self.studio.hear(file.file.read(), words)
        except ValueError as error:
            return _refused(str(error))
        if form.get("response_format") == "text":
            return web.Response(text=transcript.text)
        return web.json_response({"text": transcript.text})


def _refused(reason: str) -> web.Response:
    error = {"message": reason, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=400)


@dataclass(frozen=True, slots=True)
class OverGrpc:
    """The RPCs of a LocalAI backend that speaks and hears; sounds are files."""

    studio: Studio

    def handlers(self) -> Mapping[str, Answers]:
        """Return the handlers of the RPCs."""
        return {
            "Health": self.health,
            "LoadModel": self.load,
            "TTS": self.tts,
            "AudioTranscription": self.transcription,
        }

    async def health(self, request: Any, call: Any) -> Any:
        """Report that the backend is alive."""
        return METHODS["Health"].reply_class(message=b"OK")

    async def load(self, request: Any, call: Any) -> Any:
        """Report success: both models are loaded from the start."""
        return METHODS["LoadModel"].reply_class(success=True, message="loaded")

    async def tts(self, request: Any, call: Any) -> Any:
        """Write speech to a path."""
        try:
            recording = await self.studio.say(request.text, request.voice)
        except ValueError as error:
            return METHODS["TTS"].reply_class(success=False, message=str(error))
        Path(request.dst).write_bytes(recording)  # noqa: ASYNC240
        return METHODS["TTS"].reply_class(success=True)

    async def transcription(self, request: Any, call: Any) -> Any:
        """Transcribe the file that the request names in `dst`."""
        transcript = await self.studio.hear(Path(request.dst).read_bytes())  # noqa: ASYNC240
        span = {
            "start": round(transcript.start / _NANOSECOND),
            "end": round(transcript.end / _NANOSECOND),
        }
        segment = message_class("backend.TranscriptSegment")(id=0, text=transcript.text, **span)
        return METHODS["AudioTranscription"].reply_class(segments=[segment], text=transcript.text)


async def _serve(words: str) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    studio = Studio(frozenset(words.split()))
    http = OverHttp(studio)
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_post("/v1/audio/speech", http.speech)
    app.router.add_post("/v1/audio/transcriptions", http.transcription)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with serving(LOCALAI, OverGrpc(studio).handlers(), "127.0.0.1:0") as port:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        sys.stdout.write(f"ready url={url} grpc=grpc+localai://127.0.0.1:{port}\n")
        sys.stdout.flush()
        await ended.wait()
    await runner.cleanup()


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--words", default="", help="what may occur where a request does not say")
    asyncio.run(_serve(parser.parse_args().words))


if __name__ == "__main__":
    main()
