"""A request that returns to a node, or has passed too many nodes, is refused; no other is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import PeerId
from router.errors import BadRequest, Looped
from router.peers.headers import MOST_NODES, via_onward

OWN = PeerId("12D3KooWOwn")


def test_each_node_appends_itself() -> None:
    assert via_onward("", OWN) == OWN
    assert via_onward(via_onward("", PeerId("first")), OWN) == f"first, {OWN}"
    assert via_onward("first,\tsecond", OWN) == f"first, second, {OWN}"


@pytest.mark.parametrize("said", [OWN, f"first, {OWN}", f"{OWN},last"])
def test_a_node_that_finds_itself_in_the_list_refuses_the_request(said: str) -> None:
    with pytest.raises(Looped, match="returned to"):
        via_onward(said, OWN)


def test_the_number_of_nodes_that_a_request_passes_is_limited() -> None:
    said = ""
    for number in range(MOST_NODES):
        said = via_onward(said, PeerId(f"n{number}"))
    with pytest.raises(Looped, match=f"passed {MOST_NODES} nodes"):
        via_onward(said, OWN)


@pytest.mark.parametrize("said", [",", "a,,b", "a b", "a;b", "ü", " ", "x" * 65, "a," * 1_000])
def test_an_invalid_list_of_nodes_is_a_bad_request(said: str) -> None:
    with pytest.raises(BadRequest):
        via_onward(said, OWN)


@given(st.text())
def test_the_outgoing_list_of_nodes_is_short_and_valid_for_any_incoming_one(said: str) -> None:
    try:
        left = via_onward(said, OWN)
    except (Looped, BadRequest):
        return
    assert left.isascii()
    assert len(left) <= MOST_NODES * 66
    assert via_onward(left, PeerId("next")) if left.count(",") < MOST_NODES - 1 else True
