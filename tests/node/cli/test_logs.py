"""`modelvine logs`: what it asks, what it shows, and that no line is shown twice."""

import json

import pytest

from node.cli.logs import OVERLAP, NewLines
from tests.node.cli.stand_in import Said

LOGS = "GET_/api/v1/logs"


def line(number, time=1_790_000_000.25, process=7, level="info", message="hello"):
    return {
        "time": time, "level": level, "logger": "modelvine.node", "message": message,
        "process": process, "number": number,
    }  # fmt: skip


def test_lines_are_shown_as_a_node_writes_them(modelvine, node):
    server = node(**{LOGS: Said({"logs": [line(1), line(2, level="warning", message="a\x1bb")]})})
    first, second = modelvine("logs", "--level", "info", "--number", "7").out.splitlines()
    assert first.endswith(".250 INFO    modelvine.node  hello")
    assert "WARNING modelvine.node  a\N{REPLACEMENT CHARACTER}b" in second
    assert server.heard[0].path.endswith("?level=info&number=7")


def test_json_output_has_one_object_per_line(modelvine, node):
    node(**{LOGS: Said({"logs": [line(1), line(2)]})})
    out = modelvine("logs", "--json").out.splitlines()
    assert [json.loads(text) for text in out] == [line(1), line(2)]


def test_a_line_is_shown_once_also_if_it_arrives_late():
    new = NewLines()
    assert new.of([line(1, 10.0), line(2, 11.0)]) == [line(1, 10.0), line(2, 11.0)]
    assert new.since == 11.0 - OVERLAP
    late = line(1, 10.5, process=8)
    assert new.of([line(1, 10.0), late, line(2, 11.0)]) == [late]
    assert new.of([line(3, 20.0)]) == [line(3, 20.0)]
    assert new.since == 20.0 - OVERLAP


def test_lines_older_than_the_first_one_shown_are_not_shown_later():
    new = NewLines()
    new.of([line(9, 10.0)])
    assert new.of([line(8, 9.5), line(9, 10.0)]) == []


@pytest.mark.parametrize("words", [("--level", "loud"), ("--number", "-1"), ("--number", "0")])
def test_an_unknown_level_and_a_negative_number_are_refused(modelvine, node, words):
    node()
    assert modelvine("logs", *words).code == 2
