"""Laws of the retry budget."""

from hypothesis import given
from hypothesis import strategies as st

from router.select.attempts import MAX_PLACES, RESERVE, WINDOW, Budget


def spent(budget: Budget, *, now: float, tries: int, under_way: int = 0) -> int:
    """Return how many of `tries` failures, each at a place of its own, may be retried."""
    return sum(budget.spend(f"place {n}", under_way, now) for n in range(tries))


def test_with_few_requests_the_reserve_may_be_spent() -> None:
    assert spent(Budget(0.2), now=0, tries=100) == RESERVE


def test_with_many_requests_a_share_of_them_may_be_retried() -> None:
    budget = Budget(0.2)
    for _ in range(1000):
        budget.began(5.0)
    assert spent(budget, now=5.9, tries=1000) == 200


def test_spent_retries_are_restored_after_the_window() -> None:
    budget = Budget(0.0)
    assert spent(budget, now=3.0, tries=100) == RESERVE
    assert spent(budget, now=3.0 + WINDOW - 1, tries=100) == 0
    assert spent(budget, now=3.0 + WINDOW, tries=100) == RESERVE


def test_all_requests_in_flight_at_a_place_that_died_may_be_retried_once() -> None:
    budget = Budget(0.0)
    assert all(budget.spend("it", 500 - n, 1.0) for n in range(500))
    # Later failures there are no death but a failing worker; another place has its own death.
    assert sum(budget.spend("it", 1, 2.0) for _ in range(500)) == RESERVE
    assert all(budget.spend("another", 200 - n, 2.0) for n in range(200))


def test_a_place_may_die_again_later() -> None:
    budget = Budget(0.0)
    assert spent(budget, now=1.0, tries=100) == RESERVE
    assert budget.spend("it", 1, 1.0)
    assert not budget.spend("it", 1, 1.0)
    assert budget.spend("it", 1, 1.0 + WINDOW - 0.1) is False
    assert budget.spend("it", 2, 1.0 + WINDOW)


def test_the_number_of_remembered_places_is_bounded() -> None:
    budget = Budget(0.0)
    spent(budget, now=1.0, tries=MAX_PLACES + 10, under_way=1)
    assert len(budget._deaths) == MAX_PLACES


@given(
    st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=400),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_retries_never_exceed_the_share_or_the_reserve_in_any_window(
    steps: list[tuple[float, bool]], share: float
) -> None:
    budget = Budget(share)
    now, begun, retried = 0.0, [], []
    for step, fails in steps:
        now += step
        budget.began(now)
        begun.append(int(now))
        if fails and budget.spend("it", 0, now):
            retried.append(int(now))
            recent = int(now) - WINDOW
            few = max(RESERVE, share * sum(at > recent for at in begun))
            assert sum(at > recent for at in retried) <= few + 1
