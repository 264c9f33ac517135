"""What is measured of translation is what dialects and faces do."""

import pytest

from bench.translation import Row, microseconds, rows
from router import dialects

ROWS = list(rows())
GRPC = ("LocalAI, face", "LocalAI, passed on at both ends, completions")
EVENTS = [(name, hear) for name, _, hear in ROWS if hear is not None]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_request_is_said_with_all_of_its_text(row: Row) -> None:
    said = row[1]()
    assert b"x" * 2_000 in said
    assert said == row[1]()


@pytest.mark.parametrize(("name", "hear"), EVENTS, ids=[name for name, _ in EVENTS])
def test_an_event_is_said_in_other_words_each_time(name: str, hear) -> None:
    hear()
    for _ in range(3):
        said = hear()
        assert b" word" in said
        # Without what a stream begins with; messages of gRPC are no such events.
        assert said.count(b"data:") == (name not in GRPC)


def test_every_dialect_is_measured() -> None:
    said = [
        name.partition(",")[0].replace(" ", "").lower() for name, *_ in ROWS if "dialect" in name
    ]
    known = [name.partition("_http")[0].partition("_grpc")[0] for name in dialects.NAMES]
    assert {*said, "peer"} == {name.replace("_", "") for name in known}


def test_the_least_of_all_rounds_counts() -> None:
    assert microseconds(lambda: sum(range(9)), 10) > 0
