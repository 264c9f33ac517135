"""What a status of gRPC means for an attempt, and what of a worker's words a caller sees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import (
    WorkerBusy,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerTimeout,
    WorkerUnable,
    WorkerUnreachable,
)
from router.rpc.failures import MAX_WORDS, PUSHBACK, RpcFailed, cleaned

REPR = "Unexpected <class 'AttributeError'>: 'X' object has no attribute 'tokenizer'"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("UNAVAILABLE", WorkerUnreachable),
        ("DEADLINE_EXCEEDED", WorkerTimeout),
        ("RESOURCE_EXHAUSTED", WorkerBusy),
        ("UNIMPLEMENTED", WorkerUnable),
        ("INVALID_ARGUMENT", WorkerRejected),
        ("NOT_FOUND", WorkerFailed),
        ("UNAUTHENTICATED", WorkerFailed),
        ("UNKNOWN", WorkerFailed),
        ("INTERNAL", WorkerFailed),
        ("CANCELLED", WorkerFailed),
    ],
)
def test_each_status_is_an_error_of_the_attempt(code: str, error: type[WorkerError]) -> None:
    assert type(RpcFailed(code, "why").as_error("Predict")) is error


@given(
    st.sampled_from(("UNKNOWN", "INTERNAL", "NOT_FOUND", "UNAVAILABLE", "RESOURCE_EXHAUSTED")),
    st.text(),
)
def test_the_text_of_an_exception_reaches_nobody(code: str, more: str) -> None:
    assert REPR[:30] not in str(RpcFailed(code, REPR + more).as_error("Predict"))


def test_who_finds_fault_with_the_request_is_quoted_on_one_line() -> None:
    error = RpcFailed("INVALID_ARGUMENT", "no\nsuch\x00 field").as_error("Predict")
    assert isinstance(error, WorkerRejected)
    assert (error.status, error.body) == (400, b"no such field")


@given(st.text())
def test_words_are_one_short_printable_line(words: str) -> None:
    assert len(cleaned(words)) <= MAX_WORDS
    assert all(c.isprintable() for c in cleaned(words))


@pytest.mark.parametrize(
    ("said", "seconds", "named"),
    [("7000", 7, True), ("99999999", 3600, True), ("-1", 1, False), ("soon", 1, False)],
)
def test_a_full_worker_may_say_for_how_long(said: str, seconds: float, named: bool) -> None:
    error = RpcFailed("RESOURCE_EXHAUSTED", trailing={PUSHBACK: said}).as_error("Predict")
    assert isinstance(error, WorkerBusy)
    assert (error.retry_after, error.named) == (seconds, named)


def test_too_large_is_the_requests_fault_or_the_workers() -> None:
    theirs = RpcFailed("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 5)")
    error = theirs.as_error("Predict")
    assert isinstance(error, WorkerRejected)
    assert error.status == 413
    ours = RpcFailed(
        "RESOURCE_EXHAUSTED", "Stream removed (CLIENT: Received message larger than max (9 vs. 5)"
    )
    assert isinstance(ours.as_error("Predict"), WorkerFailed)
