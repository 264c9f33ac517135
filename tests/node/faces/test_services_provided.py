"""Services of this project's own, `modelvine provide`, at their node and one hop away: real providers over real nodes."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from node.config.addresses import HostPort
from node.provide.agents.provider import AgentsProvider
from node.provide.face import application
from node.provide.plan import Plan
from node.provide.service import registrations
from registry.records import name_of_any
from tests.node.faces.assembly import told
from tests.node.faces.test_services import BODIES, as_specified
from tests.workers.serving import served

KEY = "the-key-of-this-provider"


@asynccontextmanager
async def providing(make, mesh, folder):
    """Run a provider that asks the second node and is registered at the first, and known to both."""
    plan = Plan(make.__module__, folder, HostPort("127.0.0.1", 0), "services", "own", 4)
    provider = make(plan, str(mesh.two.http._base_url))
    folder.mkdir(exist_ok=True)
    (folder / "key").write_text(KEY)
    try:
        async with served(application(provider.routes(), KEY)) as url, asyncio.TaskGroup() as group:
            work = group.create_task(provider.run())
            for said in registrations(plan, provider, url):
                said["headers"] = {"authorization": f"Bearer {KEY}"}
                status, why = await told(mesh.one.http.post("/api/v0/ai/model/register", json=said))
                assert status == 200, why
            for kind in provider.types:
                await mesh.knows(mesh.two, name_of_any(kind))
            yield provider
            work.cancel()
    finally:
        provider.close()


@pytest.fixture(params=["serving", "asked"])
def node(request, mesh):
    return mesh.one if request.param == "serving" else mesh.two


@pytest.fixture
async def agents(mesh, worker, tmp_path):
    await mesh.two.register(worker, model="llama3_8")
    await mesh.knows(mesh.two, "llama3_8")
    async with providing(AgentsProvider, mesh, tmp_path / "agents") as made:
        yield made


async def test_an_agent_answers(node, agents):
    status, turn = await told(node.http.post("/agents/execute", json=BODIES["/agents/execute"]))
    assert status == 200, turn
    as_specified("/agents/execute", "POST", turn)
    assert turn["status"] == "completed"
    assert turn["steps"][1]["stepType"] == "assistant_response"
    assert turn["steps"][1]["messages"][0]["text"]


async def test_an_agent_asks_for_a_tool_and_executes_none(node, agents, worker):
    worker.fail(calls=(("weather", '{"city":"Rome"}'),), finish="tool_calls")
    agent = {"name": "a", "model": "llama3_8", "tools": [{"name": "weather"}]}
    asked = {**BODIES["/agents/execute"], "agent": agent}
    status, turn = await told(node.http.post("/agents/execute", json=asked))
    assert (status, turn["steps"][1]["stepType"]) == (200, "tool_request")
    call = turn["steps"][1]["messages"][0]["tool_call"]
    assert call == {"name": "weather", "arguments": [{"city": "Rome"}]}


async def test_an_agent_whose_model_is_nobodys_says_so(node, agents):
    asked = {**BODIES["/agents/execute"], "agent": {"model": "none"}}
    status, said = await told(node.http.post("/agents/execute", json=asked))
    assert (status, said["error"]["type"]) == (404, "invalid_request_error")
    asked["agent"] = {"model": "m", "tools": [{"name": "search", "tool_type": "builtin"}]}
    status, said = await told(node.http.post("/agents/execute", json=asked))
    assert (status, said["error"]["param"]) == (400, "agent.tools[0].tool_type")
