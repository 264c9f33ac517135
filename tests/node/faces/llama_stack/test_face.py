"""Clients of Llama Stack at a node whose worker speaks OpenAI's protocol or theirs, at that node and one hop away."""

import aiohttp
import orjson
import pytest

from node.faces.llama_stack import ENDPOINTS
from tests.node.faces.assembly import Pair, told
from tests.workers import llama_stack_worker, tgi_worker
from tests.workers.openai_worker import WORDS

SAID = "".join(WORDS)
STREAMED = "".join(WORDS[1:])  # what the stub of OpenAI's leaves to its role chunk
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
    # This worker told none.
    assert "usage" not in answer
    sent = orjson.loads(worker.received[-1].body)
    assert sent["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("fields", "headers"),
    [({"stream": True}, {}), ({}, {"accept": "text/event-stream"})],
    ids=["field", "header"],
)
async def test_a_chat_comes_in_pieces_where_it_is_asked_for(http, fields, headers):
    first, *events = await pieces(http.post("/inference", json=ASKED | fields, headers=headers))
    assert first["is_header_complete"]
    assert text_of(events) == STREAMED
    assert [event["is_complete"] for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1]
    assert (last["finish_reason"], last["eot"]) == ("stop", True)


async def test_who_says_no_to_a_stream_gets_none(http):
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
async def test_its_own_protocol_comes_through_on_both_sides(
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
        # What comes in one piece is as the worker said it; in a stream a call of a tool is why a text ends.
        arguments = [{"a": 1, "b": 2}] if stream else [{"a": 1}, {"b": 2}]
        assert last["tool_call"] == {"name": "look", "arguments": arguments}
        assert last["finish_reason"] == ("stop" if stream else reason)
    else:
        assert (last["finish_reason"], last["eot"]) == (reason, eot)


async def test_a_worker_of_its_own_protocol_is_heard_as_it_speaks(round_trip, stack):
    asked = ASKED | {"options": {"max_tokens": 4, "logprobs": True}, "n_completions": 2}
    message = {"role": "user", "text": "hi", "metadata": {"name": "me", "place": "here"}}
    asked["messages"] = [message]
    async with round_trip.post("/inference", json=asked) as through:
        said = await through.read()
        assert "x-modelvine-dropped-params" not in through.headers
    assert stack.asked == asked
    async with (
        aiohttp.ClientSession() as direct,
        direct.post(f"{stack.url}/inference", json=asked) as itself,
    ):
        assert said == await itself.read()


async def test_words_that_the_specification_lacks_are_translated(round_trip, stack):
    message = {"role": "user", "content": "hi"}
    status, _ = await told(round_trip.post("/inference", json=ASKED | {"messages": [message]}))
    assert (status, stack.asked["messages"]) == (200, [{"role": "user", "text": "hi"}])


@pytest.mark.parametrize(
    ("fault", "status"),
    [({"candidates": 1}, 400), ({"empty": True}, 502), ({"error_after": 0}, 502)],
    ids=["too few", "none", "error"],
)
async def test_what_is_no_answer_is_none_as_it_is(round_trip, stack, fault, status):
    stack.fail(**fault)
    got, _ = await told(round_trip.post("/inference", json=ASKED | {"n_completions": 2}))
    assert got == status


@pytest.mark.parametrize("stream", [False, True])
async def test_several_completions_are_told_apart(round_trip, stack, stream):
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
async def test_how_likely_tokens_were_is_told_where_the_worker_tells_it(mesh: Pair, stream):
    asked = ASKED | {"options": {"logprobs": True}, "stream": stream}
    async with tgi_worker.running() as tgi:
        await mesh.one.register(tgi, api=tgi.url.replace("http:", "tgi+http:"))
        await mesh.knows(mesh.two, "tiny")
        call = mesh.two.http.post("/inference", json=asked)
        said = await pieces(call) if stream else (await told(call))[1]["candidates"]
    likely = [number for message in said for number in message.get("log_probs", ())]
    assert likely == [-0.5] * len(WORDS)
    assert text_of(said) == SAID
    # TGI's chats do not tell them.
    assert not any("tokens" in message for message in said)


async def test_what_has_no_effect_is_named(round_trip):
    asked = ASKED | {"options": {"top_k": 3, "logprobs": True, "max_tokens": 4}, "x": 1}
    async with round_trip.post("/inference", json=asked) as response:
        # What the worker has no word for is named as OpenAI has it.
        named = "options.top_k, x, options.logprobs"
        assert response.headers["x-modelvine-dropped-params"] == named


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
async def test_a_refusal_says_why(http, worker, asked, status, code):
    got, answer = await told(http.post("/inference", json=asked))
    assert (got, answer["error"]["code"]) == (status, code)
    assert worker.received == []


async def test_a_stream_that_breaks_off_says_so_and_has_no_last_piece(round_trip, stack):
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
async def test_what_nobody_provides_says_so(alone, endpoint):
    method, _, path = endpoint.rpartition(" ")
    for asked in [method] if method else ["GET", "POST"]:
        body = {"json": {"a": 1}} if asked == "POST" else {}
        status, answer = await told(alone.http.request(asked, path, **body))
        assert (status, answer["error"]["code"]) == (501, "no_provider")
        assert "modelvine register PROJECT NAME URL --type " in answer["message"]
