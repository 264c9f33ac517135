"""`modelvine receipts`: sums by node, and whether two nodes agree."""

import json

import pytest

from tests.node.cli.stand_in import Said

NODES, SUMS = "GET_/api/v1/nodes", "GET_/api/v1/receipts"
PEERS = {"12D3KooWQxA": "gpu-1", "12D3KooWQxB": "gpu-2"}
COMPARED = "GET_/api/v1/receipts/12D3KooWQxB/comparison"
AGREED = {
    "answers": 1_200,
    "tokens": 34_567,
    "counts": {"differ": 0, "only_here": 0, "only_there": 0},
    "differ": [],
    "only_here": [],
    "only_there": [],
    "faults": [],
}


def nodes():
    return Said(
        {"code": 0, "nodes": [{"node": peer, "name": name} for peer, name in PEERS.items()]}
    )


def test_sums_are_shown_by_node(modelvine, node):
    rows = [{"peer": "12D3KooWQxB", "side": "asked", "answers": 1_200, "tokens": 34_567}]
    node(**{NODES: nodes(), SUMS: Said({"code": 0, "receipts": rows})})
    ended = modelvine("receipts")
    assert (ended.code, ended.out.splitlines()[1].split()) == (
        0,
        ["12D3KooWQxB", "gpu-2", "answered", "us", "1,200", "34,567"],
    )
    assert json.loads(modelvine("receipts", "--json").out) == rows


@pytest.mark.parametrize("said", ["gpu-2", "12D3KooWQxB"])
def test_the_agreement_of_two_nodes_is_reported(modelvine, node, said):
    node(**{NODES: nodes(), COMPARED: Said({"code": 0, **AGREED})})
    ended = modelvine("receipts", said)
    assert (ended.code, ended.out) == (0, "both agree on 1,200 answers, 34,567 tokens\n")


def test_a_difference_fails_and_is_named(modelvine, node):
    payload = {
        **AGREED,
        "counts": {"differ": 1, "only_here": 2, "only_there": 0},
        "differ": [{"request": "r1\x1b[2J", "here": [1, 9], "there": [1, 900]}],
        "only_here": ["a", "b"],
        "faults": ["there: page 3 was changed"],
    }
    node(**{NODES: nodes(), COMPARED: Said({"code": 0, **payload})})
    ended = modelvine("receipts", "gpu-2")
    assert ended.code == 1
    assert "1+9 tokens here, 1+900 there" in ended.out
    assert "2 recorded only here: a, b" in ended.out
    assert "there: page 3 was changed" in ended.out
    assert "\x1b" not in ended.out


@pytest.mark.parametrize(("said", "words"), [("gpu-9", "no node"), ("12D3KooWQx", "2 nodes")])
def test_an_unknown_and_an_ambiguous_peer_are_refused(modelvine, node, said, words):
    node(**{NODES: nodes()})
    ended = modelvine("receipts", said)
    assert (ended.code, words in ended.err) == (1, True)
