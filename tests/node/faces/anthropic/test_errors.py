"""Errors of ours as statuses and types that Anthropic's clients know."""

import orjson
import pytest

from node.faces.anthropic.errors import broken, refused, status_of, type_of
from node.faces.errors import TABLE, WrongParameter, refusal
from router.errors import Looped, NoCapacity, UnknownModel, WorkerRejected
from router.openai.text_parser import TextFailure

KNOWN = {
    "invalid_request_error", "authentication_error", "billing_error", "permission_error", "not_found_error", "conflict_error",
    "request_too_large", "rate_limit_error", "timeout_error", "api_error", "overloaded_error",
}  # fmt: skip
OWN = {400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 417, 429, 431, 500, 504, 529}


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.reason)
def test_every_error_has_a_status_and_a_type_of_anthropics(row):
    assert type_of(row.status) in KNOWN
    assert status_of(row.status) in OWN


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (WrongParameter("x", param="y"), 400, "invalid_request_error"),
        (UnknownModel("none"), 404, "not_found_error"),
        (WorkerRejected(422, b'{"detail":"no"}'), 400, "invalid_request_error"),
        (WorkerRejected(401, b'{"error":{"message":"no"}}'), 401, "authentication_error"),
    ],
)
def test_a_refusal_has_anthropics_shape_and_the_request_id(error, status, kind):
    response = refused(refusal(error), "r1")
    assert response.status == status
    assert response.body["type"] == "error"
    assert response.body["error"]["type"] == kind
    assert response.body["error"]["message"]
    assert response.body["request_id"] == response.headers["request-id"] == "r1"


def test_retry_after_is_kept():
    response = refused(refusal(NoCapacity("llama", retry_after=3)), "r1")
    assert (response.status, response.headers["retry-after"]) == (429, "3")


def test_an_error_that_would_repeat_is_marked_as_not_to_be_retried():
    assert refused(refusal(Looped("round")), "r1").headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (TextFailure("x", "server_error", "answer_broken"), "api_error"),
        (TextFailure("x", "server_error", "nobody_serves"), "overloaded_error"),
        (TextFailure("x", "rate_limit_error", "unheard-of"), "rate_limit_error"),
        (TextFailure("x", "novel", ""), "api_error"),
    ],
)
def test_a_failure_in_a_stream_is_an_error_event(failure, kind):
    name, data, *_ = broken(failure, "r1").split(b"\n")
    assert name == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: "))["error"] == {"type": kind, "message": "x"}
