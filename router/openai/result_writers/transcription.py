"""Writer of transcripts: OpenAI's JSON, text, or subtitles."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from router.canonical.transcription import Transcription

_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the text, from `start` to `end` in seconds."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()


def written(asked: Transcription, text: str, segments: Sequence[Segment]) -> tuple[str, bytes]:
    """Return the content type and the body of the answer, in the format that was asked for."""
    match asked.format:
        case "text":
            return "text/plain; charset=utf-8", f"{text}\n".encode(errors="replace")
        case "srt":
            said = (f"{at}\n{_cue(s, ',')}" for at, s in enumerate(segments, 1))
            return "application/x-subrip; charset=utf-8", "".join(said).encode(errors="replace")
        case "vtt":
            said = (_cue(s, ".") for s in segments)
            body = "WEBVTT\n\n" + "".join(said)
            return "text/vtt; charset=utf-8", body.encode(errors="replace")
        case "verbose_json":
            return _JSON, orjson.dumps(_verbose(asked, text, segments))
        case "json":
            return _JSON, orjson.dumps({"text": text})


def _verbose(asked: Transcription, text: str, segments: Sequence[Segment]) -> dict[str, object]:
    said = [
        {"id": at, "start": s.start, "end": s.end, "text": s.text, "tokens": s.tokens}
        for at, s in enumerate(segments)
    ]
    return {
        "task": "translate" if asked.translate else "transcribe",
        "language": "en" if asked.translate else asked.language,
        "duration": max((s.end for s in segments), default=0.0),
        "text": text,
        "segments": said,
    }


def _cue(segment: Segment, point: str) -> str:
    # A blank line would end it, and an arrow begin another.
    text = " ".join(segment.text.replace("-->", "->").split())
    start, end = _time(segment.start, point), _time(segment.end, point)
    return f"{start} --> {end}\n{text}\n\n"


def _time(seconds: float, point: str) -> str:
    whole, thousandths = divmod(round(max(seconds, 0) * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}{point}{thousandths:03}"
