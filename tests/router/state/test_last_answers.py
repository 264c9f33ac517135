"""Laws of signs of life: which workers are worth waiting for, and what is shown of them."""

from router.errors import (
    WorkerAway,
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerFailed,
    WorkerTimeout,
    WorkerUnreachable,
)
from router.state.readiness import (
    FORGOTTEN,
    LONGEST_RESTART,
    MAX_ADDRESSES,
    RESTART,
    Life,
    Vitals,
)

REFUSED = WorkerUnreachable("refused")


def test_an_unknown_worker_may_return() -> None:
    assert Vitals().may_return("a", 0.0)
    assert Vitals().life("a", 0.0) == Life()


def test_a_worker_that_never_answered_a_probe_is_not_waited_for_until_it_does() -> None:
    vitals = Vitals()
    vitals.probed("a", 0.0, answers=False)
    assert not vitals.may_return("a", 0.0)
    assert vitals.life("a", 5.0) == Life(known=True, silent=5.0)
    vitals.answered("a", 6.0)
    vitals.take("a", REFUSED, 7.0)
    assert vitals.may_return("a", 7.0)


def test_a_probed_worker_is_away_since_its_last_answer() -> None:
    vitals = Vitals()
    vitals.probed("a", 0.0, answers=True)
    vitals.probed("a", 15.0, answers=False)
    assert vitals.may_return("a", RESTART - 1)
    assert not vitals.may_return("a", RESTART)
    assert vitals.life("a", RESTART) == Life(known=True, ever=True, silent=RESTART)


def test_a_worker_that_is_not_probed_is_away_since_its_first_miss() -> None:
    vitals = Vitals()
    vitals.answered("a", 0.0)
    vitals.take("a", REFUSED, 1000.0)
    vitals.take("a", REFUSED, 1000.0 + RESTART - 1)
    assert vitals.may_return("a", 1000.0 + RESTART - 1)
    assert not vitals.may_return("a", 1000.0 + RESTART)
    # The last sign is too old to say anything about now.
    assert vitals.may_return("a", 1000.0 + RESTART + FORGOTTEN)


def test_a_worker_with_long_restarts_is_waited_for_longer_within_bounds() -> None:
    vitals = Vitals()
    vitals.probed("a", 0.0, answers=True)
    for took in (50.0, 500.0):
        vitals.take("a", REFUSED, 1.0)
        vitals.probed("a", took, answers=True)
        vitals.probed("a", took + 1, answers=False)
        patience = min(2 * took, LONGEST_RESTART)
        assert vitals.may_return("a", took + patience - 1)
        assert not vitals.may_return("a", took + patience)
        vitals = Vitals()
        vitals.probed("a", 0.0, answers=True)


def test_the_word_of_its_node_counts_for_another_nodes_worker() -> None:
    vitals = Vitals()
    vitals.take("a", WorkerAway("restarts", hopeful=True), 0.0)
    assert vitals.may_return("a", 0.0)
    vitals.take("a", WorkerAway("never there"), 1.0)
    assert not vitals.may_return("a", 1.0)
    vitals.answered("a", 2.0)
    vitals.take("a", WorkerAway("long gone"), 3.0)
    assert not vitals.may_return("a", 3.0)


def test_only_an_absent_worker_is_silent_and_any_answer_is_a_sign_of_life() -> None:
    away = (REFUSED, WorkerTimeout("connection", 1))
    alive = (WorkerFailed("500"), WorkerBusy("full"))
    neither: tuple[WorkerError, ...] = (WorkerDied("hung up"), WorkerTimeout("first byte", 1))
    for errors, known, answers in (
        (away, True, False),
        (alive, True, True),
        (neither, False, False),
    ):
        for error in errors:
            vitals = Vitals()
            vitals.take("a", error, 0.0)
            life = vitals.life("a", 0.0)
            assert (life.known, life.answers) == (known, answers)


def test_the_number_of_remembered_addresses_is_bounded() -> None:
    vitals = Vitals()
    for number in range(MAX_ADDRESSES + 1):
        vitals.answered(str(number), 0.0)
    assert not vitals.life("0", 0.0).known
    assert vitals.life("1", 0.0).known
