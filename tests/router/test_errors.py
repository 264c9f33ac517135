"""Laws of the error tree."""

import inspect

import pytest

from router import errors
from router.errors import RouterError, WorkerError

ALL = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, Exception)
]


@pytest.mark.parametrize("error", ALL)
def test_every_error_stands_in_the_tree_at_the_head_of_its_module(error: type[RouterError]) -> None:
    assert issubclass(error, RouterError)
    lines = (inspect.getdoc(errors) or "").splitlines()
    [line] = [line for line in lines if error.__name__ in line.split()]
    depth = line.index(error.__name__) // 4
    assert depth == len(error.__mro__) - len(RouterError.__mro__)


def test_only_errors_that_no_other_worker_can_avoid_are_final() -> None:
    final = {
        error.__name__ for error in ALL if issubclass(error, WorkerError) and not error.elsewhere
    }
    assert final == {"WorkerRejected", "PoisonousRequest", "AnswerBroken"}


def test_a_worker_is_not_blamed_for_its_load_or_for_the_request() -> None:
    blameless = {
        error.__name__
        for error in ALL
        if issubclass(error, WorkerError) and not error.blames_worker
    }
    assert blameless == {
        "WorkerBusy",
        "WorkerLoading",
        "WorkerAway",
        "WorkerStale",
        "WorkerUnable",
        "Looped",
        "WorkerRejected",
        "WorkerTooSmall",
        "PoisonousRequest",
    }
