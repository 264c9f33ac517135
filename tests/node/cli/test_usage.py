"""`modelvine usage`: what it asks of a node, and what people, spreadsheets and scripts read."""

import json

import pytest

from tests.node.cli.stand_in import Said

USAGE = "GET_/api/v1/usage"
ROW = {
    "day": "2026-11-25", "key": "ann", "model": "llama", "requests": 1_200, "failed": 200, "prompt_tokens": 50_000,
    "completion_tokens": 9_000, "cached_tokens": 40_000, "estimated": 0, "seconds": 812.3, "first_seconds": 250.0,
}  # fmt: skip


def test_usage_is_a_table(modelvine, node):
    server = node(**{USAGE: Said({"usage": [ROW, {**ROW, "key": "bob", "estimated": 3}]})})
    head, ann, bob = modelvine("usage").out.splitlines()
    assert head.split() == [
        "DAY", "KEY", "MODEL", "REQUESTS", "FAILED", "INPUT", "OUTPUT", "CACHED", "SECONDS", "FIRST",
    ]  # fmt: skip
    assert ann.split() == [
        "2026-11-25", "ann", "llama", "1,200", "200", "50,000", "9,000", "40,000", "812.3", "0.250",
    ]  # fmt: skip
    assert "~50,000" in bob
    assert "by=day%2Ckey%2Cmodel" in server.heard[0].path


def test_sums_days_and_a_key_are_asked_for(modelvine, node):
    server = node(**{USAGE: Said({"usage": []})})
    ended = modelvine("usage", "--since", "2026-11-01", "--until", "2026-11-30", "--key", "ann", "--by", "model")  # fmt: skip
    assert ended.out == "no usage in these days\n"
    assert server.heard[0].path.endswith("?since=2026-11-01&until=2026-11-30&key=ann&by=model")
    modelvine("usage", "--days", "30")
    assert "since=20" in server.heard[1].path


def test_json_is_what_the_node_says(modelvine, node):
    node(**{USAGE: Said({"usage": [ROW]})})
    assert json.loads(modelvine("usage", "--json").out) == [ROW]


def test_csv_is_requested_from_the_node(modelvine, node):
    server = node(**{USAGE: Said({"usage": []})})
    assert modelvine("usage", "--csv").code == 0
    assert "format=csv" in server.heard[0].path


@pytest.mark.parametrize(
    "words",
    [
        ("--days", "-1"),
        ("--days", "0"),
        ("--days", "99999999"),
        ("--days", "3", "--since", "2026-11-01"),
    ],
)
def test_impossible_and_contradictory_days_are_refused(modelvine, node, words):
    node()
    ended = modelvine("usage", *words)
    assert (ended.code, "--days" in ended.err) == (2, True)
