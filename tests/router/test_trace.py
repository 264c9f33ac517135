"""What travels on with an attempt, and what is noted of it."""

from dataclasses import replace
from itertools import count

from registry.records import Service
from router.errors import WorkerTimeout
from router.select.candidates import Candidate
from router.trace import MOST_ATTEMPTS, Trace
from tests.router.world import chat, own

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Counted:
    """Ids that tell themselves apart."""

    def __init__(self) -> None:
        self._next = count(1)

    def span(self) -> str:
        return f"{next(self._next):016x}"


def traced() -> Trace:
    return Trace(TRACE, "00f067aa0ba902b7", "01", 1.0, Counted())


OURS = own("http://127.0.0.1:1")
THEIRS = Candidate("another", Service("p", "llama", "c"))


def test_a_worker_is_a_child_of_the_call_and_the_call_of_the_attempt():
    trace = traced()
    attempt = trace.attempted(chat(), OURS, (THEIRS,), 1)
    assert (attempt.id, attempt.call, attempt.others) == ("0" * 15 + "1", "0" * 15 + "2", 1)
    assert trace.onward({"tracestate": "a=b"}, attempt) == {
        "tracestate": "a=b", "traceparent": f"00-{TRACE}-{attempt.call}-01",
    }  # fmt: skip


def test_another_node_is_a_child_of_the_attempt():
    trace = traced()
    attempt = trace.attempted(chat(), THEIRS, (), 1)
    assert attempt.call == ""
    assert trace.onward({}, attempt) == {"traceparent": f"00-{TRACE}-{attempt.id}-01"}


def test_each_attempt_has_an_id_of_its_own_and_no_more_are_noted_than_may():
    trace = traced()
    made = [trace.attempted(chat(), THEIRS, (), n) for n in range(MOST_ATTEMPTS + 3)]
    assert len({attempt.id for attempt in made}) == len(made)
    assert trace.attempts == made[:MOST_ATTEMPTS]


def test_of_an_error_its_class_is_noted_and_none_of_its_words():
    attempt = traced().attempted(chat(), THEIRS, (), 1)
    attempt.over(WorkerTimeout("first byte", 5.0), None, 3.0)
    assert (attempt.error, attempt.ended) == ("WorkerTimeout", 3.0)


def test_a_request_is_the_same_request_with_a_trace():
    assert replace(chat(), trace=traced()) == chat()
