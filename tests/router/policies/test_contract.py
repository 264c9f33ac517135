"""What every policy owes the router."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import Load, PeerId, Service
from router import policies
from router.candidates import Candidate
from router.reports import Reported

loads = st.builds(Load, st.integers(0, 65_535), st.integers(0, 65_535))
candidates = st.lists(
    st.builds(
        Candidate,
        st.sampled_from("abcdef").map(PeerId),
        st.builds(Service, st.just("p"), st.just("m"), st.text("xy", max_size=3)),
        in_flight=st.integers(0, 50),
        suspect=st.booleans(),
        report=st.none() | st.builds(Reported, loads, st.integers(0, 50), st.floats(0, 1e6)),
    ),
    max_size=12,
)
seeds = st.integers(0, 1000)


@pytest.mark.parametrize("name", policies.NAMES)
@given(found=candidates, seed=seeds)
def test_everybody_is_ordered_once_and_nobody_is_invented(
    name: str, found: list[Candidate], seed: int
) -> None:
    ordered = policies.load(name)(tuple(found), Random(seed).random)
    assert sorted(map(repr, ordered)) == sorted(map(repr, found))


@pytest.mark.parametrize("name", policies.NAMES)
@given(found=candidates, seed=seeds)
def test_the_same_chance_gives_the_same_order(name: str, found: list[Candidate], seed: int) -> None:
    order = policies.load(name)
    assert list(order(found, Random(seed).random)) == list(order(found, Random(seed).random))


@pytest.mark.parametrize("name", policies.NAMES)
@given(found=candidates, seed=seeds)
def test_the_suspect_come_last(name: str, found: list[Candidate], seed: int) -> None:
    ordered = policies.load(name)(found, Random(seed).random)
    assert [c.suspect for c in ordered] == sorted(c.suspect for c in ordered)


def test_a_policy_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="p2c"):
        policies.load("astrology")
