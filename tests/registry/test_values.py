"""Value classes: equal and hashed by what they hold, and nothing else can be put into them."""

from dataclasses import dataclass, replace

import pytest

from registry.records import Load, Service
from registry.values import replace_fields


@dataclass(frozen=True, slots=True)
class Alone:
    """A value of one field."""

    only: int


def test_values_that_hold_the_same_are_one_key() -> None:
    assert {Load(1, 2): "seen"}[replace(Load(9, 2), in_flight=1)] == "seen"
    assert Load(1) != Load(2)


def test_a_value_takes_no_field_that_it_does_not_have() -> None:
    with pytest.raises(AttributeError):
        Load().in_fight = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (Load(9, 2, rate=1.5), {}),
        (Load(9, 2, rate=1.5), {"in_flight": 1, "first": 0.25}),
        (Service("project", "model", created=5), {"abilities": 3}),
        (Alone(1), {"only": 2}),
    ],
)
def test_a_changed_value_is_as_replaced(value: Load, changes: dict[str, int]) -> None:
    before = repr(value)
    changed = replace_fields(value, **changes)
    assert changed == replace(value, **changes)
    assert repr(changed) == repr(replace(value, **changes))
    assert repr(value) == before


def test_a_value_is_not_changed_in_a_field_that_it_does_not_have() -> None:
    with pytest.raises(KeyError):
        replace_fields(Load(), in_fight=1)
