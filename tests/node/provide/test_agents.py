"""Provider of agents: turns in Llama Stack's form, over a model of the mesh."""

import asyncio

import aiohttp
import orjson
import pytest
from aiohttp import web

from node.config.addresses import HostPort
from node.provide.agents import AgentsProvider, chat_of, failed, turn_of
from node.provide.face import application
from node.provide.plan import ProviderPlan
from router.errors import BadRequest
from tests.node.provide.conftest import KEY
from tests.workers.llama_stack_schema import ANSWERS
from tests.workers.serving import served

WEATHER = {
    "name": "weather",
    "tool_type": "zeroshot",
    "description": "tells the weather",
    "parameters": [
        {"name": "city", "type": "string", "description": "where"},
        {"type": "list", "itemType": "int"},
    ],
    "returnValue": {},
}
AGENT = {"name": "Ann", "description": "You know plants.", "model": "m", "tools": [WEATHER]}
ASKS = {"role": "user", "stepType": "user_response", "messages": [{"role": "user", "text": "hi"}]}
IDS, TODAY = ("turn_1", "step_1"), "2026-11-24T12:00:00Z"


def asked(**changed):
    return {"agent": AGENT, "userStep": ASKS, **changed}


def turned(**message):
    answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"a": 1}}
    turn = turn_of(asked(), IDS, TODAY, TODAY, answer)
    ANSWERS["POST /agents/execute"].validate_json(orjson.dumps(turn))
    return turn


def test_a_turn_is_a_chat_with_its_tools():
    chat = orjson.loads(chat_of(asked()))
    assert chat["model"] == "m"
    assert chat["messages"] == [
        {"role": "system", "content": "You are Ann. You know plants."},
        {"role": "user", "content": "hi"},
    ]
    (tool,) = chat["tools"]
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where"},
            "arg2": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["city", "arg2"],
    }


def test_an_answer_is_the_next_step_and_the_usage_is_told():
    turn = turned(content="hello")
    assert turn["status"] == "completed"
    assert [step["stepType"] for step in turn["steps"]] == ["user_response", "assistant_response"]
    assert turn["steps"][1]["messages"][0]["text"] == "hello"
    assert turn["metadata"] == {"usage": {"a": 1}}


def test_a_tool_request_is_returned_and_its_result_is_part_of_the_next_chat():
    call = {"id": "x", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
    turn = turned(content=None, tool_calls=[call])
    step = turn["steps"][1]
    assert step["stepType"] == "tool_request"
    tool_call = step["messages"][0]["tool_call"]
    assert tool_call == {"name": "weather", "arguments": [{"city": "Rome"}]}
    result = {"role": "user", "stepType": "tool_response", "messages": [{"text": "sun"}]}
    chat = orjson.loads(chat_of(asked(turnHistory=turn["steps"], userStep=result)))
    _, _, calling, tool_result = chat["messages"]
    assert calling["tool_calls"][0]["function"]["name"] == "weather"
    assert tool_result == {
        "role": "tool",
        "content": "sun",
        "tool_call_id": calling["tool_calls"][0]["id"],
    }


def test_arguments_that_are_no_json_are_kept_as_they_are():
    call = {"function": {"name": "weather", "arguments": "{"}}
    (message,) = turned(content="", tool_calls=[call])["steps"][1]["messages"]
    assert message["tool_call"]["arguments"] == [{"unparsed": "{"}]


def test_an_invalid_answer_is_a_turn_that_failed():
    for answer in (
        {},
        {"choices": []},
        {"choices": [{"message": "x"}]},
        {"choices": [{"message": {"content": "x", "tool_calls": 5}}]},
    ):
        assert turn_of(asked(), IDS, TODAY, TODAY, answer)["status"] == "failed"
    turn = failed(asked(), IDS, TODAY, TODAY, "no")
    ANSWERS["POST /agents/execute"].validate_json(orjson.dumps(turn))


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"agent": {}}, "agent"),
        ({"userStep": None}, "userStep"),
        ({"turnHistory": 1}, "turnHistory"),
        ({"turnHistory": [1]}, "turnHistory[0]"),
        ({"agent": {**AGENT, "tools": [{}]}}, "agent.tools[0]"),
        (
            {"agent": {**AGENT, "tools": [{**WEATHER, "parameters": 1}]}},
            "agent.tools[0].parameters",
        ),
        (
            {"agent": {**AGENT, "tools": [{**WEATHER, "tool_type": "builtin"}]}},
            "agent.tools[0].tool_type",
        ),
    ],
)
def test_the_error_for_an_invalid_turn_names_the_parameter(changed, param):
    with pytest.raises(BadRequest) as bad:
        chat_of(asked(**changed))
    assert bad.value.param == param


DEEP = "[" * 300 + "]" * 300
STEP = b'{"agent":{"model":"m"},"userStep":{"messages":[{"role":"user","text":"hi"}],"x":%b}}'
CALL = orjson.dumps([{"function": {"name": "f", "arguments": DEEP}}]).decode()


@pytest.fixture
async def ask(tmp_path):
    """Return a function that executes a turn, to which the model answers with such a message."""
    says = {}

    async def chat(_):
        return web.Response(body=says["body"], content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    headers = {"authorization": f"Bearer {KEY}"}
    async with served(app) as node, asyncio.TaskGroup() as group:
        plan = ProviderPlan("agents", tmp_path, HostPort("127.0.0.1", 0), "p", "n", 1)
        provider = AgentsProvider(plan, node)
        work = group.create_task(provider.run())
        async with (
            served(application(provider.routes(), KEY)) as url,
            aiohttp.ClientSession(url, headers=headers) as http,
        ):

            async def ask(step, message, usage="{}"):
                says["body"] = f'{{"choices":[{{"message":{message}}}],"usage":{usage}}}'.encode()
                async with http.post("/agents/execute", data=STEP % step) as response:
                    return response.status, await response.json()

            yield ask
        work.cancel()


@pytest.mark.parametrize(
    ("message", "usage"),
    [('{"content":"","tool_calls":' + CALL + "}", "{}"), ('{"content":"a"}', f'{{"a":{DEEP}}}')],
)
async def test_a_deeply_nested_answer_is_a_turn_that_failed(ask, message, usage):
    status, turn = await ask(b"1", message, usage)
    assert (status, turn["status"]) == (200, "failed")
    assert "nested" in turn["metadata"]["error"]


async def test_a_deeply_nested_request_is_refused(ask):
    status, payload = await ask(DEEP.encode(), '{"content":"a"}')
    assert (status, payload["error"]["type"]) == (400, "invalid_request_error")
