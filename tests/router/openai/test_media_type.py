"""A content type is read strictly, so that the worker behind the router reads the same."""

import pytest

from router.errors import BadRequest
from router.openai.media_type import media_of


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
    with pytest.raises(BadRequest) as refused:
        media_of(header)
    assert refused.value.status == 415
