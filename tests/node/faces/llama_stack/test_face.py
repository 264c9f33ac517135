"""Clients of Llama Stack at a node whose worker speaks OpenAI's protocol or theirs, at that node and one hop away."""

import aiohttp
import orjson
import pytest

from node.faces.llama_stack import ENDPOINTS
from tests.node.faces.assembly import Pair, told
from tests.workers import llama_stack_worker, tgi_worker
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS)
STREAMED = "".join(WORDS[1:])  # without the word that OpenAI's stub replaces by its role chunk
ASKED = {"model": "tiny", "messages": [{"role": "user", "text": "hi"}]}
ABSENT = [endpoint for endpoint in ENDPOINTS if endpoint != "POST /inference"]


@pytest.fixture(params=["serving", "asked"])
async def http(request, mesh: Pair, worker):
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    return (mesh.one if request.param == "serving" else mesh.two).http


@pytest.fixture
async def stack():
    async with llama_stack_worker.running() as started:
        yield started


@pytest.fixture(params=["serving", "asked"])
async def round_trip(request, mesh: Pair, stack):
    await mesh.one.register(stack, api=stack.url.replace("http:", "llamastack+http:"))
    await mesh.knows(mesh.two, "tiny")
    return (mesh.one if request.param == "serving" else mesh.two).http


async def pieces(call):
    """Return the events of a stream."""
    async with call as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        events = (await response.read()).split(b"\n\n")
    assert events.pop() == b""
    return [orjson.loads(e.removeprefix(b"data: ")) for e in events if not e.startswith(b":")]


def text_of(events):
    return "".join(event.get("text", "") for event in events)


async def test_a_chat_has_candidates(http, worker):
    status, answer = await told(http.post("/inference", json=ASKED))
    [candidate] = answer["candidates"]
    assert (status, answer["model_called"]) == (200, "tiny")
    assert candidate["text"] == SAID
    assert (candidate["finish_reason"], candidate["eot"], candidate["is_complete"]) == (
        "stop",
        True,
        True,
    )
    # This worker reported none.
    assert "usage" not in answer
    sent = orjson.loads(worker.received[-1].body)
    assert sent["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("fields", "headers"),
    [({"stream": True}, {}), ({}, {"accept": "text/event-stream"})],
    ids=["field", "header"],
)
async def test_a_chat_is_streamed_when_the_body_or_accept_header_asks_for_it(http, fields, headers):
    first, *events = await pieces(http.post("/inference", json=ASKED | fields, headers=headers))
    assert first["is_header_complete"]
    assert text_of(events) == STREAMED
    assert [event["is_complete"] for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1]
    assert (last["finish_reason"], last["eot"]) == ("stop", True)


async def test_stream_false_overrides_the_accept_header(http):
    headers = {"accept": "text/event-stream"}
    status, answer = await told(
        http.post("/inference", json=ASKED | {"stream": False}, headers=headers)
    )
    assert (status, len(answer["candidates"])) == (200, 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("finish", "reason", "eot"),
    [("stop", "stop", True), ("max-length", "max-length", False), ("safety", "safety", True)],
)
async def test_a_worker_of_the_same_protocol_keeps_text_reason_usage_and_calls(
    round_trip, stack, stream, finish, reason, eot
):
    stack.fail(finish=finish, tool=b'{"name":"look","arguments":[{"a":1},{"b":2}]}' if eot else b"")
    call = round_trip.post("/inference", json=ASKED | {"stream": stream})
    if stream:
        events = await pieces(call)
        text, last, usage = text_of(events), events[-1], events[-1]["usage"]
    else:
        _, answer = await told(call)
        [last] = answer["candidates"]
        text, usage = last["text"], answer["usage"]
    assert text == SAID
    assert usage == {
        "input_tokens": 5, "output_tokens": len(WORDS), "total_tokens": 5 + len(WORDS),
    }  # fmt: skip
    if eot:
        # An answer in one piece is the worker's own; in a stream a call of a tool is the reason why a text ends.
        arguments = [{"a": 1, "b": 2}] if stream else [{"a": 1}, {"b": 2}]
        assert last["tool_call"] == {"name": "look", "arguments": arguments}
        assert last["finish_reason"] == ("stop" if stream else reason)
    else:
        assert (last["finish_reason"], last["eot"]) == (reason, eot)


async def test_a_worker_of_the_same_protocol_is_passed_on_byte_for_byte(round_trip, stack):
    fields = ASKED | {"options": {"max_tokens": 4, "logprobs": True}, "n_completions": 2}
    message = {"role": "user", "text": "hi", "metadata": {"name": "me", "place": "here"}}
    fields["messages"] = [message]
    async with round_trip.post("/inference", json=fields) as through:
        body = await through.read()
        assert "x-modelvine-dropped-params" not in through.headers
    assert stack.asked == fields
    async with (
        aiohttp.ClientSession() as direct,
        direct.post(f"{stack.url}/inference", json=fields) as itself,
    ):
        assert body == await itself.read()


async def test_fields_outside_the_specification_are_translated(round_trip, stack):
    message = {"role": "user", "content": "hi"}
    status, _ = await told(round_trip.post("/inference", json=ASKED | {"messages": [message]}))
    assert (status, stack.asked["messages"]) == (200, [{"role": "user", "text": "hi"}])


@pytest.mark.parametrize(
    ("fault", "status"),
    [({"candidates": 1}, 400), ({"empty": True}, 502), ({"error_after": 0}, 502)],
    ids=["too few", "none", "error"],
)
async def test_an_invalid_answer_is_not_passed_on(round_trip, stack, fault, status):
    stack.fail(**fault)
    got, _ = await told(round_trip.post("/inference", json=ASKED | {"n_completions": 2}))
    assert got == status


@pytest.mark.parametrize("stream", [False, True])
async def test_several_completions_keep_their_texts_apart(round_trip, stack, stream):
    call = round_trip.post("/inference", json=ASKED | {"n_completions": 2, "stream": stream})
    if stream:
        events = await pieces(call)
        ids = {event["id"] for event in events}
        texts = [text_of(e for e in events if e["id"] == id_) for id_ in sorted(ids)]
        assert sum(event["is_complete"] for event in events) == 2
    else:
        _, answer = await told(call)
        texts = [candidate["text"] for candidate in answer["candidates"]]
    assert texts == [SAID, SAID]
    assert stack.asked["n_completions"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_passed_on_where_the_worker_reports_them(mesh: Pair, stream):
    fields = ASKED | {"options": {"logprobs": True}, "stream": stream}
    async with tgi_worker.running() as tgi:
        await mesh.one.register(tgi, api=tgi.url.replace("http:", "tgi+http:"))
        await mesh.knows(mesh.two, "tiny")
        call = mesh.two.http.post("/inference", json=fields)
        messages = await pieces(call) if stream else (await told(call))[1]["candidates"]
    likely = [number for message in messages for number in message.get("log_probs", ())]
    assert likely == [-0.5] * len(WORDS)
    assert text_of(messages) == SAID
    # TGI's chats do not report tokens.
    assert not any("tokens" in message for message in messages)


async def test_parameters_without_effect_are_named(round_trip):
    fields = ASKED | {"options": {"top_k": 3, "logprobs": True, "max_tokens": 4}, "x": 1}
    async with round_trip.post("/inference", json=fields) as response:
        # A parameter that the worker lacks has OpenAI's name.
        dropped = "options.top_k, x, options.logprobs"
        assert response.headers["x-modelvine-dropped-params"] == dropped


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"model": "tiny"}, 400, "invalid_request"),
        ({"messages": ASKED["messages"]}, 400, "invalid_request"),
        (ASKED | {"model": "huge"}, 404, "model_not_found"),
        (ASKED | {"options": []}, 400, "invalid_request"),
    ],
    ids=["messages", "model", "unknown", "options"],
)
async def test_a_refusal_has_a_status_and_a_code(http, worker, asked, status, code):
    got, answer = await told(http.post("/inference", json=asked))
    assert (got, answer["error"]["code"]) == (status, code)
    assert worker.received == []


async def test_a_stream_that_breaks_off_ends_in_an_error_and_is_not_complete(round_trip, stack):
    stack.fail(die_after=3, delay_between=0.01)
    events = await pieces(round_trip.post("/inference", json=ASKED | {"stream": True}))
    assert events[-1]["error"]["message"]
    assert not [event for event in events if event.get("is_complete")]


async def test_a_worker_that_is_full_is_a_status(round_trip, stack):
    stack.fail(status=429, retry_after="2")
    async with round_trip.post("/inference", json=ASKED | {"stream": True}) as response:
        assert response.status == 429
        assert response.headers["retry-after"]


@pytest.mark.parametrize("endpoint", ABSENT)
async def test_an_endpoint_without_a_provider_is_501(alone, endpoint):
    method, _, path = endpoint.rpartition(" ")
    for verb in [method] if method else ["GET", "POST"]:
        body = {"json": {"a": 1}} if verb == "POST" else {}
        status, answer = await told(alone.http.request(verb, path, **body))
        assert (status, answer["error"]["code"]) == (501, "no_provider")
        assert "modelvine register PROJECT NAME URL --type " in answer["message"]
