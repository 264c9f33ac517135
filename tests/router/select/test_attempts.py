"""Laws of retries."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import PeerId, Service
from router.errors import (
    AnswerBroken,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerUnreachable,
)
from router.select.attempts import Failure, attempts
from router.select.candidates import Candidate


def at(node: str, cid: str = "") -> Candidate:
    return Candidate(PeerId(node), Service("p", "m", cid))


def tried(
    ordered: Sequence[Candidate],
    error: WorkerError,
    at_most: int = 10,
    seconds: float = 0,
    affordable: int = 10,
) -> list[Candidate]:
    asked: list[Candidate] = []

    def afford(failed: Candidate, _: WorkerError) -> bool:
        asked.append(failed)
        return len(asked) <= affordable

    tries = attempts(ordered, at_most=at_most, within=10, afford=afford)
    seen = [next(tries)]

    def go_on() -> None:
        while True:
            seen.append(tries.send(Failure(error, elapsed=len(seen) * seconds)))

    with pytest.raises(WorkerError) as raised:
        go_on()
    assert raised.value is error
    # The budget is charged only for attempts that would be retried.
    assert asked == seen[: min(len(seen) - 1, affordable) + (len(seen) > affordable)]
    return seen


def test_candidates_are_tried_in_order_until_the_last_error_is_raised() -> None:
    assert tried([at("a"), at("b"), at("c")], WorkerFailed("x")) == [at("a"), at("b"), at("c")]


def test_the_number_of_attempts_is_limited() -> None:
    assert tried([at("a"), at("b"), at("c")], WorkerFailed("x"), at_most=2) == [at("a"), at("b")]


@pytest.mark.parametrize("error", [WorkerRejected(400, b""), AnswerBroken("x")])
def test_a_rejected_request_and_a_begun_answer_are_not_retried(
    error: WorkerError,
) -> None:
    assert tried([at("a"), at("b")], error) == [at("a")]


def test_after_a_failure_another_node_is_preferred() -> None:
    ordered = [at("a", "1"), at("a", "2"), at("b")]
    assert tried(ordered, WorkerUnreachable("x")) == [at("a", "1"), at("b"), at("a", "2")]


def test_no_attempt_starts_once_the_time_is_used_up() -> None:
    assert tried([at("a"), at("b"), at("c")], WorkerFailed("x"), seconds=5) == [at("a"), at("b")]


def test_a_failure_of_a_worker_is_raised_rather_than_that_others_were_unreachable() -> None:
    failed, away = WorkerFailed("x"), WorkerUnreachable("x")
    for errors in ([failed, away, away], [away, failed, away], [away, away, failed]):
        tries = attempts([at("a"), at("b"), at("c")], at_most=3, within=1, afford=lambda *_: True)
        next(tries)
        for number, error in enumerate(errors, 1):
            error.attempts = number
            if number < 3:
                tries.send(Failure(error))
        with pytest.raises(WorkerFailed):
            tries.send(Failure(errors[-1]))
        assert failed.attempts == 3


def test_an_attempt_that_the_budget_does_not_allow_is_not_made() -> None:
    ordered = [at("a"), at("b"), at("c")]
    assert tried(ordered, WorkerFailed("x"), affordable=1) == [at("a"), at("b")]
    assert tried(ordered, WorkerFailed("x"), affordable=0) == [at("a")]


def test_no_candidates_give_no_attempts() -> None:
    assert list(attempts([], at_most=3, within=1, afford=lambda *_: True)) == []


@given(
    st.lists(
        st.builds(at, st.sampled_from("abc"), st.text("xy", max_size=3)),
        unique=True,
        min_size=1,
        max_size=8,
    )
)
def test_every_candidate_is_tried_exactly_once_and_new_nodes_first(
    ordered: list[Candidate],
) -> None:
    seen = tried(ordered, WorkerFailed("x"), at_most=10)
    assert sorted(map(repr, seen)) == sorted(map(repr, ordered))
    nodes = len({c.node for c in ordered})
    assert len({c.node for c in seen[:nodes]}) == nodes
