"""Any field content is a value within its bounds or a fault that names the field."""

import math
from typing import Any

import pytest
from hypothesis import given

from router.canonical.values import BESIDE, number, others, whole
from tests.router.canonical.hostile import ANYTHING, outcome


@given(ANYTHING)
def test_a_number_is_within_its_bounds_or_refused_by_name(value: Any) -> None:
    found, fault = outcome(lambda: number({"x": value}, "x", -1, 2, usual=1))
    assert fault in (None, "x")
    assert found is None or (math.isfinite(found) and -1 <= found <= 2 and found != 1)
    assert fault is None or value is not None


@given(ANYTHING)
def test_a_whole_number_is_within_its_bounds_or_refused_by_name(value: Any) -> None:
    found, fault = outcome(lambda: whole({"x": value}, "x", 0, 9))
    assert fault in (None, "x")
    assert found is None or (type(found) is int and found == value)


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, 1])
def test_a_field_that_asks_for_nothing_is_not_among_the_others(value: object) -> None:
    given = {"read": 1, "usual": value, **dict.fromkeys(BESIDE, "x"), "new": "y"}
    assert others(given, {"read"}, {"usual": 1}) == {"new": "y"}
