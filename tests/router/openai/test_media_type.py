"""A content type is read strictly, as the worker behind the router reads it; a file has the type of its first bytes."""

import pytest

from router.errors import UnsupportedContentType
from router.openai.media_type import UNKNOWN, media_of, type_of


@pytest.mark.parametrize(
    ("header", "kind", "parameters"),
    [
        ("application/json", "application/json", {}),
        (" Application/JSON ; Charset=UTF-8", "application/json", {"charset": "UTF-8"}),
        ("application/json;", "application/json", {}),
        ("multipart/form-data; boundary=----a_=/b", "multipart/form-data", {"boundary": "----a_=/b"}),
        ('multipart/form-data;boundary="a b"; x=y', "multipart/form-data", {"boundary": "a b", "x": "y"}),
    ],
)  # fmt: skip
def test_a_content_type_gives_its_kind_and_its_parameters(header, kind, parameters):
    media = media_of(header)
    assert (media.kind, media.parameters) == (kind, parameters)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "json",
        "a/b/c",
        "application/json x",
        "application/json; charset",
        "application/json; charset=utf-16",
        "application/json; charset=utf-8; charset=utf-8",
        'application/json; x="a',
        'application/json; x="a\\"b"',
        "application/json; x = y",
        "application/json; ü=y",
        "application/json, text/plain",
        "application/json; x=" + "y" * 300,
    ],
)
def test_an_ambiguous_content_type_is_unsupported(header):
    with pytest.raises(UnsupportedContentType):
        media_of(header)


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
