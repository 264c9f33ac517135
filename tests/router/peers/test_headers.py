"""Headers between nodes: valid traces pass unchanged, and a request that returns to a node is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import PeerId
from router.errors import BadRequest, Looped
from router.peers.headers import MOST_NODES, extended_via, is_parent, is_state, trace_of

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"


def test_a_valid_context_is_passed_on_unchanged() -> None:
    headers = {"traceparent": PARENT, "tracestate": STATE, "authorization": "Bearer k"}
    assert trace_of(headers) == {"traceparent": PARENT, "tracestate": STATE}


@pytest.mark.parametrize(
    "parent",
    [
        PARENT,
        PARENT.replace("-01", "-00"),
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes.later",
    ],
)
def test_a_parent_of_this_version_or_a_later_one_is_valid(parent: str) -> None:
    assert is_parent(parent)


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT + "-more",
        PARENT + "-",
        PARENT + " ",
        " " + PARENT,
        PARENT + "," + PARENT,
        PARENT + "\n",
        "ff" + PARENT[2:],
        "0" + PARENT,
        PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        PARENT.replace("00f067aa0ba902b7", "0" * 16),
        PARENT.replace("-01", "-1"),
        PARENT.replace("4bf", "4bg"),
        PARENT.replace("-", "_"),
        "cc" + PARENT[2:] + ".x",
        "cc" + PARENT[2:] + "-" + "x" * 300,
        "cc" + PARENT[2:] + "-a\r\nX: y",
        PARENT.replace("4", "٤"),
    ],
)
def test_an_invalid_parent_is_dropped_with_its_state(parent: str) -> None:
    assert trace_of({"traceparent": parent, "tracestate": STATE}) == {}


@pytest.mark.parametrize(
    "state",
    ["a=b", "a=b,c=d", "a=b , c=d,", "0tenant@system=x y", "a/b_c-d*=!~", ",".join(f"k{n}=v" for n in range(32))],
)  # fmt: skip
def test_a_state_is_a_list_of_keys_with_values(state: str) -> None:
    assert is_state(state)


@pytest.mark.parametrize(
    "state",
    [
        "",
        ",",
        "a",
        "=b",
        "a=",
        "A=b",
        "a=b,a=c",
        "a=b=c",
        "a=é",
        "a=b\r\nX: y",
        "a=" + "b" * 511,
        "a@1=b",
        ",".join(f"k{n}=v" for n in range(33)),
    ],
)
def test_an_invalid_state_is_dropped_and_its_parent_is_kept(state: str) -> None:
    assert trace_of({"traceparent": PARENT, "tracestate": state}) == {"traceparent": PARENT}


def test_a_state_without_a_parent_is_dropped() -> None:
    assert trace_of({"tracestate": STATE}) == {}


@given(st.text(max_size=600), st.text(max_size=600))
def test_passed_on_trace_headers_are_printable_ascii(parent: str, state: str) -> None:
    for value in trace_of({"traceparent": parent, "tracestate": state}).values():
        assert value.isascii()
        assert value.isprintable()


OWN = PeerId("12D3KooWOwn")


def test_each_node_appends_itself() -> None:
    assert extended_via("", OWN) == OWN
    assert extended_via(extended_via("", PeerId("first")), OWN) == f"first, {OWN}"
    assert extended_via("first,\tsecond", OWN) == f"first, second, {OWN}"


@pytest.mark.parametrize("said", [OWN, f"first, {OWN}", f"{OWN},last"])
def test_a_node_that_finds_itself_in_the_list_refuses_the_request(said: str) -> None:
    with pytest.raises(Looped, match="returned to"):
        extended_via(said, OWN)


def test_the_number_of_nodes_that_a_request_passes_is_limited() -> None:
    via = ""
    for number in range(MOST_NODES):
        via = extended_via(via, PeerId(f"n{number}"))
    with pytest.raises(Looped, match=f"passed {MOST_NODES} nodes"):
        extended_via(via, OWN)


@pytest.mark.parametrize("said", [",", "a,,b", "a b", "a;b", "ü", " ", "x" * 65, "a," * 1_000])
def test_an_invalid_list_of_nodes_is_a_bad_request(said: str) -> None:
    with pytest.raises(BadRequest):
        extended_via(said, OWN)


@given(st.text())
def test_the_outgoing_list_of_nodes_is_short_and_valid_for_any_incoming_one(said: str) -> None:
    try:
        outgoing = extended_via(said, OWN)
    except (Looped, BadRequest):
        return
    assert outgoing.isascii()
    assert len(outgoing) <= MOST_NODES * 66
    assert extended_via(outgoing, PeerId("next")) if outgoing.count(",") < MOST_NODES - 1 else True
