"""Parser for `Content-Type`. It is strict: a header that two parsers could read differently is refused.

A worker parses the same header again. If it decoded the body by a charset that the node does not apply, or split a form at
another boundary, it would see another model than the one that the request was routed by.

The type of a file is determined by its first bytes, never by a name that it was given.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from router.errors import UnsupportedContentType


@dataclass(frozen=True, slots=True)
class FileType:
    """A media type, and the extension of its files' names."""

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
    """Return the type of a file with this content, `UNKNOWN` if its first bytes are not known here."""
    if content.startswith(b"RIFF"):
        return {b"WEBP": _WEBP, b"WAVE": _WAV}.get(content[8:12], UNKNOWN)
    if content[4:8] == b"ftyp":
        return FileType("audio/mp4", ".m4a")
    return next(
        (file_type for start, file_type in _BEGINNINGS if content.startswith(start)), UNKNOWN
    )


MAX_CHARACTERS = 256
"""The most characters of a header; a boundary may take 70 of them."""

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TYPE = re.compile(rf"[ \t]*({_WORD}/{_WORD})[ \t]*")
# RFC 9110 5.6.6, but without escapes in quotes; boundaries are often sent unquoted although they contain `=` or `/`.
_PARAMETER = re.compile(rf""";[ \t]*(?:({_WORD})=({_WORD[:-2]}/:=?]+|"[ !#-\[\]-~]*")[ \t]*)?""")
_UTF8 = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})


@dataclass(frozen=True, slots=True)
class Media:
    """A media type in lower case, and its parameters by their lower-case names, without quotes."""

    kind: str
    parameters: Mapping[str, str]


@lru_cache(maxsize=256)
def media_of(content_type: str) -> Media:
    """Read a header; raise `UnsupportedContentType` if it is malformed or ambiguous, or names a charset that is not UTF-8."""
    match = _TYPE.match(content_type)
    if match is None or len(content_type) > MAX_CHARACTERS or not content_type.isascii():
        raise UnsupportedContentType("the content type is malformed; send application/json")
    parameters: dict[str, str] = {}
    offset = match.end()
    while offset < len(content_type):
        parameter = _PARAMETER.match(content_type, offset)
        if parameter is None:
            raise UnsupportedContentType("a parameter of the content type is malformed")
        offset = parameter.end()
        if parameter[1] is None:
            continue
        name = parameter[1].lower()
        if name in parameters:
            raise UnsupportedContentType(f"the content type names {name!r} twice")
        parameters[name] = parameter[2].strip('"')
    if not is_utf8(parameters.get("charset", "utf-8")):
        raise UnsupportedContentType("only UTF-8 is supported")
    return Media(match[1].lower(), parameters)


def is_utf8(charset: str) -> bool:
    """Return whether a charset decodes its text as UTF-8 does."""
    return charset.strip().lower() in _UTF8
