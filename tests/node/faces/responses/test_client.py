"""OpenAI's own client at the Responses API of a node: text, streams, tools, schemas, images, and failures."""

import asyncio

import openai
import orjson
import pytest
from pydantic import BaseModel

from tests.node.faces.assembly import Pair, openai_at, until
from tests.workers import tgi_worker
from tests.workers.openai_worker import WORDS, running

SAID = "".join(WORDS)
STREAMED = "".join(WORDS[1:])  # without the word that the stub replaces by its role chunk
LOOK = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    "strict": False,
}
CALLED = ("look", '{"at":"vine"}')


class Grape(BaseModel):
    colour: str
    seeds: int


@pytest.fixture(params=["serving", "asked"])
def asked(request, mesh: Pair):
    """Return the node that is asked: the worker's own, or another one."""
    return mesh.one if request.param == "serving" else mesh.two


@pytest.fixture
async def ai(asked, mesh, worker):
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    async with openai_at(asked) as ai:
        yield ai


def chat_of(worker):
    return orjson.loads(worker.received[-1].body)


async def test_logprobs_are_returned_where_they_are_included(asked, mesh):
    options = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with tgi_worker.running() as tgi, openai_at(asked) as ai:
        await mesh.offers("serving", tgi, api=tgi.url.replace("http:", "tgi+http:"))
        answer = await ai.responses.create(model="tiny", input="hi", **options)
        stream = await ai.responses.create(model="tiny", input="hi", stream=True, **options)
        events = [event async for event in stream]
    [part] = answer.output[0].content
    assert [token.token for token in part.logprobs] == list(WORDS)
    assert [top.token for top in part.logprobs[0].top_logprobs] == [WORDS[0], "other0"]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [token.token for event in deltas for token in event.logprobs] == list(WORDS)
    assert events[-1].response.output[0].content[0].logprobs == part.logprobs
    assert answer.top_logprobs == 2


async def test_a_text_is_answered_with_all_fields_of_a_response(ai, worker):
    answer = await ai.responses.create(
        model="tiny", input="hi", instructions="Be brief.", max_output_tokens=50, temperature=0.5
    )
    assert (answer.status, answer.output_text, answer.model) == ("completed", SAID, "tiny")
    assert answer.id.startswith("resp_")
    assert answer.created_at > 1_700_000_000
    [message] = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert (answer.instructions, answer.max_output_tokens) == ("Be brief.", 50)
    assert (answer.error, answer.incomplete_details, answer.tools) == (None, None, [])
    assert answer.model_dump()["store"] is False
    assert chat_of(worker) == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
        ],
        "max_tokens": 50,
        "temperature": 0.5,
    }


async def test_the_prefix_v1_openai_v1_serves_it_too(asked, ai):
    async with openai_at(asked, "/v1/openai/v1") as other:
        assert (await other.responses.create(model="tiny", input="hi")).output_text == SAID


async def test_usage_is_returned(ai, worker):
    worker.fail(finish="stop")
    usage = (await ai.responses.create(model="tiny", input="hi")).usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (5, 6, 11)
    assert usage.output_tokens_details.reasoning_tokens == 0


async def test_a_stream_has_numbered_events_and_ends_with_the_response(ai):
    stream = await ai.responses.create(model="tiny", input="hi", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = ["response.output_text.delta"] * (len(WORDS) - 1)
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[0].response.status == "in_progress"
    last = events[-1].response
    assert (last.status, last.output_text, last.usage.total_tokens) == ("completed", STREAMED, 11)
    assert last.id == events[0].response.id


async def test_the_clients_stream_helper_assembles_the_response(ai):
    async with ai.responses.stream(model="tiny", input="hi") as stream:
        text = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(text) == final.output_text == STREAMED


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "details"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_an_answer_that_was_cut_is_incomplete(ai, worker, stream, reason, details):
    worker.fail(finish=reason)
    answer = await ai.responses.create(model="tiny", input="hi", stream=stream)
    if stream:
        *_, last = [event async for event in answer]
        assert last.type == "response.incomplete"
        answer = last.response
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", details)
    assert answer.output_text == (STREAMED if stream else SAID)
    assert answer.output[0].status == "incomplete"


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_an_item_of_its_own(ai, worker, stream):
    worker.fail(thought="hm")
    answer = await ai.responses.create(model="tiny", input="hi", stream=stream)
    if stream:
        events = [event async for event in answer]
        thought = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
        assert thought == ["h", "m"]
        answer = events[-1].response
    thoughts, message = answer.output
    assert (thoughts.type, thoughts.summary) == ("reasoning", [])
    assert thoughts.content[0].text == "hm"
    assert message.content[0].text == (STREAMED if stream else SAID)


async def test_a_tool_is_called_and_its_result_sent_back(ai, worker):
    worker.fail(calls=(CALLED,), finish="tool_calls")
    items = [{"role": "user", "content": "What grows?"}]
    answer = await ai.responses.create(model="tiny", input=items, tools=[LOOK])
    [call] = answer.output
    assert (call.type, call.call_id, call.name) == ("function_call", "call_0", "look")
    assert orjson.loads(call.arguments) == {"at": "vine"}
    assert answer.tools[0].name == "look"
    function = {name: LOOK[name] for name in ("name", "parameters", "strict")}
    assert chat_of(worker)["tools"] == [{"type": "function", "function": function}]
    worker.fail()
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "grapes"}
    answer = await ai.responses.create(
        model="tiny", input=[*items, call.model_dump(), result], tools=[LOOK]
    )
    assert answer.output_text == SAID
    _, assistant, tool = chat_of(worker)["messages"]
    assert assistant["tool_calls"][0]["function"]["name"] == "look"
    assert tool == {"role": "tool", "tool_call_id": "call_0", "content": "grapes"}


async def test_tool_calls_are_streamed_item_by_item(ai, worker):
    worker.fail(thought="hm", calls=(CALLED, ("look", "{}")), finish="tool_calls")
    async with ai.responses.stream(model="tiny", input="hi", tools=[LOOK]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    done = [e.arguments for e in events if e.type == "response.function_call_arguments.done"]
    assert done == ['{"at":"vine"}', "{}"]
    assert [item.type for item in final.output] == ["reasoning", "function_call", "function_call"]
    assert [item.call_id for item in final.output[1:]] == ["call_0", "call_1"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_function_of_a_namespace_is_called_by_its_own_name(ai, worker, stream):
    worker.fail(calls=(("vines__look", "{}"),), finish="tool_calls")
    vines = {"type": "namespace", "name": "vines", "description": "What grows.", "tools": [LOOK]}
    answer = await ai.responses.create(model="tiny", input="hi", tools=[vines], stream=stream)
    if stream:
        *_, last = [event async for event in answer]
        answer = last.response
    [call] = answer.output
    assert (call.name, call.namespace) == ("look", "vines")
    assert chat_of(worker)["tools"][0]["function"]["name"] == "vines__look"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_as_codex_makes_it_is_answered(ai, worker, stream):
    vines = {"type": "namespace", "name": "vines", "description": "What grows.", "tools": [LOOK]}
    answer = await ai.responses.create(
        model="tiny",
        instructions="You write code.",
        input=[
            {"type": "message", "role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        ],
        tools=[LOOK, vines, {"type": "web_search", "external_web_access": True}],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        store=False,
        stream=stream,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="01a21511",
        extra_body={"client_metadata": {"session_id": "01a21511"}},
    )
    if stream:
        *_, last = [event async for event in answer]
        answer = last.response
    assert answer.output_text in {SAID, STREAMED}
    offered = [tool["function"]["name"] for tool in chat_of(worker)["tools"]]
    assert offered == ["look", "vines__look"]


async def test_a_schema_is_sent_and_its_answer_parsed_by_the_client(ai, worker):
    choice = {"index": 0, "message": {"content": '{"colour":"blue","seeds":3}'}}
    worker.fail(answer=orjson.dumps({"choices": [choice]}))
    answer = await ai.responses.parse(model="tiny", input="Which?", text_format=Grape)
    assert answer.output_parsed == Grape(colour="blue", seeds=3)
    form = chat_of(worker)["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["name"] == "Grape"
    assert form["json_schema"]["schema"]["required"] == ["colour", "seeds"]


async def test_an_image_is_sent_to_the_worker(ai, worker):
    parts = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "low"},
    ]
    await ai.responses.create(model="tiny", input=[{"role": "user", "content": parts}])
    [message] = chat_of(worker)["messages"]
    assert message["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}},
    ]


async def test_parameters_without_effect_are_named(ai, worker):
    raw = await ai.responses.with_raw_response.create(
        model="tiny",
        input="hi",
        truncation="auto",
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "low", "summary": "auto"},
        metadata={"a": "b"},
        store=True,
    )
    dropped = raw.headers["x-modelvine-dropped-params"]
    assert dropped == "include, reasoning.summary, truncation"
    answer = raw.parse()
    assert (answer.metadata, answer.model_dump()["store"]) == ({"a": "b"}, False)
    assert chat_of(worker)["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "this node stores nothing"),
        ({"conversation": "conv_1"}, "conversation", "this node stores nothing"),
        ({"background": True}, "background", "this node stores nothing"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type", "file_search"),
        (
            {"input": [{"type": "item_reference", "id": "x"}]},
            "input[0]",
            "this node stores nothing",
        ),
    ],
)
async def test_parameters_that_would_change_the_answer_are_refused(
    ai, worker, fields, param, words
):
    with pytest.raises(openai.BadRequestError, match=words) as refused:
        await ai.responses.create(**({"model": "tiny", "input": "hi"} | fields))
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", param)
    assert worker.received == []


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_before_the_first_byte_raise_the_clients_own_classes(ai, worker, stream):
    with pytest.raises(openai.NotFoundError) as unknown:
        await ai.responses.create(model="none", input="hi", stream=stream)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        await ai.responses.create(model="tiny", input="hi", temperature=9, stream=stream)
    assert wrong.value.param == "temperature"
    worker.fail(status=429, retry_after="7")
    with pytest.raises(openai.RateLimitError) as full:
        await ai.responses.create(model="tiny", input="hi", stream=stream)
    assert full.value.response.headers["retry-after"]


async def test_a_workers_refusal_names_the_field_by_the_callers_name(ai, worker):
    refusal = {"error": {"message": "too many", "param": "max_tokens", "code": "x"}}
    worker.fail(status=400, refusal=orjson.dumps(refusal))
    with pytest.raises(openai.BadRequestError, match="too many") as refused:
        await ai.responses.create(model="tiny", input="hi", max_output_tokens=9)
    assert refused.value.param == "max_output_tokens"


async def test_a_stream_that_breaks_off_has_failed(ai, worker):
    worker.fail(die_after=3)
    stream = await ai.responses.create(model="tiny", input="hi", stream=True)
    events = []

    async def listen():
        async for event in stream:
            events.append(event)  # noqa: PERF401 (what came before the exception counts)

    with pytest.raises(openai.APIError) as failed:
        await listen()
    assert failed.value.code == "answer_broken"
    last = events[-1]
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert last.response.error.code == "answer_broken"
    [item] = last.response.output
    assert (item.status, item.content[0].text) == ("incomplete", "".join(WORDS[1:3]))
    assert "response.completed" not in [event.type for event in events]


async def test_a_stream_without_finish_reason_and_done_has_failed(ai, worker):
    worker.fail(no_done=True)
    stream = await ai.responses.create(model="tiny", input="hi", stream=True)
    with pytest.raises(openai.APIError, match="broke off"):
        [event async for event in stream]


async def test_a_stream_that_another_worker_continues_is_one_response(ai, mesh, worker):
    async with running() as heir:
        await mesh.one.register(heir, cid="heir")
        await until(lambda: len(mesh.two.context.registry.catalog.offers["tiny"]) == 2)
        worker.fail(die_after=3)
        asking = ai.with_options(default_headers={"x-modelvine-continue": "1"})
        for _ in range(8):
            async with asking.responses.stream(model="tiny", input="hi") as stream:
                assert (await stream.get_final_response()).output_text == STREAMED
    assert worker.received


async def test_a_caller_that_leaves_cancels_the_request_at_the_worker(ai, worker):
    worker.fail(delay_between=60)
    stream = await ai.responses.create(model="tiny", input="hi", stream=True)
    async for _ in stream:
        break
    await stream.close()
    await until(lambda: worker.hung_up == 1)


async def test_a_caller_that_cancels_before_the_first_byte_cancels_the_request_at_the_worker(
    ai, worker
):
    worker.fail(hang=True)
    async with asyncio.TaskGroup() as group:
        work = group.create_task(ai.responses.create(model="tiny", input="hi"))
        await until(lambda: worker.received)
        work.cancel()
    await until(lambda: worker.hung_up == 1)


async def test_nothing_is_stored(ai):
    answer = await ai.responses.create(model="tiny", input="hi")
    with pytest.raises(openai.NotFoundError, match="this node stores no responses"):
        await ai.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError, match="this node stores no responses"):
        await ai.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError, match="this node stores no responses"):
        await ai.responses.cancel(answer.id)
    with pytest.raises(openai.NotFoundError, match="this node stores no responses"):
        await ai.responses.input_items.list(answer.id)


class TestBehindAWorkerOfAnotherProtocol:
    @pytest.fixture
    async def tgi(self):
        async with tgi_worker.running() as worker:
            yield worker

    @pytest.fixture
    async def ai(self, asked, mesh, tgi):
        await mesh.one.register(tgi, api=tgi.url.replace("http:", "tgi+http:"))
        await mesh.knows(mesh.two, "tiny")
        async with openai_at(asked) as ai:
            yield ai

    async def test_a_text_of_tgi_is_answered(self, ai):
        answer = await ai.responses.create(model="tiny", input="hi", instructions="Be brief.")
        assert (answer.output_text, answer.usage.output_tokens) == (SAID, len(WORDS))

    async def test_a_stream_of_tgi_is_answered(self, ai):
        async with ai.responses.stream(model="tiny", input="hi") as stream:
            final = await stream.get_final_response()
        assert (final.output_text, final.usage.output_tokens) == (SAID, len(WORDS))

    async def test_parameters_that_face_and_worker_drop_are_named(self, ai):
        raw = await ai.responses.with_raw_response.create(
            model="tiny", input="hi", truncation="auto", reasoning={"effort": "low"}
        )
        dropped = raw.headers["x-modelvine-dropped-params"]
        assert dropped == "truncation, reasoning_effort"

    async def test_a_stream_that_fails_raises(self, ai, tgi):
        tgi.fail(error_after=3)
        stream = await ai.responses.create(model="tiny", input="hi", stream=True)
        with pytest.raises(openai.APIError):
            [event async for event in stream]
