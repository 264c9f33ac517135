"""However deep a body is nested, a face answers or refuses it, also where its translation is deeper than the body."""

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
        asked = body(nested(levels))
        try:
            sent = orjson.dumps(asked)
        except orjson.JSONEncodeError:
            break
        headers = {"content-type": "application/json"}
        status, _ = await told(served.http.post(path, data=sent, headers=headers))
        statuses.add(status)
    assert statuses
    assert statuses <= {200, 400, 422}, statuses
