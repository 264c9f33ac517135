"""Filters of a search: comparisons, their combinations, and invalid filters."""

import pytest

from node.provide.face import Fault
from node.provide.vectors.face import fits

OF = {"year": 2026, "kind": "note"}


@pytest.mark.parametrize(
    ("kind", "value", "fit"),
    [
        ("eq", 2026, True), ("ne", 2026, False), ("gt", 2025, True), ("gte", 2027, False),
        ("lt", 2027, True), ("lte", 2025, False), ("in", [2026], True), ("nin", [2026], False),
        ("gt", "x", False),
    ],
)  # fmt: skip
def test_each_comparison_fits_as_its_type_says(kind, value, fit):
    assert fits(OF, {"type": kind, "key": "year", "value": value}) is fit


def test_filters_are_combined_by_and_and_or():
    yes = {"type": "eq", "key": "kind", "value": "note"}
    no = {"type": "eq", "key": "none", "value": 1}
    assert not fits(OF, {"type": "and", "filters": [yes, no]})
    assert fits(OF, {"type": "or", "filters": [no, {"type": "and", "filters": [yes]}]})
    assert fits(OF, None)


@pytest.mark.parametrize("by", [1, {}, {"type": "like", "key": "a", "value": 1}, {"type": "and"}])
def test_an_invalid_filter_is_refused(by):
    with pytest.raises(Fault):
        fits(OF, by)


def test_a_filter_that_is_nested_too_deep_is_refused():
    by = {"type": "eq", "key": "a", "value": 1}
    for _ in range(9):
        by = {"type": "and", "filters": [by]}
    with pytest.raises(Fault):
        fits(OF, by)
