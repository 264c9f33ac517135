"""Laws of the lines of a batch: an invalid line is refused with a reason, and lines that begin alike have one prefix."""

import orjson
import pytest

from node.provide.batch.lines import (
    MAX_LINE_BYTES,
    BadLine,
    answered,
    failed,
    model_with_cache,
    read,
)
from router.openai.prefixes import MIN_BYTES

CHAT = "/v1/chat/completions"


def raw(**changed):
    body = {"model": "m", "messages": [{"role": "system", "content": "s"}]}
    fields = {"custom_id": "a", "method": "POST", "url": CHAT, "body": body, **changed}
    return orjson.dumps({name: value for name, value in fields.items() if value is not None})


def test_a_request_is_read():
    line = read(3, raw(), CHAT)
    assert (line.number, line.custom_id) == (3, "a")
    assert orjson.loads(line.body)["model"] == "m"


@pytest.mark.parametrize(
    ("line", "code", "custom_id"),
    [
        (b"{", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b" " * (MAX_LINE_BYTES + 1), "line_too_long", None),
        (raw(custom_id=None), "missing_required_parameter", None),
        (raw(custom_id=""), "missing_required_parameter", None),
        (raw(custom_id=1), "missing_required_parameter", None),
        (raw(custom_id="x" * 513), "missing_required_parameter", None),
        (raw(method="GET"), "invalid_url", "a"),
        (raw(url="/v1/embeddings"), "invalid_url", "a"),
        (raw(url="http://10.0.0.1/"), "invalid_url", "a"),
        (raw(body=None), "invalid_request", "a"),
        (raw(body={"messages": []}), "invalid_request", "a"),
        (raw(body={"model": 1}), "invalid_request", "a"),
        (raw(body={"model": "m", "stream": True}), "invalid_request", "a"),
    ],
)
def test_an_invalid_line_is_refused_with_a_reason(line, code, custom_id):
    with pytest.raises(BadLine, match="line 7") as bad:
        read(7, line, CHAT)
    assert (bad.value.code, bad.value.custom_id) == (code, custom_id)


def test_lines_with_a_common_beginning_have_the_same_prefix():
    def prefix(**body):
        return read(1, raw(body={"model": "m", **body}), CHAT).prefix

    system, one, two = ({"role": "system", "content": c} for c in "abc")
    assert prefix(messages=[system, one]) == prefix(messages=[system, two])
    assert prefix(messages=[one]) != prefix(messages=[two])
    assert prefix(prompt="a" * 300 + "b") == prefix(prompt="a" * 300 + "c")
    assert prefix(messages=[]) == prefix()
    assert prefix(input="one") != prefix(input="two")


def test_only_a_line_with_a_long_beginning_names_a_model_whose_cache_should_keep_it():
    def model(path=CHAT, **body):
        return model_with_cache(path, orjson.dumps({"model": "m", **body}))

    long, brief = ({"role": "system", "content": c} for c in ("a" * MIN_BYTES, "a"))
    assert model(messages=[long, brief]) == model("/v1/completions", prompt="a" * MIN_BYTES) == "m"
    assert model(messages=[brief]) == model(messages=[brief, long]) == ""
    assert model("/batch_inference/anything", messages=[long]) == ""


def test_result_rows_have_openais_shape():
    assert orjson.loads(answered("i", "a", 200, "r", {"x": 1})) == {
        "id": "batch_req_i",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r", "body": {"x": 1}},
        "error": None,
    }
    row = orjson.loads(failed("i", None, "c", "why"))
    assert (row["response"], row["error"]) == (None, {"code": "c", "message": "why"})
