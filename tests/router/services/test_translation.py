"""Laws of the translation between the protocols of services: a call is identified by its method and path."""

import orjson
import pytest

from router.errors import BadRequest, WorkerFailed, WorkerUnable
from router.requests import Target
from router.services.calls import CALLS, OPENAI, find
from router.services.translation import TRANSLATED, begin
from router.translate.verbatim import LLAMA_STACK


def target(method, path, protocol=LLAMA_STACK):
    return Target(protocol, method, path)


def test_every_call_is_translated_or_refused_by_its_name():
    listed = {f"{method} {call.path}" for call in CALLS for method in call.methods}
    assert listed >= TRANSLATED
    for call in CALLS:
        for method in call.methods:
            path = call.path.replace("*", "x")
            if f"{method} {call.path}" not in TRANSLATED:
                with pytest.raises(WorkerUnable, match="does not support") as refused:
                    begin(target(method, path, call.protocol), b"")
                assert f"{method} {call.path}" in str(refused.value)


def test_ids_stay_one_path_segment():
    steps = begin(target("GET", "/batch_inference/jobs/status?job_id=a%2F..%2Fb"), b"")
    assert next(steps).path == "/v1/batches/a%2F..%2Fb"
    steps = begin(target("POST", "/v1/fine_tuning/jobs/a%20b/cancel", OPENAI), b"{}")
    assert orjson.loads(next(steps).body) == {"job_id": "a b"}
    assert find("GET", "/v1/batches/a%2F..%2Fb") is not None


@pytest.mark.parametrize("answer", [None, b"", b"<html>", b"[]", b"{}", b'{"id":1}'])
def test_a_body_that_is_no_answer_is_a_failure_of_the_worker(answer):
    steps = begin(target("GET", "/batch_inference/jobs/status?job_id=a"), b"")
    next(steps)
    with pytest.raises(WorkerFailed):
        steps.send(answer)


def test_a_missing_parameter_is_named():
    with pytest.raises(BadRequest, match="job_id"):
        next(begin(target("GET", "/batch_inference/jobs/status"), b""))
