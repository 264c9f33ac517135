"""Words for the values that a setting allows: every setting has some, in plain English."""

import pytest

from node.config.allowed import describe_allowed, describe_value
from node.config.sources import KEYS, SECTIONS


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_says_what_it_may_be_on_one_line(key: str) -> None:
    section, _, name = key.partition(".")
    words = describe_allowed(SECTIONS[section], name)
    assert words
    assert not any(odd in words for odd in ("\n", "valid", "class", "None", "  "))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a", "'a'"),
        ("", "''"),
        (5, "5"),
        (True, "true"),
        (float("nan"), "nan"),
        (["a", 1, [False]], "['a', 1, [false]]"),
        ({"a": 1}, "a table"),
    ],
)
def test_a_value_is_shown_as_it_may_be_written(value: object, shown: str) -> None:
    assert describe_value(value) == shown
