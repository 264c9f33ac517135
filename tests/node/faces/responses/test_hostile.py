"""Hostile JSON at the Responses API: answered, or refused with an error that names what is wrong; never a server error."""

import random
from functools import partial

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.faces.responses.request_mapping import SAME_FIELDS, read
from router.errors import BadRequest, WorkerUnable

NAMES = [
    "model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning", "max_output_tokens",
    "temperature", "top_p", "top_logprobs", "stream", "stream_options", "store", "metadata", "include", "truncation",
    "background", "service_tier", "user", "prompt_cache_key", "previous_response_id", "messages",
]  # fmt: skip
INNER = [
    "type", "role", "content", "text", "name", "call_id", "arguments", "output", "image_url", "file_id", "input_audio", "data",
    "format", "schema", "strict", "effort", "mode", "tools", "function", "refusal", "detail", "id",
]  # fmt: skip
WORDS = [
    "message", "function_call", "function_call_output", "reasoning", "item_reference", "input_text", "output_text", "input_image",
    "input_audio", "input_file", "user", "assistant", "system", "developer", "function", "allowed_tools", "json_schema",
    "json_object", "auto", "required", "web_search", "c1", "",
]  # fmt: skip

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 2**40), st.floats(allow_nan=False),
    st.sampled_from(WORDS), st.text(max_size=5),
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(INNER), inner, max_size=5),
    ),
    max_leaves=20,
)
bodies = st.dictionaries(st.sampled_from([*NAMES, *sorted(SAME_FIELDS)[:3]]), values, max_size=6)
likely = st.builds(
    lambda body, given: {"model": "tiny", "input": given, **body},
    bodies,
    st.lists(st.dictionaries(st.sampled_from(INNER), values, max_size=5), max_size=4) | values,
)


def outcome(fields):
    """Return what `read` makes of a request, or the status and the field of its refusal."""
    try:
        return read(fields)
    except BadRequest as wrong:
        return wrong.status, wrong.param
    except WorkerUnable as unable:
        return 400, unable.param


@given(likely)
def test_a_request_is_read_and_serializable_or_refused_by_field(fields):
    match outcome(fields):
        case (status, param):
            assert (status, bool(param)) == (400, True)
        case request:
            assert orjson.loads(orjson.dumps(request.chat))["messages"]
            assert orjson.dumps(request.repeats)


BODIES = [
    b"", b"null", b"[]", b"7", b'"x"', b"{", b"{}", b'{"model":"tiny"}', b'{"input":"hi"}', b'{"model":7,"input":"hi"}',
    b'{"model":"tiny","input":' + b"[" * 300 + b"]" * 300 + b"}", b'{"model":"tiny","input":"\xff"}',
    b'{"model":"tiny","input":"hi","temperature":1e999}', b'{"model":"tiny","input":"\\ud800"}',
    b'{"model":"tiny","input":"hi","metadata":{"a":{"b":1}}}',
    b'{"model":"' + b"m" * 600 + b'","input":"hi"}',
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:40].decode(errors="replace"))
async def test_invalid_bodies_are_refused_over_http(served, worker, body):
    post = partial(served.http.post, headers={"Content-Type": "application/json"})
    async with post("/v1/responses", data=body) as response:
        payload = await response.json()
        assert 400 <= response.status < 500
        assert payload["error"]["message"]
    assert worker.received == []


def nested(levels):
    return b'{"a":' * levels + b"{}" + b"}" * levels


@pytest.mark.parametrize("stream", [b"true", b"false"])
@pytest.mark.parametrize(
    "field",
    [
        b'"text":{"format":{"type":"json_schema","name":"x","schema":%b}}',
        b'"tools":[{"type":"function","name":"x","parameters":%b}]',
        b'"tools":[{"type":"function","name":"x"}],"tool_choice":{"type":"function","name":"x","b":%b}',
    ],
    ids=["format", "tools", "tool_choice"],
)
async def test_deep_nesting_is_answered_or_refused(served, field, stream):
    statuses = set()
    for levels in range(244, 256):
        body = b'{"model":"tiny","input":"hi","stream":%b,%b}' % (stream, field % nested(levels))
        headers = {"Content-Type": "application/json"}
        async with served.http.post("/v1/responses", data=body, headers=headers) as response:
            text = await response.text()
            assert "internal_error" not in text
            statuses.add(response.status)
    assert statuses == {200, 400}


def anything(rng, depth=0):
    """Return a random value of any shape, most often of words with a meaning in the API."""
    kind = rng.randrange(8 if depth < 4 else 4)
    match kind:
        case 0 | 1:
            return rng.choice(WORDS)
        case 2:
            return rng.choice([None, True, False, 0, -1, 1.5, 2**40])
        case 3:
            return rng.choice(["{}", "\x00", "é\U0001f347", "x" * 300])
        case 4 | 5:
            return [anything(rng, depth + 1) for _ in range(rng.randrange(3))]
    keys = rng.sample(INNER, rng.randrange(1, 5))
    return {key: anything(rng, depth + 1) for key in keys}


async def test_no_body_is_a_server_error(served, worker):
    statuses = set()
    for seed in range(300):
        rng = random.Random(seed)
        names = rng.sample([*NAMES[3:], *sorted(SAME_FIELDS)], 2)
        items = "hi" if seed % 3 else anything(rng)
        fields = {"input": items, **{name: anything(rng) for name in names}, "model": "tiny"}
        worker.fail(calls=(("x", "{}"),) if seed % 2 else (), thought="h" if seed % 5 else "")
        async with served.http.post("/v1/responses", json=fields) as response:
            statuses.add(response.status)
            assert "internal_error" not in await response.text(), fields
    # 404 is for a `project` that does not exist.
    assert statuses == {200, 400, 404}


@pytest.mark.parametrize("content_type", ["text/plain", "multipart/form-data; boundary=x"])
async def test_only_a_json_content_type_is_accepted(served, content_type):
    headers = {"Content-Type": content_type}
    async with served.http.post("/v1/responses", data=b"{}", headers=headers) as response:
        assert response.status == 415


async def test_other_methods_and_stored_responses_are_refused(served):
    async with served.http.get("/v1/responses") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
    async with served.http.get("/v1/responses/resp_1?include[]=x") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "unknown_path"
