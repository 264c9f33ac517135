"""Laws of the books: what is taken is given back, and signs reach whoever decides by them."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from registry.records import Load, PeerId, Service
from router.dialects import Answer, Route
from router.errors import AnswerBroken, WorkerBusy, WorkerFailed
from router.http.exchange import NOTHING
from router.ledger import Ledger
from router.openai.usage import Usage
from router.requests import Kind
from router.select.candidates import Candidate
from router.state.circuit import TRIP, Circuit
from router.state.service_time import ServiceTime
from router.workers import Workers
from router.world import LoneWorld
from tests.router.world import MODEL, OWN, QUICK, chat, own

OURS = own("http://127.0.0.1:1", capacity=2)
THEIRS = Candidate(PeerId("far"), Service("p", MODEL))


@pytest.fixture
async def ledger() -> AsyncIterator[Ledger]:
    made = Ledger(
        LoneWorld(OWN.peer, Workers.of([OURS.worker] if OURS.worker else [])),
        QUICK,
        now=lambda: 10.0,
        random=lambda: 0.5,
    )
    yield made
    assert not made.in_flight


def begun(*, load: Load | None = None) -> Answer:
    return Answer(200, "application/json", b"{}", NOTHING, Route.LOCAL, load=load)


@pytest.mark.parametrize("candidate", [OURS, THEIRS])
async def test_an_attempt_counts_from_its_start_to_its_end(
    ledger: Ledger, candidate: Candidate
) -> None:
    crowd = ledger.began(candidate, holds_slot=False)
    assert ledger.in_flight == {candidate.key: 1}
    ledger.ended(chat(), candidate, None, None, 0.1, crowd)


async def test_a_slot_that_was_waited_for_is_not_counted_twice(ledger: Ledger) -> None:
    ledger.count(OURS.service)
    crowd = ledger.began(OURS, holds_slot=True)
    assert ledger.in_flight == {OURS.key: 1}
    ledger.ended(chat(), OURS, None, None, 0.1, crowd)


async def test_the_first_byte_of_our_own_is_measured_and_another_node_s_word_is_heard(
    ledger: Ledger,
) -> None:
    crowd = ledger.began(OURS, holds_slot=False)
    tally = ledger.begun(chat(), OURS, begun(), 0.25)
    assert tally is not None
    assert ledger.busy() == {OURS.service: Load(1, slots=2, first=0.25)}
    ledger.ended(chat(), OURS, begun(), None, 0.5, crowd)
    ledger.began(THEIRS, holds_slot=False)
    assert ledger.begun(chat(), THEIRS, begun(load=Load(4)), 0.1) is None
    heard = ledger.reports.of(*THEIRS.key, now=10.0)
    assert heard is not None
    assert (heard.load, heard.ours) == (Load(4), 1)
    ledger.ended(chat(), THEIRS, begun(), None, 0.2, 0.0)


async def test_failures_in_a_row_open_a_circuit_and_a_full_worker_does_not(ledger: Ledger) -> None:
    def attempt(error: WorkerFailed | WorkerBusy | AnswerBroken, answer: Answer | None) -> None:
        ledger.began(THEIRS, holds_slot=False)
        ledger.ended(chat(), THEIRS, answer, error, 0.1, 0.0)

    for _ in range(2 * TRIP):
        attempt(WorkerBusy("full"), None)
    assert ledger.condition(THEIRS).circuit is Circuit.CLOSED
    broken = replace(begun(), broken=AnswerBroken("broke off"))
    for _ in range(TRIP - 1):
        attempt(WorkerFailed("no"), None)
    attempt(AnswerBroken("broke off"), broken)
    assert ledger.condition(THEIRS).circuit is Circuit.OPEN
    assert ledger.known(chat()).row(*THEIRS.key).ejected


def answer(
    ledger: Ledger,
    usage: Usage | None = None,
    *,
    kind: Kind = Kind.CHAT,
    broken: AnswerBroken | None = None,
    media_type: str = "application/json",
) -> ServiceTime | None:
    """Have our own worker answer in two seconds, and return what is expected of it."""
    crowd = ledger.began(OURS, holds_slot=False)
    said = replace(begun(), usage=usage, broken=broken, content_type=media_type, length=400)
    ledger.ended(replace(chat(), kind=kind), OURS, said, None, 2.0, crowd)
    return ledger.times.of_own(OURS.service, kind)


async def test_what_answers_of_our_own_worker_take_is_learnt(ledger: Ledger) -> None:
    time = answer(ledger, Usage(7, 50))
    assert time is not None
    assert (time.alone(kilobytes=0, tokens=50), time.tokens) == (2.0, 50)
    assert ledger.known(chat()).row(*OURS.key, OURS.worker).time == time
    assert ledger.known(chat(kind=Kind.EMBEDDING)).row(*OURS.key, OURS.worker).time is None


async def test_an_answer_that_tells_no_tokens_has_as_many_as_its_bytes_say(ledger: Ledger) -> None:
    time = answer(ledger)
    assert time is not None
    assert time.tokens == 100
    embedded = answer(ledger, kind=Kind.EMBEDDING)
    assert embedded is not None
    assert (embedded.fixed, embedded.tokens) == (2.0, 0)


async def test_half_an_answer_tells_nothing(ledger: Ledger) -> None:
    assert answer(ledger, Usage(7, 50), broken=AnswerBroken("broke off")) is None
    # Its caller left in mid-stream.
    assert answer(ledger, media_type="text/event-stream") is None


async def test_what_a_node_says_of_its_worker_is_known_until_the_node_is_lost(
    ledger: Ledger,
) -> None:
    time = ServiceTime(0.5)
    ledger.began(THEIRS, holds_slot=False)
    ledger.begun(chat(), THEIRS, replace(begun(), service_time=time), 0.1)
    ledger.ended(chat(), THEIRS, begun(), None, 0.2, 0.0)
    assert ledger.known(chat()).row(*THEIRS.key).time == time
    assert ledger.known(chat(kind=Kind.EMBEDDING)).row(*THEIRS.key).time is None
    ledger.forget(THEIRS.node)
    assert ledger.known(chat()).row(*THEIRS.key).time is None


async def test_the_first_bytes_of_streams_are_learnt(ledger: Ledger) -> None:
    crowd = ledger.began(OURS, holds_slot=False)
    stream = replace(begun(), content_type="text/event-stream")
    ledger.begun(chat(), OURS, stream, 0.25)
    ledger.ended(chat(), OURS, replace(stream, usage=Usage(7, 50)), None, 2.0, crowd)
    time = ledger.times.of_own(OURS.service, Kind.CHAT)
    assert time is not None
    first = time.until_first(kilobytes=len(chat().body) / 1_000)
    assert first == pytest.approx(0.25)
