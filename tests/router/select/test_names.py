"""Laws of trying the model names that a caller listed."""

from dataclasses import replace

import pytest

from router.errors import (
    BadRequest,
    NobodyServes,
    NoCapacity,
    RouterError,
    UnknownModel,
    WorkerFailed,
    WorkerRejected,
)
from router.requests import Request
from router.select.attempts import in_turn
from tests.router.world import chat

LISTED = replace(chat("a"), fallbacks=("b", "c"))
UNKNOWN, AWAY, FAILED = UnknownModel("x"), NobodyServes("x"), WorkerFailed("x")


def asked(*errors: RouterError) -> tuple[list[Request], RouterError]:
    names = in_turn(LISTED)
    seen = [next(names)]
    for error in errors:
        try:
            seen.append(names.send(error))
        except RouterError as told:
            return seen, told
    raise AssertionError("there is always a last name")


def test_names_are_tried_in_order_each_with_a_body_of_its_own() -> None:
    seen, _ = asked(UNKNOWN, AWAY, FAILED)
    assert [one.model for one in seen] == ["a", "b", "c"]
    assert [one.body for one in seen] == [chat(name).body for name in "abc"]
    assert all(one.fallbacks == () for one in seen)


def test_only_the_last_name_queues() -> None:
    seen, _ = asked(NoCapacity("x"), NoCapacity("x"), NoCapacity("x"))
    assert [one.waits for one in seen] == [False, False, True]


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ((UNKNOWN, UNKNOWN, AWAY), AWAY),
        ((AWAY, UNKNOWN, UNKNOWN), AWAY),
        ((FAILED, AWAY, UNKNOWN), FAILED),
        ((AWAY, FAILED, UNKNOWN), FAILED),
        ((UNKNOWN, AWAY, FAILED), FAILED),
    ],
)
def test_the_most_informative_failure_is_raised(
    errors: tuple[RouterError, ...], told: RouterError
) -> None:
    assert asked(*errors)[1] is told


@pytest.mark.parametrize("error", [WorkerRejected(400, b""), BadRequest("not so")])
def test_a_bad_request_is_not_tried_under_other_names(error: RouterError) -> None:
    seen, told = asked(error)
    assert (len(seen), told) == (1, error)
