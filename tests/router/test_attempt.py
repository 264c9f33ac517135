"""Laws of one attempt: its outcome is recorded however it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from registry.members.liveness import Evidence
from router.answer import NOTHING, Answer, Route
from router.attempt import Attempt, AttemptContext
from router.errors import AnswerBroken, WorkerError, WorkerFailed
from router.ledger import Ledger
from router.outcome import Outcome
from router.world import LoneWorld
from tests.router.world import OWN, QUICK, chat, own

OURS = own("http://127.0.0.1:1")
Put = Callable[[Attempt], AbstractAsyncContextManager[Answer]]


class Office(AttemptContext):
    """A runner that records the reported outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.time = 0.0
        self._put: Put | None = None

        def now() -> float:
            return self.time

        super().__init__(Ledger(LoneWorld(OWN.peer), QUICK, now=now, random=lambda: 0.5), now)

    def send(self, attempt: Attempt) -> AbstractAsyncContextManager[Answer]:
        assert self._put is not None
        return self._put(attempt)

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def attempt(self, put: Put) -> Attempt:
        self._put = put
        return Attempt(self, chat(), OURS, number=2, others=(), holds_slot=False)


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    made = Office()
    yield made
    assert not made.ledger.in_flight


def answers() -> Answer:
    return Answer(200, "application/json", b"{}", NOTHING, Route.LOCAL)


async def test_an_answer_is_reported_at_its_end_with_its_time(office: Office) -> None:
    @asynccontextmanager
    async def put(_: Attempt) -> AsyncIterator[Answer]:
        yield answers()

    async with office.attempt(put) as routed:
        assert (routed.candidate, routed.attempts) == (OURS, 2)
        assert not office.outcomes
        office.time = 3.0
    assert office.outcomes == [Outcome(OURS, None, 3.0, request="r-1")]


async def test_a_failure_before_the_first_byte_is_reported_with_its_number(office: Office) -> None:
    def put(_: Attempt) -> AbstractAsyncContextManager[Answer]:
        raise WorkerFailed("it speaks another language")

    with pytest.raises(WorkerFailed) as failed:
        async with office.attempt(put):
            pass
    assert failed.value.attempts == 2
    assert [outcome.error for outcome in office.outcomes] == [failed.value]


async def test_a_failure_after_the_first_byte_is_reported_as_broken(office: Office) -> None:
    answer, error = answers(), AnswerBroken("it broke off")

    @asynccontextmanager
    async def put(_: Attempt) -> AsyncIterator[Answer]:
        try:
            yield answer
        finally:
            answer.broken = error

    with pytest.raises(WorkerError):
        async with office.attempt(put):
            raise error
    assert [outcome.error for outcome in office.outcomes] == [error]


async def test_a_caller_that_left_before_the_first_byte_shows_nothing(office: Office) -> None:
    @asynccontextmanager
    async def put(_: Attempt) -> AsyncIterator[Answer]:
        await asyncio.Event().wait()
        yield answers()

    async def ask() -> None:
        async with office.attempt(put):
            pass

    asking = asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    assert office.ledger.in_flight == {OURS.key: 1}
    asking.cancel()
    await asyncio.wait([asking])
    assert office.outcomes == []


async def test_a_caller_that_left_in_the_middle_does_not_show_that_the_node_is_alive(
    office: Office,
) -> None:
    @asynccontextmanager
    async def put(_: Attempt) -> AsyncIterator[Answer]:
        yield answers()

    async def ask() -> None:
        async with office.attempt(put):
            # The machine lost its power after the first byte: nothing comes, and no error either.
            await asyncio.Event().wait()

    asking = asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert [(outcome.error, outcome.evidence) for outcome in office.outcomes] == [(None, None)]


async def test_an_answer_read_to_its_end_shows_that_the_node_is_alive(office: Office) -> None:
    @asynccontextmanager
    async def put(_: Attempt) -> AsyncIterator[Answer]:
        yield answers()

    async with office.attempt(put):
        pass
    assert [outcome.evidence for outcome in office.outcomes] == [Evidence.ANSWERED]
