"""However deep a body or a worker's answer is nested, a face answers or refuses it, also where its translation is deeper."""

import orjson
import pytest

from tests.node.faces.assembly import told

HELLO = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def nested(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(levels):
        schema = {"a": schema}
    return schema


def message(schema):
    return HELLO | {"tools": [{"name": "look", "input_schema": schema}]}


def message_of_a_form(schema):
    return HELLO | {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def response(schema):
    form = {"type": "json_schema", "name": "x", "schema": schema}
    return {"model": "tiny", "input": "hi", "text": {"format": form}}


def inference(schema):
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "options": {"x": schema},
    }


def generation(schema):
    return {"inputs": "hi", "parameters": {"grammar": {"type": "json", "value": schema}}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", message),
        ("/v1/messages", message_of_a_form),
        ("/v1/messages/count_tokens", message),
        ("/v1/responses", response),
        ("/inference", inference),
        ("/tgi/p/tiny/generate", generation),
    ],
)  # fmt: skip
async def test_no_depth_of_nesting_is_a_server_error(served, path, body):
    statuses = set()
    for levels in range(235, 256):
        fields = body(nested(levels))
        try:
            sent = orjson.dumps(fields)
        except orjson.JSONEncodeError:
            break
        headers = {"content-type": "application/json"}
        status, _ = await told(served.http.post(path, data=sent, headers=headers))
        statuses.add(status)
    assert statuses
    assert statuses <= {200, 400, 422}, statuses


DEEP = '{"a":' + "[" * 300 + "]" * 300 + "}"
CALL = """{"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": %s}}]}}]}"""
RANKING = """{"results": [{"index": 0, "relevance_score": 0.5, "x": %s}]}"""


@pytest.mark.parametrize(
    ("path", "asked", "answer"),
    [
        ("/v1/messages", HELLO, CALL),
        ("/v1/responses", {"model": "tiny", "input": "hi"}, CALL),
        ("/tgi/p/tiny/v1/chat/completions", HELLO, CALL),
        ("/inference", HELLO, CALL),
        ("/inference/chat_completion", HELLO, CALL),
        ("/v1/rerank", {"model": "tiny", "query": "q", "documents": ["a"]}, RANKING),
    ],
)
async def test_an_answer_nested_too_deeply_is_a_failure_of_its_worker(
    served, worker, path, asked, answer
):
    worker.fail(answer=(answer % DEEP).encode())
    # Anthropic's clients know no 502, TGI's expect 424.
    async with served.http.post(path, json=asked) as response:
        assert response.status >= 424
        assert "nested too deeply" in await response.text()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/messages", "/inference", "/inference/chat_completion"])
async def test_arguments_of_a_tool_nested_too_deeply_stay_a_text(served, worker, path, stream):
    worker.fail(calls=(("look", DEEP),), finish="tool_calls")
    async with served.http.post(path, json=HELLO | {"stream": stream}) as response:
        assert response.status == 200
        text = await response.text()
    assert text.count("[") > 300
    assert '"error"' not in text
