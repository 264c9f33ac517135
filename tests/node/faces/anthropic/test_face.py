"""Anthropic's Messages API at the worker's node and one hop away, whatever protocol the worker speaks."""

import asyncio
import random

import orjson
import pytest

from node.faces.anthropic import COUNT, ENDPOINTS, MESSAGES
from node.faces.anthropic.token_count import estimated_tokens, texts_of, tokens_beside_text
from tests.node.faces.anthropic.test_encoder import events_of, put_together
from tests.node.faces.anthropic.test_request_mapping import FIELDS, KEYS, TOOL
from tests.node.faces.anthropic.test_request_mapping import WORDS as LIKELY
from tests.node.faces.assembly import told, until
from tests.workers import tgi_worker
from tests.workers.openai_worker import WORDS, running

HELLO = [{"role": "user", "content": "hi"}]
ASKED = {"model": "tiny", "max_tokens": 64, "messages": HELLO}
SAID = "".join(WORDS)
STREAMED = "".join(WORDS[1:])  # without the word that the stub replaces by its role chunk
CANARY = "canary-key-7f21"
HEADERS = {"x-api-key": CANARY, "anthropic-version": "2023-06-01"}
LOOK = ("weather", '{"city": "Paris"}')


@pytest.fixture(params=["serving", "asked"])
async def http(request, mesh, worker):
    """Return a session at the worker's node, or at another one."""
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    return (mesh.one if request.param == "serving" else mesh.two).http


@pytest.fixture
async def tgi(mesh):
    """Yield a TGI server behind the first node, asked by way of the second: all is translated twice."""
    async with tgi_worker.running() as worker:
        await mesh.one.register(worker, api=worker.url.replace("http:", "tgi+http:"))
        await mesh.knows(mesh.two, "tiny")
        yield worker


async def asked(http, path=MESSAGES, **fields):
    return await told(http.post(path, json=ASKED | fields, headers=HEADERS))


async def streamed(http, **fields):
    async with http.post(MESSAGES, json=ASKED | {"stream": True} | fields) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        assert response.headers["request-id"] == response.headers["x-request-id"]
        return events_of(await response.read())


def sent(worker) -> dict:
    return orjson.loads(worker.received[-1].body)


async def test_a_message_is_answered(http, worker):
    status, payload = await asked(http, system="Be brief.", top_k=5)
    assert status == 200, payload
    assert payload.pop("id").startswith("msg_")
    assert payload == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": SAID}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7, "estimated": True},
    }
    assert sent(worker)["messages"] == [{"role": "system", "content": "Be brief."}, *HELLO]
    assert sent(worker)["top_k"] == 5


async def test_a_stream_has_anthropics_events(http, worker):
    events = await streamed(http)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * (len(WORDS) - 1),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    message = put_together(events)
    assert message["content"] == [{"type": "text", "text": STREAMED}]
    assert message["usage"] == {"input_tokens": 5, "output_tokens": 6}
    assert sent(worker)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_are_called(http, worker, stream):
    worker.fail(calls=(LOOK, LOOK), finish="tool_calls")
    if stream:
        message = put_together(await streamed(http, tools=[TOOL]))
    else:
        _, message = await asked(http, tools=[TOOL])
    assert message["stop_reason"] == "tool_use"
    assert message["content"] == [
        {"type": "tool_use", "id": id_, "name": "weather", "input": {"city": "Paris"}}
        for id_ in ("call_0", "call_1")
    ]
    assert sent(worker)["tools"][0]["function"]["name"] == "weather"


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_comes_before_the_text(http, worker, stream):
    worker.fail(thought="Hm.", finish="stop")
    fields = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    message = (
        put_together(await streamed(http, **fields)) if stream else (await asked(http, **fields))[1]
    )
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["content"][0]["thinking"] == "Hm."


async def test_parameters_without_effect_are_named(http):
    fields = ASKED | {"thinking": {"type": "enabled", "budget_tokens": 1024}, "novel": 1}
    async with http.post(MESSAGES, json=fields) as response:
        dropped = response.headers["x-modelvine-dropped-params"]
    assert dropped == "novel, thinking.budget_tokens"


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"model": "none"}, 404, "not_found_error", "none"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": "hi"}, 400, "invalid_request_error", "messages"),
        ({"container": "c"}, 400, "invalid_request_error", "container"),
    ],
)
async def test_wrong_requests_are_refused_in_anthropics_shape(
    http, worker, fields, status, kind, words
):
    body = orjson.dumps(ASKED | fields)
    async with http.post(
        MESSAGES, data=body, headers={"content-type": "application/json"}
    ) as response:
        payload = await response.json()
        assert response.status == status
        assert response.headers["request-id"] == payload["request_id"]
    assert (payload["type"], payload["error"]["type"]) == ("error", kind)
    assert words in payload["error"]["message"]
    assert worker.received == []


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"[" * 2000, "application/json", 400),
    ],
)
async def test_invalid_bodies_are_refused_in_anthropics_shape(http, body, content_type, status):
    for path in (MESSAGES, COUNT):
        async with http.post(path, data=body, headers={"content-type": content_type}) as response:
            assert (response.status, (await response.json())["type"]) == (status, "error")


@pytest.mark.parametrize(
    ("faults", "status", "kind"),
    [
        ({"status": 400}, 400, "invalid_request_error"),
        ({"status": 429, "retry_after": "7"}, 429, "rate_limit_error"),
        ({"status": 500}, 500, "api_error"),
        ({"garbage": True}, 500, "api_error"),
        ({"die_before_headers": True}, 500, "api_error"),
    ],
)
async def test_failures_of_the_worker_have_anthropics_types(http, worker, faults, status, kind):
    worker.fail(**faults)
    async with http.post(MESSAGES, json=ASKED) as response:
        payload = await response.json()
        assert (response.status, payload["error"]["type"]) == (status, kind)
        assert ("retry-after" in response.headers) == (status == 429)


async def test_an_unreachable_worker_is_an_overload(alone):
    row = {"project": "p", "model": "tiny", "api": "http://127.0.0.1:9"}
    async with alone.http.post("/api/v0/ai/model/register", json=row) as response:
        assert response.status == 200
    async with alone.http.post(MESSAGES, json=ASKED) as response:
        payload = await response.json()
        assert (response.status, payload["error"]["type"]) == (529, "overloaded_error")
        assert int(response.headers["retry-after"]) > 0


async def test_a_stream_that_breaks_off_ends_in_an_error_event(http, worker):
    worker.fail(die_after=3)
    events = await streamed(http)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "error",
    ]
    assert events[-1]["error"]["type"] == "api_error"


async def test_a_stream_without_a_finish_reason_and_done_is_an_error(http, worker):
    worker.fail(no_done=True)
    assert (await streamed(http))[-1]["type"] == "error"
    worker.fail(no_done=True, finish="stop")
    assert (await streamed(http))[-1]["type"] == "message_stop"


async def test_a_caller_that_leaves_cancels_the_request_at_the_worker(http, worker):
    worker.fail(delay_between=60)
    async with http.post(MESSAGES, json=ASKED | {"stream": True}) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    await until(lambda: worker.hung_up == 1)


async def test_the_callers_key_reaches_no_worker_log_or_metric(http, worker, caplog):
    caplog.set_level("DEBUG")
    assert (await asked(http))[0] == 200
    assert (await asked(http, path=COUNT))[0] == 200
    assert (await asked(http, model="none"))[0] == 404
    for received in worker.received:
        assert CANARY not in str(received.headers) + received.body.decode()
    assert CANARY not in caplog.text
    async with http.get("/metrics") as response:
        assert CANARY not in await response.text()


class TestOverTgi:
    async def test_a_message_over_tgi_is_answered(self, mesh, tgi):
        status, payload = await asked(mesh.two.http, top_k=3)
        assert status == 200, payload
        assert payload["content"] == [{"type": "text", "text": SAID}]
        assert payload["stop_reason"] == "end_turn"
        assert payload["usage"]["input_tokens"] == 5

    async def test_a_stream_over_tgi_has_the_whole_text(self, mesh, tgi):
        message = put_together(await streamed(mesh.two.http))
        assert message["content"] == [{"type": "text", "text": SAID}]

    async def test_a_stop_sequence_is_named(self, mesh, tgi):
        _, payload = await asked(mesh.two.http, stop_sequences=["you"])
        assert payload["content"][0]["text"] == SAID[: SAID.index("you")]
        assert (payload["stop_reason"], payload["stop_sequence"]) == ("stop_sequence", "you")

    async def test_a_tool_is_called_over_tgi(self, mesh, tgi):
        tgi.fail(tool=b'{"name":"weather","arguments":{"city":"Paris"}}')
        for stream in (False, True):
            fields = {"tools": [TOOL], "tool_choice": {"type": "any"}}
            if stream:
                message = put_together(await streamed(mesh.two.http, **fields))
            else:
                _, message = await asked(mesh.two.http, **fields)
            (call,) = message["content"]
            assert (call["name"], call["input"]) == ("weather", {"city": "Paris"})
            assert message["stop_reason"] == "tool_use"

    async def test_parameters_that_face_and_worker_drop_are_named(self, mesh, tgi):
        fields = ASKED | {"novel": 1, "top_k": 3}
        async with mesh.two.http.post(MESSAGES, json=fields) as response:
            assert response.headers["x-modelvine-dropped-params"] == "novel, top_k"

    async def test_messages_that_tgi_cannot_express_are_refused(self, mesh, tgi):
        use = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "a", "content": "15"}
        turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        status, payload = await asked(mesh.two.http, messages=[*HELLO, *turns])
        assert (status, payload["error"]["type"]) == (400, "invalid_request_error")

    async def test_a_stream_over_tgi_that_breaks_off_ends_in_an_error_event(self, mesh, tgi):
        tgi.fail(die_after=3)
        assert (await streamed(mesh.two.http))[-1]["type"] == "error"


class TestCounting:
    async def test_tokens_are_counted_by_the_worker(self, http, worker):
        worker.fail(answer=b'{"tokens":[1,2,3]}')
        status, payload = await asked(http, path=COUNT, max_tokens=None, tools=[TOOL])
        assert (status, payload) == (200, {"input_tokens": 3 + 4})
        assert (worker.received[-1].path, "weather" in sent(worker)["content"]) == (
            "/tokenize",
            True,
        )

    @pytest.mark.parametrize(
        "faults", [{"answer": b'{"tokens":9}'}, {"status": 404}, {"status": 500}, {"garbage": True}]
    )
    async def test_tokens_are_estimated_where_the_worker_cannot_count_them(
        self, http, worker, faults
    ):
        worker.fail(**faults)
        status, payload = await asked(http, path=COUNT, max_tokens=None)
        assert (status, payload) == (200, {"input_tokens": 5, "estimated": True})

    async def test_an_unknown_model_is_not_found(self, http):
        status, payload = await asked(http, path=COUNT, model="none")
        assert (status, payload["error"]["type"]) == (404, "not_found_error")

    async def test_counting_does_not_wait_for_a_slot(self, alone, worker):
        await alone.register(worker, capacity=1)
        worker.fail(delay_between=60)
        async with asyncio.timeout(5):
            async with alone.http.post(MESSAGES, json=ASKED | {"stream": True}) as response:
                await response.content.readuntil(b"\n\n")
                assert (await asked(alone.http, path=COUNT))[1]["estimated"]

    def test_texts_calls_and_tools_are_counted_and_images_estimated(self):
        image = {"type": "image_url", "image_url": {"url": "data:"}}
        fields = {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "abcd"}, image]},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]},
            ],
            "tools": [{"a": 1}],
        }
        assert list(texts_of(fields)) == ["abcd", '[{"id":"x"}]', '[{"a":1}]']
        assert (tokens_beside_text(fields), estimated_tokens(fields)) == (1_008, 1_015)


def test_the_endpoints_are_listed():
    assert {f"POST {MESSAGES}", f"POST {COUNT}"} <= set(ENDPOINTS)


def hostile(rng: random.Random, depth: int = 0) -> object:
    """Make up a value that looks a little like what is asked."""
    match rng.randrange(7 if depth < 4 else 4):
        case 0:
            return rng.choice([None, True, -1, 0, 2**63 - 1, 0.5, 1e300, "", "\x00", "é" * 9])
        case 1 | 2 | 3:
            return rng.choice(LIKELY)
        case 4:
            return [hostile(rng, depth + 1) for _ in range(rng.randrange(3))]
    keys = rng.sample(KEYS, rng.randrange(1, 5))
    return {key: hostile(rng, depth + 1) for key in keys}


async def test_no_body_is_a_server_error(served):
    """Random bodies by seed, each in a client's form, are answered or refused."""
    for seed in range(200):
        rng = random.Random(seed)
        fields = ASKED | {name: hostile(rng) for name in rng.sample(FIELDS, 2)}
        for path in (MESSAGES, COUNT):
            status, payload = await told(served.http.post(path, json=fields))
            assert status in (200, 400, 404), (fields, payload)
            assert status == 200 or payload["type"] == "error"


async def test_a_stream_that_another_worker_continues_is_one_message(alone, worker):
    async with running() as other:
        await alone.register(worker)
        await alone.register(other, cid="other")
        worker.fail(die_after=3)
        for _ in range(20):
            headers = {"x-modelvine-continue": "1"}
            fields = ASKED | {"stream": True}
            async with alone.http.post(MESSAGES, json=fields, headers=headers) as response:
                message = put_together(events_of(await response.read()))
            assert message["content"] == [{"type": "text", "text": STREAMED}]
    assert worker.received
