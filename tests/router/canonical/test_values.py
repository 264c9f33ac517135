"""Any field content, of a form too, is a value within its bounds or a fault that names the field."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from router.canonical.values import (
    BESIDE,
    MAX_FORM_TEXT_BYTES,
    read_form,
    read_integer,
    read_number,
    unread_fields,
)
from router.errors import BadRequest
from tests.router.canonical.hostile import ANYTHING, outcome
from tests.router.canonical.test_kinds import form
from tests.router.world import chat


@given(ANYTHING)
def test_a_number_is_within_its_bounds_or_refused_by_name(value: Any) -> None:
    found, fault = outcome(lambda: read_number({"x": value}, "x", -1, 2, usual=1))
    assert fault in (None, "x")
    assert found is None or (math.isfinite(found) and -1 <= found <= 2 and found != 1)
    assert fault is None or value is not None


@given(ANYTHING)
def test_a_whole_number_is_within_its_bounds_or_refused_by_name(value: Any) -> None:
    found, fault = outcome(lambda: read_integer({"x": value}, "x", 0, 9))
    assert fault in (None, "x")
    assert found is None or (type(found) is int and found == value)


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, 1])
def test_a_field_that_asks_for_nothing_is_not_among_the_others(value: object) -> None:
    fields = {"read": 1, "usual": value, **dict.fromkeys(BESIDE, "x"), "new": "y"}
    assert unread_fields(fields, {"read"}, {"usual": 1}) == {"new": "y"}


def test_texts_become_numbers_only_in_the_fields_that_want_numbers() -> None:
    parts = (("n", "2"), ("prompt", "7"), ("t", "0.5"), ("s", "True"), ("w", "many"), ("e", ""))
    found = read_form(form(*parts), frozenset("ntsw"))
    assert found.fields == {"n": 2, "prompt": "7", "t": 0.5, "s": True, "w": "many"}
    assert found.files == {}


def test_a_name_in_brackets_is_a_list() -> None:
    found = read_form(form(("a[]", "1"), ("a[]", "2"), ("b", "1"), ("b", "2"), ("c[]", b"x"), ("c[]", b"y")))  # fmt: skip
    assert found.fields == {"a": ["1", "2"], "b": "2"}
    assert found.files == {"c": (b"x", b"y")}


def test_json_has_no_files() -> None:
    assert read_form(chat(body=b'{"a":[1]}')).fields == {"a": [1]}


@pytest.mark.parametrize("content", [b"x" * (MAX_FORM_TEXT_BYTES + 1), b"\xff"])
def test_a_field_that_is_too_long_or_not_utf8_is_refused_by_name(content: bytes) -> None:
    sent = form(("note", "HERE"))
    with pytest.raises(BadRequest) as refused:
        read_form(replace(sent, body=sent.body.replace(b"HERE", content)))
    assert refused.value.param == "note"
