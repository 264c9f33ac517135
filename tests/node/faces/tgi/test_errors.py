"""Errors of ours in TGI's form."""

import orjson
import pytest

from node.faces.errors import BodyTooLarge, Unparseable, refusal
from node.faces.tgi import encoder
from router.errors import (
    BadRequest,
    NobodyServes,
    RouterError,
    TooManyParts,
    UnknownModel,
    WorkerBusy,
    WorkerFailed,
    WorkerRejected,
    WorkerTimeout,
    WorkerUnable,
    WorkerUnreachable,
)
from router.openai.text_parser import TextFailure


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadRequest("no"), 422, "validation"),
        (TooManyParts("too long"), 422, "validation"),
        (Unparseable("no"), 422, "validation"),
        (BodyTooLarge(5), 422, "validation"),
        (UnknownModel("m"), 422, "validation"),
        (WorkerUnable("no word", param="stop"), 422, "validation"),
        (WorkerRejected(400, b"no"), 422, "validation"),
        (WorkerBusy("full"), 429, "overloaded"),
        (NobodyServes("away"), 429, "overloaded"),
        (WorkerUnreachable("gone"), 429, "overloaded"),
        (WorkerFailed("oh"), 424, "generation"),
        (WorkerTimeout("first byte", 5), 424, "generation"),
        (RouterError("oh"), 500, "incomplete_generation"),
        (ValueError("a defect"), 500, "incomplete_generation"),
    ],
)
def test_an_error_before_the_first_byte_has_tgis_form(error, status, kind):
    response = encoder.refuse(refusal(error))
    assert (response.status, response.body["error_type"]) == (status, kind)
    assert isinstance(response.body["error"], str)
    assert set(response.body) == {"error", "error_type"}


def test_a_busy_worker_gives_retry_after():
    assert encoder.refuse(refusal(WorkerBusy("full"))).headers == {"retry-after": "1"}


def test_tgis_own_prefix_is_not_repeated():
    worker = WorkerRejected(422, b'{"error":"Input validation error: `inputs` is too long"}')
    message = encoder.refuse(refusal(worker)).body["error"]
    assert message == "Input validation error: `inputs` is too long"


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (TextFailure("cut", "server_error", "answer_broken"), "incomplete_generation"),
        (TextFailure("full", "rate_limit_error", "worker_busy"), "overloaded"),
        (TextFailure("no", "invalid_request_error", "x"), "validation"),
        (TextFailure("oh", "", ""), "generation"),
    ],
)
def test_a_failure_in_a_stream_is_an_event_with_tgis_error_type(failure, kind):
    event = encoder.event(failure)
    assert event.startswith(b"data:")
    assert event.endswith(b"\n\n")
    assert orjson.loads(event.removeprefix(b"data:"))["error_type"] == kind
