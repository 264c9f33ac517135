"""Laws of shared places: whatever one peer holds, another gets a place, and none is lost."""

from collections import Counter
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import LimitReached
from registry.intake.shares import Shares, holding
from registry.records import PeerId


def taken(shares: Shares, peer: PeerId, stack: ExitStack) -> int:
    """Take as many places as a peer gets."""
    for count in range(1_000):
        try:
            stack.enter_context(shares.hold_place(peer))
        except LimitReached:
            return count
    raise AssertionError("places without end")


@given(st.integers(2, 300), st.integers(1, 5))
def test_peers_that_take_all_they_get_leave_places_to_others(most: int, greedy: int) -> None:
    shares = Shares(most)
    with ExitStack() as stack:
        granted = [taken(shares, PeerId(str(number)), stack) for number in range(greedy)]
        assert granted[0] == -(-most // 2)
        assert sum(granted) < most or greedy >= most.bit_length() - 1
        assert sum(granted) <= most
    with ExitStack() as stack:
        assert taken(shares, PeerId("late"), stack) == -(-most // 2)


def test_the_only_place_goes_to_the_first_peer() -> None:
    shares = Shares(1)
    with (
        shares.hold_place(PeerId("a")),
        pytest.raises(LimitReached),
        shares.hold_place(PeerId("b")),
    ):
        pass
    with shares.hold_place(PeerId("b")):
        pass


def test_a_key_counts_while_it_is_held_and_takes_no_memory_afterwards() -> None:
    held: Counter[str] = Counter()
    with holding(held, "a"), holding(held, "a"):
        assert held == {"a": 2}
    assert not held
    with pytest.raises(LimitReached), holding(held, "a"):
        raise LimitReached
    assert not held
