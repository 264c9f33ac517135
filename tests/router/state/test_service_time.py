"""Laws of a service time: it is read back as written; and how much a cache holds after a while."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.state.service_time import (
    ReadPrefix,
    ServiceTime,
    format_service_time,
    parse_service_time,
)


def test_a_service_time_is_read_as_it_was_written() -> None:
    time = ServiceTime(0.25, 0.001, 0.02, 120.5, 0.125, 0.002, 0.5, 60.0, 0.125, 57)
    text = "fixed=0.250000;kilobyte=0.001000;token=0.020000;tokens=120.500000;first=0.125000;"
    text += "first_kilobyte=0.002000;sharing=0.500000;holds=60.000000;error=0.125000;answers=57"
    assert format_service_time(time) == text
    assert parse_service_time(format_service_time(time)) == time


GOOD = "fixed=1;kilobyte=0;token=0;tokens=0;first=0;first_kilobyte=0;sharing=0;holds=9;error=0;answers=1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fixed=1",
        GOOD.replace("fixed=1", "fixed=-1"),
        GOOD.replace("fixed=1", "fixed=nan"),
        GOOD.replace("fixed=1", "fixed=1e9"),
        GOOD.replace("fixed=1", "fixed=" + "9" * 8),
        GOOD.replace("fixed=1", "fixed=\u0661"),
        GOOD.replace("sharing=0", "sharing=1.1"),
        GOOD.replace("answers=1", "answers=0"),
        GOOD.replace("holds=9", "holds=0"),
        GOOD + ";more=1",
        GOOD * 1_000,
    ],
)
def test_an_invalid_text_is_no_service_time(text: str) -> None:
    assert parse_service_time(GOOD) is not None
    assert parse_service_time(text) is None


@given(st.text(max_size=200))
def test_any_text_is_a_service_time_or_none(text: str) -> None:
    service_time = parse_service_time(text)
    assert service_time is None or 0 <= service_time.sharing <= 1


def test_a_shared_prefix_is_held_and_half_of_the_rest_after_its_half_life() -> None:
    before = ReadPrefix(20.0, age=60.0, shared=8.0)
    assert before.held(60.0) == 10.0
    assert before.held(10.0) == 8.0
    assert ReadPrefix(shared=8.0).held(60.0) == 8.0
