"""Form fields: texts converted to JSON values, and files."""

from dataclasses import replace

import pytest

from router.canonical.values import MAX_FORM_TEXT_BYTES, filled
from router.errors import BadRequest
from tests.router.canonical.test_kinds import form
from tests.router.world import chat


def test_texts_become_numbers_only_in_the_fields_that_want_numbers() -> None:
    parts = (("n", "2"), ("prompt", "7"), ("t", "0.5"), ("s", "True"), ("w", "many"), ("e", ""))
    found = filled(form(*parts), frozenset("ntsw"))
    assert found.fields == {"n": 2, "prompt": "7", "t": 0.5, "s": True, "w": "many"}
    assert found.files == {}


def test_a_name_in_brackets_is_a_list() -> None:
    found = filled(form(("a[]", "1"), ("a[]", "2"), ("b", "1"), ("b", "2"), ("c[]", b"x"), ("c[]", b"y")))  # fmt: skip
    assert found.fields == {"a": ["1", "2"], "b": "2"}
    assert found.files == {"c": (b"x", b"y")}


def test_json_has_no_files() -> None:
    assert filled(chat(body=b'{"a":[1]}')).fields == {"a": [1]}


@pytest.mark.parametrize("content", [b"x" * (MAX_FORM_TEXT_BYTES + 1), b"\xff"])
def test_a_field_that_is_too_long_or_not_utf8_is_refused_by_name(content: bytes) -> None:
    sent = form(("note", "HERE"))
    with pytest.raises(BadRequest) as refused:
        filled(replace(sent, body=sent.body.replace(b"HERE", content)))
    assert refused.value.param == "note"
