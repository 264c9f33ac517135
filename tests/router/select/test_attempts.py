"""Laws of retries: their budget, and the model names that a caller listed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import PeerId, Service
from router.errors import (
    AnswerBroken,
    BadRequest,
    NobodyServes,
    NoCapacity,
    RouterError,
    UnknownModel,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerUnreachable,
)
from router.requests import Request
from router.select.attempts import (
    MAX_PLACES,
    RESERVE,
    WINDOW,
    Failure,
    RetryBudget,
    iterate_candidates,
    iterate_names,
)
from router.select.candidates import Candidate
from tests.router.world import chat


def at(node: str, cid: str = "") -> Candidate:
    return Candidate(PeerId(node), Service("p", "m", cid))


def tried(
    ordered: Sequence[Candidate],
    error: WorkerError,
    at_most: int = 10,
    seconds: float = 0,
    affordable: int = 10,
) -> list[Candidate]:
    failures: list[Candidate] = []

    def afford(failed: Candidate, _: WorkerError) -> bool:
        failures.append(failed)
        return len(failures) <= affordable

    attempts = iterate_candidates(ordered, at_most=at_most, within=10, afford=afford)
    seen = [next(attempts)]

    def go_on() -> None:
        while True:
            seen.append(attempts.send(Failure(error, elapsed=len(seen) * seconds)))

    with pytest.raises(WorkerError) as raised:
        go_on()
    assert raised.value is error
    # The budget is charged only for attempts that would be retried.
    assert failures == seen[: min(len(seen) - 1, affordable) + (len(seen) > affordable)]
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
        attempts = iterate_candidates(
            [at("a"), at("b"), at("c")], at_most=3, within=1, afford=lambda *_: True
        )
        next(attempts)
        for number, error in enumerate(errors, 1):
            error.attempts = number
            if number < 3:
                attempts.send(Failure(error))
        with pytest.raises(WorkerFailed):
            attempts.send(Failure(errors[-1]))
        assert failed.attempts == 3


def test_an_attempt_that_the_budget_does_not_allow_is_not_made() -> None:
    ordered = [at("a"), at("b"), at("c")]
    assert tried(ordered, WorkerFailed("x"), affordable=1) == [at("a"), at("b")]
    assert tried(ordered, WorkerFailed("x"), affordable=0) == [at("a")]


def test_no_candidates_give_no_attempts() -> None:
    assert list(iterate_candidates([], at_most=3, within=1, afford=lambda *_: True)) == []


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


LISTED = replace(chat("a"), fallbacks=("b", "c"))
UNKNOWN, AWAY, FAILED = UnknownModel("x"), NobodyServes("x"), WorkerFailed("x")


def asked(*errors: RouterError) -> tuple[list[Request], RouterError]:
    names = iterate_names(LISTED)
    seen = [next(names)]
    for error in errors:
        try:
            seen.append(names.send(error))
        except RouterError as told:
            return seen, told
    raise AssertionError("there is always a last name")


def test_names_are_tried_in_order_each_with_a_body_of_its_own() -> None:
    seen, _ = asked(UNKNOWN, AWAY, FAILED)
    assert [request.model for request in seen] == ["a", "b", "c"]
    assert [request.body for request in seen] == [chat(name).body for name in "abc"]
    assert all(request.fallbacks == () for request in seen)


def test_only_the_last_name_queues() -> None:
    seen, _ = asked(NoCapacity("x"), NoCapacity("x"), NoCapacity("x"))
    assert [request.waits for request in seen] == [False, False, True]


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
    seen, raised = asked(error)
    assert (len(seen), raised) == (1, error)


def spent(budget: RetryBudget, *, now: float, attempts: int, under_way: int = 0) -> int:
    """Return how many of `attempts` failures, each at a place of its own, may be retried."""
    return sum(budget.try_spend(f"place {n}", under_way, now) for n in range(attempts))


def test_with_few_requests_the_reserve_may_be_spent() -> None:
    assert spent(RetryBudget(0.2), now=0, attempts=100) == RESERVE


def test_with_many_requests_a_share_of_them_may_be_retried() -> None:
    budget = RetryBudget(0.2)
    for _ in range(1000):
        budget.count_request(5.0)
    assert spent(budget, now=5.9, attempts=1000) == 200


def test_spent_retries_are_restored_after_the_window() -> None:
    budget = RetryBudget(0.0)
    assert spent(budget, now=3.0, attempts=100) == RESERVE
    assert spent(budget, now=3.0 + WINDOW - 1, attempts=100) == 0
    assert spent(budget, now=3.0 + WINDOW, attempts=100) == RESERVE


def test_all_requests_in_flight_at_a_place_that_died_may_be_retried_once() -> None:
    budget = RetryBudget(0.0)
    assert all(budget.try_spend("it", 500 - n, 1.0) for n in range(500))
    # Later failures there are no death but a failing worker; another place has its own death.
    assert sum(budget.try_spend("it", 1, 2.0) for _ in range(500)) == RESERVE
    assert all(budget.try_spend("another", 200 - n, 2.0) for n in range(200))


def test_a_place_may_die_again_later() -> None:
    budget = RetryBudget(0.0)
    assert spent(budget, now=1.0, attempts=100) == RESERVE
    assert budget.try_spend("it", 1, 1.0)
    assert not budget.try_spend("it", 1, 1.0)
    assert budget.try_spend("it", 1, 1.0 + WINDOW - 0.1) is False
    assert budget.try_spend("it", 2, 1.0 + WINDOW)


def test_the_number_of_remembered_places_is_bounded() -> None:
    budget = RetryBudget(0.0)
    spent(budget, now=1.0, attempts=MAX_PLACES + 10, under_way=1)
    assert len(budget._deaths) == MAX_PLACES


@given(
    st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=400),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_retries_never_exceed_the_share_or_the_reserve_in_any_window(
    steps: list[tuple[float, bool]], share: float
) -> None:
    budget = RetryBudget(share)
    now, begun, retried = 0.0, [], []
    for step, fails in steps:
        now += step
        budget.count_request(now)
        begun.append(int(now))
        if fails and budget.try_spend("it", 0, now):
            retried.append(int(now))
            recent = int(now) - WINDOW
            allowed = max(RESERVE, share * sum(moment > recent for moment in begun))
            assert sum(moment > recent for moment in retried) <= allowed + 1
