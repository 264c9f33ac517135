"""`modelvine drain` and `undrain`: what they ask of a node, what they say, and how they end."""

import json

import pytest

from node.cli import drain
from tests.node.cli.stand_in import Said

DRAIN, UNDRAIN, STATUS = "POST_/api/v1/drain", "POST_/api/v1/undrain", "GET_/api/v1/status"
OK = Said({"code": 0, "message": "ok"})


def status(in_flight=0, standing="draining", **models):
    load = [
        {"project": "p", "model": name, "in_flight": count, "queued": 0}
        for name, count in models.items()
    ]
    return {
        "ready": {"http": "ok"}, "name": "gpu1", "standing": standing, "in_flight": in_flight, "load": load, "models": 2,
    }  # fmt: skip


def test_drain_says_what_is_in_flight_and_does_not_wait(modelvine, node):
    server = node(**{DRAIN: OK, STATUS: Said(status(3, tiny=1, llama=2, idle=0))})
    ended = modelvine("drain")
    assert ended.code == 0
    assert ended.out == "gpu1 is draining; 3 requests in flight (p/llama 2, p/tiny 1)\n"
    assert server.heard[0].method == "POST"


def test_drain_with_wait_ends_when_nothing_is_in_flight(modelvine, node):
    node(**{DRAIN: OK, STATUS: Said(status())})
    ended = modelvine("drain", "--wait")
    assert (ended.code, ended.out) == (
        0,
        "gpu1 is draining; nothing is in flight\nnothing is in flight at its models now\n",
    )


def test_drain_with_wait_does_not_wait_for_requests_that_pass_through_to_other_nodes(
    modelvine, node
):
    node(**{DRAIN: OK, STATUS: Said(status(7, tiny=0))})
    ended = modelvine("drain", "--wait")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "nothing is in flight at its models now")


def test_drain_with_wait_waits_for_requests_in_a_queue(modelvine, node):
    waiting = status(1, tiny=0)
    waiting["load"][0]["queued"] = 1
    node(**{DRAIN: OK, STATUS: Said(waiting)})
    assert modelvine("drain", "--wait", "--timeout", "0.001").code == 1


def test_drain_fails_when_its_timeout_is_over_first(modelvine, node):
    node(**{DRAIN: OK, STATUS: Said(status(1, tiny=1))})
    ended = modelvine("drain", "--wait", "--timeout", "0.001", "--json")
    assert ended.code == 1
    assert json.loads(ended.out) == {"standing": "draining", "in_flight": 1}
    assert "waiting: 1 request in flight (p/tiny 1)" in ended.err


@pytest.mark.parametrize("words", [("--timeout", "-1"), ("--timeout", "5")])
def test_a_negative_timeout_and_one_without_wait_are_refused(modelvine, node, words):
    node()
    assert modelvine("drain", *words).code == 2


def test_drain_exits_with_1_when_the_node_refuses_and_says_how_it_may(modelvine, node, monkeypatch):
    node(**{DRAIN: Said({"code": 1, "message": "no"}, status=403)})
    ended = modelvine("drain")
    assert (ended.code, "set MODELVINE_KEY" in ended.err) == (1, True)
    monkeypatch.setenv("MODELVINE_KEY", "mv_of_a_user")
    assert modelvine("drain").err == "modelvine: no (HTTP 403, code 1)\n"


def test_a_long_list_of_models_is_cut():
    many = status(9, **{f"m{number}": 1 for number in range(9)})
    assert drain.in_flight(many).endswith("p/m4 1, …)")


def test_undrain_says_what_is_served(modelvine, node):
    node(**{UNDRAIN: OK, STATUS: Said(status(standing="serving"))})
    assert modelvine("undrain").out == "gpu1 serves again, with 2 models\n"
    assert json.loads(modelvine("undrain", "--json").out) == {"standing": "serving", "models": 2}
