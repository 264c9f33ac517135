"""What is measured of translation is what a dialect does."""

import orjson
import pytest

from bench.translating import asking, microseconds, passing
from router.requests import Kind

KINDS = pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETION])


@KINDS
def test_a_request_is_said_in_the_workers_words(kind: Kind) -> None:
    said = orjson.loads(asking(kind)())
    assert ("inputs" in said) == (kind is Kind.COMPLETION)
    assert ("messages" in said) == (kind is Kind.CHAT)


@KINDS
def test_an_event_is_said_in_openais_form_each_time(kind: Kind) -> None:
    run = passing(kind)
    for _ in range(3):
        [choice] = orjson.loads(run().removeprefix(b"data: "))["choices"]
        assert " word" in (choice.get("text"), choice.get("delta", {}).get("content"))


def test_the_least_of_all_rounds_counts() -> None:
    assert microseconds(asking(Kind.CHAT), 1) > 0
