"""Requests for speech, sounds and transcripts to a LocalAI backend."""

from pathlib import Path

import pytest

from router.dialects import Dialect
from router.dialects.localai_grpc.media import time_unit, voice_of
from router.errors import (
    WorkerFailed,
    WorkerUnable,
)
from router.peers.headers import DROPPED
from router.requests import Kind
from tests.router.canonical.test_kinds import form
from tests.router.dialects.localai_grpc.asks import ask, left, put
from tests.workers.localai_worker import PNG, WAV, LocalAIWorker


class TestSounds:
    async def test_a_text_is_spoken(self, dialect: Dialect, worker: LocalAIWorker) -> None:
        answer, body = await ask(dialect, worker, Kind.SPEECH, speed=2, language="de")
        assert (answer.content_type, body) == ("audio/wav", WAV)
        request = worker.asked
        assert (request.text, request.voice, request.model, request.language) == (
            "hi",
            "v",
            "own",
            "de",
        )
        assert answer.headers == {DROPPED: "speed"}
        await ask(dialect, worker, Kind.SPEECH, response_format="wav")
        assert not worker.asked.HasField("language")

    @pytest.mark.parametrize(
        "voice", ["/etc/passwd", "../x", "a/b", "..", ".", "C:\\x", "/etc/none", "a\0b"]
    )
    async def test_a_voice_that_may_be_a_path_is_refused_whether_or_not_there_is_a_file(
        self, dialect: Dialect, worker: LocalAIWorker, voice: str
    ) -> None:
        with pytest.raises(WorkerUnable) as unable:
            await ask(dialect, worker, Kind.SPEECH, voice=voice)
        assert (unable.value.param, worker.received) == ("voice", [])

    def test_a_voice_may_be_a_file_under_the_operators_directory(self, tmp_path: Path) -> None:
        root, outside = tmp_path / "voices", tmp_path / "secret.wav"
        (root / "de").mkdir(parents=True)
        for path in (root / "de" / "anna.wav", root / "bob.wav", outside):
            path.write_bytes(WAV)
        (root / "link.wav").symlink_to(outside)
        for name, expected in (
            ("de/anna.wav", str(root / "de" / "anna.wav")),
            (str(root / "bob.wav"), str(root / "bob.wav")),
            ("bob.wav", str(root / "bob.wav")),
            ("alloy", "alloy"),
        ):
            assert voice_of(name, str(root)) == expected
        for name in ("../secret.wav", str(outside), "/etc/passwd", "de/../../secret.wav"):
            with pytest.raises(WorkerUnable, match=r"router\.voice_files"):
                voice_of(name, str(root))
        assert voice_of("link.wav", str(root)) == "link.wav"

    async def test_a_sound_is_made(self, dialect: Dialect, worker: LocalAIWorker) -> None:
        fields = {"duration_seconds": 2.5, "prompt_influence": 0.5, "do_sample": False}
        answer, body = await ask(dialect, worker, Kind.SOUND, **fields)
        assert (answer.content_type, body) == ("audio/wav", WAV)
        request = worker.asked
        assert (request.duration, request.temperature, request.sample) == (2.5, 0.5, False)
        await ask(dialect, worker, Kind.SOUND)
        assert not worker.asked.HasField("duration")

    @pytest.mark.parametrize("kind", [Kind.SPEECH, Kind.SOUND])
    async def test_another_format_than_wav_is_refused(
        self, dialect: Dialect, worker: LocalAIWorker, kind: Kind
    ) -> None:
        with pytest.raises(WorkerUnable) as unable:
            await ask(dialect, worker, kind, response_format="mp3")
        assert (unable.value.param, worker.received) == ("response_format", [])


class TestTranscripts:
    async def test_are_made_from_a_file_that_the_backend_reads(
        self, dialect: Dialect, worker: LocalAIWorker, shared: Path
    ) -> None:
        _, payload = await ask(dialect, worker, Kind.TRANSCRIPTION, language="de")
        assert payload == {"text": f"{len(WAV)} bytes {len(WAV)} bytes"}
        request, path = worker.asked, Path(worker.asked.dst)
        assert (request.language, request.translate, path.suffix) == ("de", False, ".wav")
        assert path.parent.parent == shared
        assert left(shared) == []

    async def test_have_their_times_in_seconds(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        _, payload = await ask(dialect, worker, Kind.TRANSLATION, response_format="verbose_json")
        assert worker.asked.translate
        assert [(segment["start"], segment["end"]) for segment in payload["segments"]] == [
            (0, 1),
            (1, 2),
        ]
        answer, srt = await ask(dialect, worker, Kind.TRANSCRIPTION, response_format="srt")
        assert srt.startswith(b"1\n00:00:00,000 --> 00:00:01,000\n")
        assert answer.content_type.startswith("application/x-subrip")

    async def test_name_the_parameters_without_effect(
        self, dialect: Dialect, worker: LocalAIWorker
    ) -> None:
        answer, _ = await ask(dialect, worker, Kind.TRANSCRIPTION, prompt="x", temperature=0.5)
        assert answer.headers == {DROPPED: "prompt, temperature"}

    @pytest.mark.parametrize("name", ["timestamp_granularities[]", "stream"])
    async def test_with_options_that_the_protocol_lacks_are_refused_by_name(
        self, dialect: Dialect, worker: LocalAIWorker, name: str
    ) -> None:
        value = "word" if name.endswith("[]") else "true"
        request = form(("file", WAV), (name, value))
        with pytest.raises(WorkerUnable) as unable:
            await put(dialect, worker, request)
        assert unable.value.param == name.removesuffix("[]")


@pytest.mark.parametrize("kind", [Kind.SPEECH, Kind.SOUND])
@pytest.mark.parametrize("made", [b"<html>", PNG, b"ID3\x04"])
async def test_data_that_is_not_sound_in_the_requested_format_is_a_failure(
    dialect: Dialect, worker: LocalAIWorker, kind: Kind, made: bytes
) -> None:
    worker.fail(makes=made)
    if made.startswith(b"ID3"):
        answer, body = await ask(dialect, worker, kind)
        assert (answer.content_type, body) == ("audio/mpeg", made)
    with pytest.raises(WorkerFailed):
        await ask(dialect, worker, kind, response_format="wav")


@pytest.mark.parametrize(
    ("end", "seconds"),
    [(0, 0), (7, 7), (999, 999), (7_000, 7), (36_000_000, 36_000), (700_000_000, 0.7), (36 * 10**12, 36_000)],
)  # fmt: skip
def test_the_unit_of_times_is_guessed_from_their_size(end: int, seconds: float) -> None:
    assert end * time_unit(end) == pytest.approx(seconds)
