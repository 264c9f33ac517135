"""Laws of translating Llama Stack's terms to OpenAI's: states, times and lines; anything unsupported is named."""

import orjson
import pytest

from router.errors import BadRequest, WorkerFailed, WorkerUnable
from router.services import llama_stack_values as values


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("validating", "validating"),
        ("in_progress", "running"),
        ("finalizing", "running"),
        ("completed", "completed"),
        ("cancelling", "failed"),
        ("expired", "failed"),
        ("?", "failed"),
    ],
)
def test_each_state_of_a_batch_is_translated(theirs, ours):
    job = values.batch_job({"id": "b", "status": theirs, "created_at": 0})
    assert (job["status"], job["created"]) == (ours, "1970-01-01T00:00:00Z")
    assert ("metadata" in job) == (ours == "failed")


def test_every_state_of_fine_tuning_survives_translation_and_back():
    for state in ("validating_files", "queued", "running", "failed", "succeeded", "cancelled"):
        job = values.tuning_job({"id": "j", "status": state, "created_at": 1_700_000_000})
        back = values.openai_job(job, {})
        assert (back["status"], back["created_at"]) == (state, 1_700_000_000)


def test_an_invalid_time_is_left_out():
    for when in (None, -1, 2**40, "x", 1.5):
        assert "created" not in values.batch_job(
            {"id": "b", "status": "completed", "created_at": when}
        )
    assert values.openai_job({"job_id": "j", "created": "soon"}, {})["created_at"] == 0


def test_the_bytes_of_a_file_are_text_or_base64():
    for value in ('{"messages":[]}', '[{"text":"a"}]', "W10="):
        source = values.path({"f": {"value": value, "type": "raw_bytes"}}, "f")
        assert values.raw_bytes(source, "f")
    with pytest.raises(BadRequest):
        values.raw_bytes({"value": "not base64!", "type": "raw_bytes"}, "f")
    for wrong in (
        None,
        "x",
        {"value": "x"},
        {"value": 1, "type": "uri"},
        {"value": "x", "type": "ftp"},
    ):
        with pytest.raises(BadRequest):
            values.path({"f": wrong}, "f")


@pytest.mark.parametrize(
    "place", ["/etc/passwd", "file:///etc/passwd", "http://10.0.0.1/x", "/v1/files/a/../b/content"]
)
def test_a_service_reads_no_files_but_its_own(place):
    for kind in ("uri", "filepath"):
        with pytest.raises(WorkerUnable):
            values.file_of({"value": place, "type": kind})
    assert values.file_of({"value": "/v1/files/a/content", "type": "uri"}) == "a"
    assert values.file_of({"value": "http://n:1/v1/files/a/content", "type": "uri"}) == "a"


def test_too_many_lines_are_refused():
    with pytest.raises(BadRequest, match="50,000"):
        values.batch_lines(b"[]\n" * 50_001, {"model": "m"})


def test_a_log_is_oldest_first_without_invalid_events():
    events = [{"message": "b", "created_at": 2}, {"message": 1}, {"message": "a", "created_at": 1}]
    rows = [
        orjson.loads(row)["logs"][0]["message"]
        for row in values.logs({"data": events}).splitlines()
    ]
    assert rows == ["a", "b"]
    assert values.logs({"data": 1}) == b""


@pytest.mark.parametrize(
    ("data", "score"),
    [
        ([{"score": 0.25}], 0.25),
        ([{"probs": [0.25, 0.75]}], 0.75),
        ([[{"label": "LABEL_10", "score": 0.3}, {"label": "LABEL_9", "score": 0.7}]], 0.3),
    ],
)
def test_a_score_is_given_or_is_the_probability_of_the_last_class(data, score):
    assert values.score({"data": data}) == {"id": "score", "score": score}


NAMED = [{"label": "good", "score": 0.7}, {"label": "bad", "score": 0.3}]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"data": []},
        {"data": [{"score": "1"}]},
        {"data": [{"probs": []}]},
        {"data": [[]]},
        {"data": [NAMED]},
    ],
)
def test_an_answer_without_a_score_is_a_failure(said):
    with pytest.raises(WorkerFailed):
        values.score(said)
