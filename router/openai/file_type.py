"""Type of a file: by how it begins, never by what somebody calls it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileType:
    """A media type, and the ending that names of such files have."""

    media: str
    ending: str

    @property
    def is_image(self) -> bool:
        """Whether it is an image."""
        return self.media.startswith("image/")


UNKNOWN = FileType("application/octet-stream", "")

_WEBP, _WAV = FileType("image/webp", ".webp"), FileType("audio/wav", ".wav")
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", FileType("image/png", ".png")),
    (b"\xff\xd8\xff", FileType("image/jpeg", ".jpg")),
    (b"GIF8", FileType("image/gif", ".gif")),
    (b"fLaC", FileType("audio/flac", ".flac")),
    (b"OggS", FileType("audio/ogg", ".ogg")),
    (b"\x1aE\xdf\xa3", FileType("audio/webm", ".webm")),
    (b"ID3", FileType("audio/mpeg", ".mp3")),
    # MPEG audio without a tag, layer 3.
    (b"\xff\xfb", FileType("audio/mpeg", ".mp3")),
    (b"\xff\xf3", FileType("audio/mpeg", ".mp3")),
    (b"\xff\xf2", FileType("audio/mpeg", ".mp3")),
)


def type_of(content: bytes) -> FileType:
    """Return the type of a file with this content, `UNKNOWN` where its beginning is none of those that are known here."""
    if content.startswith(b"RIFF"):
        return {b"WEBP": _WEBP, b"WAVE": _WAV}.get(content[8:12], UNKNOWN)
    if content[4:8] == b"ftyp":
        return FileType("audio/mp4", ".m4a")
    return next((found for start, found in _BEGINNINGS if content.startswith(start)), UNKNOWN)
