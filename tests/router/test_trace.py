"""Trace headers of an attempt, and what its span records."""

from dataclasses import replace
from itertools import count

from registry.records import Service
from router.answer import NOTHING, Answer, Route
from router.attempt import Attempt
from router.attempt_runner import request_for_candidate
from router.errors import AnswerBroken, WorkerFailed, WorkerTimeout
from router.openai.usage import Usage
from router.requests import PassedHeaders
from router.select.candidates import Candidate
from router.trace import MOST_ATTEMPTS, Trace
from tests.router.test_attempt import Office
from tests.router.world import chat, own

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Counted:
    """Distinct ids, counted up."""

    def __init__(self) -> None:
        self._next = count(1)

    def span(self) -> str:
        return f"{next(self._next):016x}"


def traced() -> Trace:
    return Trace(TRACE, "00f067aa0ba902b7", "01", 1.0, Counted())


OURS = own("http://127.0.0.1:1")
THEIRS = Candidate("another", Service("p", "llama", "c"))


def test_a_workers_span_is_a_child_of_the_call_and_the_call_of_the_attempt():
    trace = traced()
    attempt = trace.add_attempt(chat(), OURS, (THEIRS,), 1)
    assert (attempt.id, attempt.call, attempt.others) == ("0" * 15 + "1", "0" * 15 + "2", 1)
    assert trace.outgoing_headers({"tracestate": "a=b"}, attempt) == {
        "tracestate": "a=b", "traceparent": f"00-{TRACE}-{attempt.call}-01",
    }  # fmt: skip


def test_another_nodes_span_is_a_child_of_the_attempt():
    trace = traced()
    attempt = trace.add_attempt(chat(), THEIRS, (), 1)
    assert attempt.call == ""
    assert trace.outgoing_headers({}, attempt) == {"traceparent": f"00-{TRACE}-{attempt.id}-01"}


def test_each_attempt_has_its_own_id_and_the_recorded_attempts_are_bounded():
    trace = traced()
    attempts = [trace.add_attempt(chat(), THEIRS, (), n) for n in range(MOST_ATTEMPTS + 3)]
    assert len({attempt.id for attempt in attempts}) == len(attempts)
    assert trace.attempts == attempts[:MOST_ATTEMPTS]


def test_only_the_class_of_an_error_is_recorded():
    attempt = traced().add_attempt(chat(), THEIRS, (), 1)
    attempt.record_end(WorkerTimeout("first byte", 5.0), None, 3.0)
    assert (attempt.error, attempt.ended) == ("WorkerTimeout", 3.0)


def test_the_trace_does_not_count_in_the_equality_of_requests():
    assert replace(chat(), trace=traced()) == chat()


def put(office: Office, trace: Trace | None) -> Attempt:
    request = replace(chat(), trace=trace, passed=PassedHeaders({"traceparent": "00-1-2-01"}))
    return Attempt(office, request, OURS, number=1, others=(), holds_slot=False)


def test_a_request_carries_the_span_of_its_attempt_or_without_a_trace_its_callers():
    trace = traced()
    attempt = put(Office(), trace)
    [noted] = trace.attempts
    assert request_for_candidate(attempt).passed == {"traceparent": f"00-{TRACE}-{noted.call}-01"}
    assert request_for_candidate(put(Office(), None)).passed == {"traceparent": "00-1-2-01"}


def test_an_attempt_records_its_times_and_usage_however_it_ends():
    office, trace = Office(), traced()
    answer = Answer(200, "application/json", b"{}", NOTHING, Route.LOCAL, usage=Usage(3, 4))
    for ends in ("well", "broken", "failed", "left"):
        attempt = put(office, trace)
        office.time = 1.0
        attempt.begin()
        office.time = 2.0
        if ends in ("well", "broken"):
            answer.broken = AnswerBroken("it quotes the prompt") if ends == "broken" else None
            attempt.record_answer(answer)
        office.time = 4.0
        attempt.end(WorkerFailed("so does it") if ends == "failed" else None)
    well, broken, failed, left = trace.attempts
    assert (well.began, well.first_byte, well.ended, well.error) == (1.0, 2.0, 4.0, "")
    assert (well.route, well.status, well.usage) == ("local", 200, Usage(3, 4))
    assert (broken.route, broken.error) == ("local", "AnswerBroken")
    assert (failed.route, failed.error, failed.ended) == ("", "WorkerFailed", 4.0)
    assert (left.route, left.error, left.ended) == ("", "", 4.0)
