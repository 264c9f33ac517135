"""The translation benchmark measures what dialects and faces do."""

import pytest

from bench.translation import Row, microseconds, rows
from router import dialects

ROWS = list(rows())
GRPC = ("LocalAI, face", "LocalAI, passed on at both ends, completions")
EVENTS = [(name, hear) for name, _, hear in ROWS if hear is not None]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_translated_request_has_all_of_its_text(row: Row) -> None:
    body = row[1]()
    assert b"x" * 2_000 in body
    assert body == row[1]()


@pytest.mark.parametrize(("name", "hear"), EVENTS, ids=[name for name, _ in EVENTS])
def test_each_call_translates_one_event(name: str, hear) -> None:
    hear()
    for _ in range(3):
        output = hear()
        assert b" word" in output
        # The opening event of the stream is not among them; gRPC messages are no such events.
        assert output.count(b"data:") == (name not in GRPC)


def test_every_dialect_is_measured() -> None:
    measured = [
        name.partition(",")[0].replace(" ", "").lower() for name, *_ in ROWS if "dialect" in name
    ]
    names = [name.partition("_http")[0].partition("_grpc")[0] for name in dialects.NAMES]
    assert {*measured, "peer"} == {name.replace("_", "") for name in names}


def test_a_measured_time_is_positive() -> None:
    assert microseconds(lambda: sum(range(9)), 10) > 0
