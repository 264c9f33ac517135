"""Laws of the books: taken slots are released, signs reach the parts that decide by them, and every event is declared."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from registry.records import Load, PeerId, Service
from router.answer import NOTHING, Answer, Route
from router.errors import AnswerBroken, WorkerBusy, WorkerFailed
from router.ledger import EVENTS, Ledger
from router.openai.usage import Usage
from router.requests import Kind, Request
from router.select.candidates import Candidate, OfferedReplica
from router.state import slow_start
from router.state.circuit import TRIP, Circuit
from router.state.estimator import JUDGED, PAUSE
from router.state.in_flight import MAX_REPLICAS
from router.state.service_time import ServiceTime
from router.workers import Workers
from router.world import LoneWorld
from tests.router.world import MODEL, OWN, QUICK, Books, chat, own

OURS = own("http://127.0.0.1:1", capacity=2)
THEIRS = Candidate(PeerId("far"), Service("p", MODEL))


class Clocked(Books):
    """Books whose clock stands at 10 until it is moved."""

    def __init__(self) -> None:
        self.time = 10.0
        world = LoneWorld(OWN.peer, Workers.of([OURS.worker] if OURS.worker else []))
        ledger = Ledger(world, QUICK, now=lambda: self.time, random=lambda: 0.5)
        super().__init__(ledger, now=lambda: self.time)


@pytest.fixture
async def books() -> AsyncIterator[Clocked]:
    made = Clocked()
    yield made
    assert not made.ledger.in_flight


@pytest.fixture
def ledger(books: Clocked) -> Ledger:
    return books.ledger


def begun(*, load: Load | None = None) -> Answer:
    return Answer(200, "application/json", b"{}", NOTHING, Route.LOCAL, load=load)


@pytest.mark.parametrize("candidate", [OURS, THEIRS])
async def test_an_attempt_counts_from_its_start_to_its_end(
    books: Clocked, candidate: Candidate
) -> None:
    attempt = books.begin(candidate)
    assert books.ledger.in_flight == {candidate.key: 1}
    attempt.end()


async def test_a_slot_that_was_waited_for_is_not_counted_twice(books: Clocked) -> None:
    books.ledger.count_slot(OURS.service)
    attempt = books.begin(OURS, holds_slot=True)
    assert books.ledger.in_flight == {OURS.key: 1}
    attempt.end()


async def test_the_first_byte_of_an_own_worker_is_measured_and_another_nodes_load_is_recorded(
    books: Clocked,
) -> None:
    attempt = books.begin(OURS)
    books.time += 0.25
    assert attempt.record_answer(begun()).tally is not None
    assert books.ledger.busy_loads() == {OURS.service: Load(1, slots=2, first=0.25)}
    attempt.end()
    attempt = books.begin(THEIRS)
    assert attempt.record_answer(begun(load=Load(4))).tally is None
    report = books.ledger.reports.newest(*THEIRS.key, now=books.time)
    assert report is not None
    assert (report.load, report.ours) == (Load(4), 1)
    attempt.end()


async def test_counts_stay_exact_when_many_other_replicas_come_and_go(books: Clocked) -> None:
    attempts = [books.begin(OURS), books.begin(THEIRS)]
    for number in range(2 * MAX_REPLICAS):
        books.begin(replace(THEIRS, service=Service("p", f"m{number}"))).end()
    attempts.append(books.begin(THEIRS))
    books.ledger.forget(THEIRS.node)
    assert books.ledger.in_flight == {OURS.key: 1, THEIRS.key: 2}
    for attempt in attempts:
        attempt.end()


async def test_failures_in_a_row_open_a_circuit_and_a_full_worker_does_not(
    books: Clocked, ledger: Ledger
) -> None:
    def attempt(error: WorkerFailed | WorkerBusy | AnswerBroken, answer: Answer | None) -> None:
        made = books.begin(THEIRS)
        if answer is not None:
            made.record_answer(answer)
        made.end(error)

    for _ in range(2 * TRIP):
        attempt(WorkerBusy("full"), None)
    assert ledger.condition(THEIRS).circuit is Circuit.CLOSED
    broken = replace(begun(), broken=AnswerBroken("broke off"))
    for _ in range(TRIP - 1):
        attempt(WorkerFailed("no"), None)
    attempt(AnswerBroken("broke off"), broken)
    assert ledger.condition(THEIRS).circuit is Circuit.OPEN
    assert row(ledger, chat(), THEIRS).ejected


def row(ledger: Ledger, request: Request, candidate: Candidate) -> Candidate:
    """Return a replica with the ledger's knowledge of it."""
    [listed] = ledger.candidates(request, [OfferedReplica(candidate)])
    return listed


def answer(
    books: Clocked,
    usage: Usage | None = None,
    *,
    kind: Kind = Kind.CHAT,
    broken: AnswerBroken | None = None,
    media_type: str = "application/json",
) -> ServiceTime | None:
    """Have the node's own worker answer in two seconds, and return its service time."""
    attempt = books.begin(OURS, chat(kind=kind))
    answered = replace(begun(), usage=usage, broken=broken, content_type=media_type, length=400)
    attempt.record_answer(answered)
    books.time += 2.0
    attempt.end()
    return books.ledger.times.own_service_time(OURS.service, kind)


async def test_the_service_time_of_an_own_worker_is_learnt(books: Clocked, ledger: Ledger) -> None:
    time = answer(books, Usage(7, 50))
    assert time is not None
    assert (time.seconds_alone(kilobytes=0, tokens=50), time.tokens) == (2.0, 50)
    assert row(ledger, chat(), OURS).time == time
    assert row(ledger, chat(kind=Kind.EMBEDDING), OURS).time is None


async def test_of_answers_in_quick_succession_one_per_pause_is_learnt_from(books: Clocked) -> None:
    for _ in range(100):
        attempt = books.begin(OURS)
        attempt.record_answer(replace(begun(), length=4))
        books.time += PAUSE / 10
        attempt.end()
    time = books.ledger.times.own_service_time(OURS.service, Kind.CHAT)
    assert time is not None
    assert 9 <= time.answers <= 10


async def test_of_streams_that_begin_at_the_same_moment_one_is_learnt_from(books: Clocked) -> None:
    for seconds in (1.0, *[PAUSE / 1_000] * 100):
        attempt = books.begin(OURS)
        books.time += seconds
        attempt.record_answer(replace(begun(), content_type="text/event-stream"))
        attempt.end()
    books.time += PAUSE
    time = answer(books, Usage(7, 50))
    assert time is not None
    assert time.first == pytest.approx(1.0)


async def test_tokens_of_an_answer_without_usage_are_estimated_from_its_bytes(
    books: Clocked,
) -> None:
    time = answer(books)
    assert time is not None
    assert time.tokens == 100
    embedded = answer(books, kind=Kind.EMBEDDING)
    assert embedded is not None
    assert (embedded.fixed, embedded.tokens) == (2.0, 0)


async def test_nothing_is_learnt_from_half_an_answer(books: Clocked) -> None:
    assert answer(books, Usage(7, 50), broken=AnswerBroken("broke off")) is None
    # The caller left in mid-stream.
    assert answer(books, media_type="text/event-stream") is None


async def test_a_reported_service_time_is_kept_until_its_node_is_lost(
    books: Clocked, ledger: Ledger
) -> None:
    time = ServiceTime(0.5)
    attempt = books.begin(THEIRS)
    attempt.record_answer(replace(begun(), service_time=time))
    attempt.end()
    assert row(ledger, chat(), THEIRS).time == time
    assert row(ledger, chat(kind=Kind.EMBEDDING), THEIRS).time is None
    ledger.forget(THEIRS.node)
    assert row(ledger, chat(), THEIRS).time is None


async def test_a_replica_is_new_again_after_its_node_was_forgotten_or_it_was_evicted(
    books: Clocked,
) -> None:
    def ask(candidate: Candidate) -> float:
        attempt = books.begin(candidate)
        attempt.record_answer(begun())
        attempt.end()
        return books.ledger.allowance(candidate)

    assert [ask(THEIRS) for _ in range(3)] == [2, 3, 4]
    books.ledger.forget(THEIRS.node)
    assert books.ledger.allowance(THEIRS) == 1
    assert ask(THEIRS) == 2
    for number in range(slow_start.MAX_REPLICAS):
        ask(replace(THEIRS, service=Service("p", f"m{number}")))
    assert ask(THEIRS) == 2


async def test_the_first_bytes_of_streams_are_learnt(books: Clocked) -> None:
    attempt = books.begin(OURS)
    stream = replace(begun(), content_type="text/event-stream")
    books.time += 0.25
    attempt.record_answer(stream)
    stream.usage = Usage(7, 50)
    books.time += 1.75
    attempt.end()
    time = books.ledger.times.own_service_time(OURS.service, Kind.CHAT)
    assert time is not None
    first = time.seconds_to_first_byte(kilobytes=len(chat().body) / 1_000)
    assert first == pytest.approx(0.25)


async def test_a_node_that_takes_far_longer_than_it_reports_is_no_longer_believed(
    books: Clocked, ledger: Ledger
) -> None:
    quick = ServiceTime(0.01, token=0.001, tokens=50)
    usages = [Usage(7, 50), Usage(0, 0, estimated=True), None]
    for kind, usage in zip((Kind.CHAT, Kind.COMPLETION, Kind.EMBEDDING), usages, strict=True):
        for number in range(JUDGED):
            assert (row(ledger, chat(kind=kind), THEIRS).time == quick) is (
                0 < number <= JUDGED // 2
            )
            attempt = books.begin(THEIRS, chat(kind=kind))
            answered = begun(load=Load(0, slots=1_000))
            attempt.record_answer(replace(answered, service_time=quick, usage=usage, length=400))
            books.time += 5.0
            attempt.end()
        listed = row(ledger, chat(kind=kind), THEIRS)
        assert listed.report is None
        assert listed.time is not None
        assert listed.time.seconds_alone(kilobytes=0, tokens=50) > 4
        # A restart hides nothing.
        ledger.forget(THEIRS.node)
        assert row(ledger, chat(kind=kind), THEIRS).time == listed.time


async def test_a_stream_that_its_caller_left_says_nothing_of_another_nodes_speed(
    books: Clocked, ledger: Ledger
) -> None:
    for _ in range(JUDGED):
        attempt = books.begin(THEIRS)
        stream = replace(begun(), content_type="text/event-stream")
        attempt.record_answer(replace(stream, service_time=ServiceTime(0.01)))
        books.time += 5.0
        attempt.end()
    assert row(ledger, chat(), THEIRS).time == ServiceTime(0.01)


ROUTER = Path(__file__).parent.parent.parent / "router"
COUNTED = re.compile(r'events\["(\w+)"\]')


async def test_every_event_starts_at_zero() -> None:
    ledger = Ledger(LoneWorld(OWN.peer), QUICK, now=lambda: 0.0, random=lambda: 0.5)
    assert ledger.events == dict.fromkeys(EVENTS, 0)


def test_every_event_that_the_router_counts_is_declared() -> None:
    counted = {
        event for path in ROUTER.rglob("*.py") for event in COUNTED.findall(path.read_text())
    }
    assert counted == set(EVENTS)
