"""Durations as text."""

import pytest

from registry.clock import duration


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.00031, "0.31 ms"),
        (0.42, "420 ms"),
        (3.14, "3.1 s"),
        (119.9, "119.9 s"),
        (150, "2 min"),
        (7500, "2 h 05 min"),
        (172_799, "47 h 59 min"),
        (172_800, "2 days"),
        (2_678_400, "31 days"),
    ],
)
def test_durations_read_as_people_say_them(value: float, shown: str) -> None:
    assert duration(value) == shown
