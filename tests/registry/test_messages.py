"""Messages of a comparison: what is written is read back, and noise is refused as an invalid frame."""

import math
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import messages
from registry.errors import InvalidFrame
from registry.messages import Held
from tests.strategies import identities, versions

peers = identities.map(lambda identity: identity.peer)
prints = st.binary(min_size=8, max_size=8).map(bytes.hex)
READERS = [
    messages.read_buckets,
    messages.read_wanted,
    messages.read_listing,
    messages.read_heard,
    lambda noise: [*messages.unpack(noise)],
]


@given(st.dictionaries(peers, st.builds(lambda v, f: (*v, f), versions, prints)))
def test_a_listing_is_read_back(held: dict[str, Held]) -> None:
    assert messages.read_listing(messages.write_listing(held)) == held


@given(st.lists(peers), st.lists(st.integers(0, 63), max_size=messages.BUCKETS))
def test_names_of_nodes_and_buckets_are_read_back(nodes: list[str], buckets: list[int]) -> None:
    assert messages.read_wanted(messages.write_wanted(nodes)) == nodes
    assert messages.read_buckets(messages.write_buckets(buckets)) == buckets


@given(st.lists(st.tuples(peers, st.floats(width=32, allow_nan=False))))
def test_the_nodes_that_a_peer_heard_are_read_back_whatever_their_age(
    ages: list[tuple[str, float]],
) -> None:
    assert messages.read_heard(messages.write_heard(ages)) == ages


def test_an_age_may_be_no_number() -> None:
    ((_, age),) = messages.read_heard(bytes(range(32)) + b"\x7f\xc0\x00\x00")
    assert math.isnan(age)


@pytest.mark.parametrize("read", READERS)
@given(noise=st.binary(max_size=300))
def test_noise_is_read_or_refused_as_an_invalid_frame(
    read: Callable[[bytes], object], noise: bytes
) -> None:
    with suppress(InvalidFrame):
        read(noise)


@pytest.mark.parametrize("read", READERS)
def test_a_message_that_is_too_long_is_not_read(read: Callable[[bytes], object]) -> None:
    with pytest.raises(InvalidFrame):
        read(b" " * (messages.MAX_LISTING_BYTES + 1))
