"""Laws of signs of life: who is worth waiting for, and what people are told."""

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


def test_of_whom_nothing_is_known_the_restart_may_be() -> None:
    assert Vitals().may_return("a", 0.0)
    assert Vitals().life("a", 0.0) == Life()


def test_who_never_answered_a_probe_is_not_waited_for_until_it_does() -> None:
    vitals = Vitals()
    vitals.probed("a", 0.0, answers=False)
    assert not vitals.may_return("a", 0.0)
    assert vitals.life("a", 5.0) == Life(known=True, silent=5.0)
    vitals.answered("a", 6.0)
    vitals.take("a", REFUSED, 7.0)
    assert vitals.may_return("a", 7.0)


def test_who_is_probed_is_away_since_it_answered_last() -> None:
    vitals = Vitals()
    vitals.probed("a", 0.0, answers=True)
    vitals.probed("a", 15.0, answers=False)
    assert vitals.may_return("a", RESTART - 1)
    assert not vitals.may_return("a", RESTART)
    assert vitals.life("a", RESTART) == Life(known=True, ever=True, silent=RESTART)


def test_who_is_not_probed_is_away_since_it_was_missed_first() -> None:
    vitals = Vitals()
    vitals.answered("a", 0.0)
    vitals.take("a", REFUSED, 1000.0)
    vitals.take("a", REFUSED, 1000.0 + RESTART - 1)
    assert vitals.may_return("a", 1000.0 + RESTART - 1)
    assert not vitals.may_return("a", 1000.0 + RESTART)
    # Long ago: nobody knows what became of it since.
    assert vitals.may_return("a", 1000.0 + RESTART + FORGOTTEN)


def test_whose_restarts_take_long_is_waited_for_longer_within_bounds() -> None:
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


def test_of_another_nodes_worker_its_node_knows_best() -> None:
    vitals = Vitals()
    vitals.take("a", WorkerAway("restarts", hopeful=True), 0.0)
    assert vitals.may_return("a", 0.0)
    vitals.take("a", WorkerAway("never there"), 1.0)
    assert not vitals.may_return("a", 1.0)
    vitals.answered("a", 2.0)
    vitals.take("a", WorkerAway("long gone"), 3.0)
    assert not vitals.may_return("a", 3.0)


def test_only_that_nobody_was_there_is_silence_and_whatever_is_answered_is_life() -> None:
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


def test_what_is_remembered_is_bounded() -> None:
    vitals = Vitals()
    for number in range(MAX_ADDRESSES + 1):
        vitals.answered(str(number), 0.0)
    assert not vitals.life("0", 0.0).known
    assert vitals.life("1", 0.0).known
