"""The meaning of a gRPC status for an attempt, and how much of a worker's message a caller sees."""

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


@pytest.mark.parametrize(
    "code", ["UNKNOWN", "INTERNAL", "NOT_FOUND", "UNAVAILABLE", "DATA_LOSS", "OK"]
)
def test_a_failure_quotes_the_workers_message(code: str) -> None:
    assert REPR in str(RpcFailed(code, REPR).as_error("Predict"))


def test_a_status_without_a_message_is_reported_alone() -> None:
    assert str(RpcFailed("DATA_LOSS").as_error("Predict")) == "the worker failed: DATA_LOSS"


@given(st.text(min_size=40, max_size=200), st.text(max_size=60), st.integers(0, 30))
def test_a_message_that_quotes_the_request_is_hidden(prompt: str, more: str, at: int) -> None:
    failed = RpcFailed("UNKNOWN", f"ValueError: {more}{prompt[at:]}")
    failed.redact(b"x" + cleaned(prompt).encode(errors="replace"), [])
    # Shorter remains of a quotation reveal little.
    assert not any(
        cleaned(prompt)[n : n + 36] in failed.words
        for n in range(max(1, len(prompt) - 36))
        if len(cleaned(prompt)[n : n + 36]) == 36
    )


def test_keys_are_hidden_from_the_message() -> None:
    failed = RpcFailed("UNAUTHENTICATED", "no such key: s3cr3t")
    failed.redact(b"", ["Bearer s3cr3t"])
    assert "s3cr3t" not in str(failed.as_error("Predict"))
    assert "no such key" in str(failed.as_error("Predict"))


def test_the_message_of_a_rejection_is_quoted_on_one_line() -> None:
    error = RpcFailed("INVALID_ARGUMENT", "no\nsuch\x00 field").as_error("Predict")
    assert isinstance(error, WorkerRejected)
    assert (error.status, error.body) == (400, b"no such field")


@given(st.text())
def test_messages_are_cleaned_to_one_short_printable_line(words: str) -> None:
    assert len(cleaned(words)) <= MAX_WORDS
    assert all(c.isprintable() for c in cleaned(words))


@pytest.mark.parametrize(
    ("said", "seconds", "named"),
    [("7000", 7, True), ("99999999", 3600, True), ("-1", 1, False), ("soon", 1, False)],
)
def test_a_full_worker_may_state_when_to_retry(said: str, seconds: float, named: bool) -> None:
    error = RpcFailed("RESOURCE_EXHAUSTED", trailing={PUSHBACK: said}).as_error("Predict")
    assert isinstance(error, WorkerBusy)
    assert (error.retry_after, error.named) == (seconds, named)


def test_a_message_too_large_is_the_fault_of_the_side_that_sent_it() -> None:
    from_server = RpcFailed("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 5)")
    error = from_server.as_error("Predict")
    assert isinstance(error, WorkerRejected)
    assert error.status == 413
    from_client = RpcFailed(
        "RESOURCE_EXHAUSTED", "Stream removed (CLIENT: Received message larger than max (9 vs. 5)"
    )
    assert isinstance(from_client.as_error("Predict"), WorkerFailed)
