"""The type of a file, by its first bytes."""

import pytest

from router.openai.media_type import UNKNOWN, type_of


@pytest.mark.parametrize(
    ("content", "media", "ending"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/png", ".png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg", ".jpg"),
        (b"RIFF....WEBPVP8 ", "image/webp", ".webp"),
        (b"GIF89a", "image/gif", ".gif"),
        (b"RIFF....WAVEfmt ", "audio/wav", ".wav"),
        (b"....ftypM4A ", "audio/mp4", ".m4a"),
        (b"ID3\x04", "audio/mpeg", ".mp3"),
        (b"\xff\xfb\x90", "audio/mpeg", ".mp3"),
        (b"fLaC", "audio/flac", ".flac"),
        (b"OggS", "audio/ogg", ".ogg"),
        (b"\x1aE\xdf\xa3", "audio/webm", ".webm"),
    ],
)
def test_the_first_bytes_of_a_file_give_its_type(content: bytes, media: str, ending: str) -> None:
    found = type_of(content)
    assert (found.media, found.ending) == (media, ending)
    assert found.is_image == media.startswith("image/")


@pytest.mark.parametrize("content", [b"", b"RIFF", b"RIFF....AVI ", b"<svg>", b"#!/bin/sh"])
def test_a_file_with_other_first_bytes_has_an_unknown_type(content: bytes) -> None:
    assert type_of(content) is UNKNOWN
    assert not type_of(content).is_image
