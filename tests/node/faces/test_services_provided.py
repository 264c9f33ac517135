"""Services of this project's own, `modelvine provide`, at their node and one hop away: real providers over real nodes."""

import asyncio
import base64
from contextlib import asynccontextmanager

import orjson
import pytest

from node.config.addresses import HostPort
from node.provide.agents import AgentsProvider
from node.provide.batch import BatchProvider
from node.provide.face import application
from node.provide.plan import ProviderPlan
from node.provide.service import registrations
from tests.node.faces.assembly import told, until
from tests.node.faces.test_services import BODIES, as_specified
from tests.swarm.waiting import until as wait
from tests.workers.serving import served

KEY = "the-key-of-this-provider"


@asynccontextmanager
async def providing(make, mesh, folder, *, database=""):
    """Run a provider that sends its requests to the second node, is registered at the first, and known to both."""
    address = HostPort("127.0.0.1", 0)
    plan = ProviderPlan(make.__module__, folder, address, "services", "own", 4, database=database)
    folder.mkdir()

    def known():
        """Types of the first node's services that the second knows; several may have one name."""
        record = mesh.two.context.registry.catalog.held[mesh.one.context.peer].record
        return {service.type for service in record.services}

    provider = make(plan, str(mesh.two.http._base_url))
    (folder / "key").write_text(KEY)
    try:
        async with served(application(provider.routes(), KEY)) as url, asyncio.TaskGroup() as group:
            work = group.create_task(provider.run())
            for registration in registrations(plan, provider, url):
                registration["headers"] = {"authorization": f"Bearer {KEY}"}
                status, payload = await told(
                    mesh.one.http.post("/api/v0/ai/model/register", json=registration)
                )
                assert status == 200, payload
            await until(lambda: known() >= {*provider.types})
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


async def test_an_agent_answers_in_one_turn(node, agents):
    status, turn = await told(node.http.post("/agents/execute", json=BODIES["/agents/execute"]))
    assert status == 200, turn
    as_specified("/agents/execute", "POST", turn)
    assert turn["status"] == "completed"
    assert turn["steps"][1]["stepType"] == "assistant_response"
    assert turn["steps"][1]["messages"][0]["text"]


async def test_an_agent_asks_for_a_tool_and_executes_none(node, agents, worker):
    worker.fail(calls=(("weather", '{"city":"Rome"}'),), finish="tool_calls")
    agent = {"name": "a", "model": "llama3_8", "tools": [{"name": "weather"}]}
    fields = {**BODIES["/agents/execute"], "agent": agent}
    status, turn = await told(node.http.post("/agents/execute", json=fields))
    assert (status, turn["steps"][1]["stepType"]) == (200, "tool_request")
    call = turn["steps"][1]["messages"][0]["tool_call"]
    assert call == {"name": "weather", "arguments": [{"city": "Rome"}]}


async def test_an_agent_with_an_unknown_model_or_tool_type_is_refused(node, agents):
    fields = {**BODIES["/agents/execute"], "agent": {"model": "none"}}
    status, payload = await told(node.http.post("/agents/execute", json=fields))
    assert (status, payload["error"]["type"]) == (404, "invalid_request_error")
    fields["agent"] = {"model": "m", "tools": [{"name": "search", "tool_type": "builtin"}]}
    status, payload = await told(node.http.post("/agents/execute", json=fields))
    assert (status, payload["error"]["param"]) == (400, "agent.tools[0].tool_type")


@pytest.fixture
async def batches(mesh, worker, tmp_path):
    await mesh.two.register(worker, model="tiny")
    await mesh.knows(mesh.two, "tiny")
    async with providing(BatchProvider, mesh, tmp_path / "batch"):
        yield tmp_path / "batch"


def asks(text):
    return [{"role": "user", "text": text}]


def pair(response):
    return [*asks("What grows?"), {"role": "assistant", "text": response}]


def raw(*rows):
    lines = b"\n".join(row if isinstance(row, bytes) else orjson.dumps(row) for row in rows)
    return {"value": base64.b64encode(lines).decode(), "type": "raw_bytes"}


LENGTH = {"name": "length", "params": {"max": 7}}


async def done(node, body, jobs):
    """Submit a job, wait for its end, and return it and the rows of its two files, as the node serves them."""
    status, payload = await told(node.http.post(f"/{jobs}/jobs/submit", json=body))
    assert status == 200, payload
    as_specified(f"/{jobs}/jobs/submit", "POST", payload)
    found = {}

    async def over():
        nonlocal found
        params = {"job_id": payload["job_id"]}
        _, found = await told(node.http.get(f"/{jobs}/jobs/status", params=params))
        return found["status"] in ("completed", "failed")

    await wait(over, within=10, otherwise="the job is not over")
    as_specified(f"/{jobs}/jobs/status", "GET", found)
    rows = []
    for name in ("success_file_path", "error_file_path"):
        reference = found.get(name)
        url = reference["value"] if isinstance(reference, dict) else reference
        if url is None:
            rows.append([])
            continue
        async with node.http.get(url) as response:
            assert response.status == 200
            rows.append([orjson.loads(row) for row in (await response.read()).splitlines()])
    return found, *rows


async def test_a_pair_of_prompt_and_response_is_scored(node, batches):
    fields = {"prompt_with_response": pair("A vine."), "scoring_function": LENGTH}
    status, payload = await told(node.http.post("/reward_scoring", json=fields))
    assert (status, payload["score"]) == (200, 1)
    as_specified("/reward_scoring", "POST", payload)
    fields["scoring_function"] = {"name": "llm_judge"}
    # This worker answers with words instead of a number.
    status, _ = await told(node.http.post("/reward_scoring", json={**fields, "reward": "tiny"}))
    assert status == 502
    status, payload = await told(
        node.http.post("/reward_scoring", json={**fields, "reward": "none"})
    )
    assert status == 404


async def test_many_pairs_are_scored_and_a_broken_row_is_an_error_of_its_own(node, batches):
    rows = [{"custom_id": "one", "messages": pair("A vine.")}, pair("A vine." * 2), b"{broken", [1]]
    fields = {
        "prompt_with_response_path": raw(*rows),
        "scoring_function": LENGTH,
        "metadata": {"a": 1},
    }
    job, good, bad = await done(node, fields, "batch_reward_scoring")
    assert (job["status"], job["metadata"]) == ("completed", {"a": 1})
    scores = {row["custom_id"]: row["response"]["body"]["score"] for row in good}
    assert scores == {"one": 1, "2": 0.5}
    assert [row["custom_id"] for row in bad] == [None, "4"]


async def test_synthetic_data_is_made_of_a_file_in_the_inbox(node, batches):
    (batches / "inbox" / "prompts.jsonl").write_bytes(
        b"\n".join(orjson.dumps({"custom_id": c, "messages": asks(c)}) for c in "ab")
    )
    fields = {
        "model": "tiny", "prompt_file_path": "prompts.jsonl", "num_generations": 3,
        "scoring_function": LENGTH, "filtering_function": {"name": "best_of"},
    }  # fmt: skip
    job, points, _ = await done(node, fields, "synthetic_data_gen")
    assert job["status"] == "completed"
    assert [(point["custom_id"], point["index"]) for point in points] == [("a", 0), ("b", 0)]
    assert all(point["response"]["text"] and point["score"] <= 1 for point in points)


async def test_chats_of_a_file_in_the_inbox_are_answered(node, batches):
    (batches / "inbox" / "chats.jsonl").write_bytes(orjson.dumps(asks("hi")))
    file = {"value": "chats.jsonl", "type": "filepath"}
    fields = {"model": "tiny", "prompt_file_path": file}
    job, good, _ = await done(node, fields, "batch_inference")
    assert (job["status"], len(good)) == ("completed", 1)


@pytest.mark.parametrize(
    "place",
    [
        {"value": "../key", "type": "filepath"},
        {"value": "/etc/passwd", "type": "filepath"},
        {"value": "link", "type": "filepath"},
        {"value": "a\0b", "type": "filepath"},
        {"value": "none", "type": "filepath"},
        {"value": "http://10.0.0.1/a", "type": "uri"},
        {"value": "/v1/files/file-none/content", "type": "uri"},
        {"value": "?", "type": "raw_bytes"},
    ],
)
async def test_a_file_outside_the_inbox_is_refused_and_nothing_is_stored(node, batches, place):
    (batches / "inbox" / "link").symlink_to(batches / "key")
    name = "prompt_with_response_path"
    fields = {name: place, "scoring_function": LENGTH}
    status, payload = await told(node.http.post("/batch_reward_scoring/jobs/submit", json=fields))
    assert status == 400, payload
    fields = {"model": "tiny", "prompt_file_path": place["value"]}
    status, payload = await told(node.http.post("/synthetic_data_gen/jobs/submit", json=fields))
    assert status == 400, payload
    assert not list((batches / "files").iterdir())


async def test_a_job_is_cancelled_and_an_unknown_one_is_not_found(node, batches, worker):
    worker.fail(hang=True)
    prompts = {"prompt_file_path": raw(asks("hi")), "model": "tiny"}
    _, job = await told(node.http.post("/batch_inference/jobs/submit", json=prompts))
    _, payload = await told(
        node.http.post("/batch_inference/jobs/cancel", json={"job_id": job["job_id"]})
    )
    assert (payload["status"], payload["metadata"]["status"][:6]) == ("failed", "cancel")
    for jobs in ("batch_reward_scoring", "synthetic_data_gen"):
        for id_ in ("none", job["job_id"]):
            status, _ = await told(node.http.post(f"/{jobs}/jobs/cancel", json={"job_id": id_}))
            assert status == 404
