"""Map in parts: whatever is changed, it holds what a plain map would, and the map before the change stays as it was."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry.catalog import PersistentMap

PARTS = 4
changes = st.lists(
    st.tuples(st.dictionaries(st.integers(), st.integers()), st.lists(st.integers())), max_size=8
)


def nothing() -> PersistentMap[int, int, dict[int, int]]:
    return PersistentMap(tuple({} for _ in range(PARTS)), lambda key: key % PARTS, dict[int, int])


@given(changes)
def test_changes_have_the_same_outcome_as_in_a_plain_map(steps: list[Any]) -> None:
    parted, plain = nothing(), dict[int, int]()
    for put, drop in steps:
        before, kept = parted, dict(parted)
        parted = parted.changed(put, drop)
        plain = {key: value for key, value in plain.items() if key not in drop} | put
        assert dict(parted) == plain
        assert len(parted) == len(plain)
        assert dict(before) == kept


@given(st.dictionaries(st.integers(), st.integers(), min_size=1))
def test_every_key_is_found_and_no_other(entries: dict[int, int]) -> None:
    parted = nothing().changed(entries)
    assert all(parted[key] == value for key, value in entries.items())
    assert parted.get(max(entries) + 1) is None


def test_a_change_makes_its_own_part_anew_and_shares_the_others() -> None:
    before = nothing().changed({1: 1, 2: 2})
    after = before.changed({5: 5})
    fresh = [number for number in range(PARTS) if after.parts[number] is not before.parts[number]]
    assert fresh == [1]


def test_without_a_change_the_map_stays_the_same_object() -> None:
    before = nothing().changed({1: 1})
    assert before.changed({}) is before
