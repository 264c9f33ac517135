"""Laws of values: equal and hashed by what they hold, and nothing can be put beside that."""

from dataclasses import replace

import pytest

from registry.records import Load


def test_values_that_hold_the_same_are_one_key() -> None:
    assert {Load(1, 2): "seen"}[replace(Load(9, 2), in_flight=1)] == "seen"
    assert Load(1) != Load(2)


def test_a_value_takes_no_field_that_it_does_not_have() -> None:
    with pytest.raises(AttributeError):
        Load().in_fight = 1  # type: ignore[attr-defined]
