"""Provider of agents: JSON that is nested too deeply to be written is the failure of its sender."""

import asyncio

import aiohttp
import orjson
import pytest
from aiohttp import web

from node.config.addresses import HostPort
from node.provide.agents.provider import AgentsProvider
from node.provide.face import application
from node.provide.plan import ProviderPlan
from tests.node.provide.conftest import KEY
from tests.workers.serving import served

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
    status, said = await ask(DEEP.encode(), '{"content":"a"}')
    assert (status, said["error"]["type"]) == (400, "invalid_request_error")
