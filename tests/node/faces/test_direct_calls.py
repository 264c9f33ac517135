"""Calls that are sent and answered without a task, and all that makes one necessary; callers see no difference."""

import asyncio
import gc
import logging
from functools import partial

import orjson
import pytest

from node.auth.keys import Allowance
from node.lane import direct
from node.lane.connection import LaneConnection
from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import Pair, World, node, openai_at, settings_of, told, until
from tests.workers.openai_worker import running

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a b c"}]}
STREAM = CHAT | {"stream": True}
URL = "/v1/chat/completions"


@pytest.fixture
def tasks(monkeypatch):
    """Return the list of calls that were handed over to a task, by the names of their models."""
    found = []
    hand_over = LaneConnection.hand_over

    def seen(connection, handler):
        found.append(orjson.loads(connection._request.body)["model"])
        hand_over(connection, handler)

    monkeypatch.setattr(LaneConnection, "hand_over", seen)
    return found


async def settled(running) -> None:
    """Wait until no request is in flight."""
    await until(lambda: not running.context.router.in_flight)


@pytest.fixture
async def warm(served, tasks):
    """Return a node with an idle connection to its worker."""
    assert (await told(served.http.post(URL, json=CHAT)))[0] == 200
    tasks.clear()
    return served


@pytest.fixture
async def streaming(warm, tasks):
    """Return the same; its worker is known to accept the usage option."""
    await read_stream(warm)
    tasks.clear()
    return warm


async def read_stream(running) -> bytes:
    """Return the bytes of a stream."""
    async with running.http.post(URL, json=STREAM) as response:
        assert response.status == 200
        return await response.read()


ANSWER = b"""{"model":"tiny","choices":[{"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],
"usage":{"prompt_tokens":5,"completion_tokens":6}}"""


async def test_a_warm_call_needs_no_task(warm, worker, tasks, caplog):
    worker.fail(answer=ANSWER)
    with caplog.at_level(logging.INFO, "modelvine.requests"):
        async with warm.http.post(URL, json=CHAT, headers={"x-request-id": "r-1"}) as response:
            payload = await response.json()
            headers = response.headers
    assert tasks == []
    assert payload["choices"][0]["message"]["content"]
    assert payload["model"] == "tiny"
    assert headers["x-modelvine-route"] == "local"
    assert headers["x-modelvine-attempts"] == "1"
    assert headers["x-modelvine-node"] == warm.context.peer
    assert headers["x-request-id"] == worker.received[-1].headers["x-request-id"] == "r-1"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("request=r-1 model=tiny kind=chat/completions node=")
    assert " attempts=1 status=200 " in line
    assert line.endswith(" tokens=5+6")
    await settled(warm)


async def test_a_stream_takes_a_task_from_its_first_byte_on(streaming, worker, tasks):
    before = len(worker.received)
    worker.fail(delay_headers=0.4 * direct.PATIENCE_SECONDS)
    async with asyncio.TaskGroup() as group:
        stream = group.create_task(read_stream(streaming))
        await until(lambda: len(worker.received) > before)
        assert tasks == []
    assert tasks == ["tiny"]
    assert stream.result().endswith(b"data: [DONE]\n\n")
    assert b'"usage"' not in stream.result()
    assert orjson.loads(worker.received[-1].body)["stream_options"] == {"include_usage": True}
    await settled(streaming)


async def test_a_slow_stream_is_awaited_by_a_task(streaming, worker, tasks):
    worker.fail(delay_headers=3 * direct.PATIENCE_SECONDS)
    async with asyncio.TaskGroup() as group:
        stream = group.create_task(read_stream(streaming))
        await until(lambda: tasks == ["tiny"])
        assert not stream.done()
    assert stream.result().endswith(b"data: [DONE]\n\n")


async def test_a_stream_whose_worker_now_refuses_the_usage_option_is_sent_without_it(
    streaming, worker
):
    before = len(worker.received)
    worker.fail(
        refuses_usage=True, refusal=b'{"error":{"message":"no such field: stream_options"}}'
    )
    assert (await read_stream(streaming)).endswith(b"data: [DONE]\n\n")
    bodies = [orjson.loads(received.body) for received in worker.received[before:]]
    assert ["stream_options" in body for body in bodies] == [True, False]


async def test_a_completion_takes_a_task_because_it_may_become_a_chat(warm, tasks):
    fields = {"model": "tiny", "prompt": "a"}
    assert (await told(warm.http.post("/v1/completions", json=fields)))[0] == 200
    assert tasks == ["tiny"]


async def test_an_embedding_needs_no_task(warm, worker, tasks):
    worker.fail(answer=b'{"object":"list","data":[{"index":0,"embedding":[1]}],"model":"tiny"}')
    fields = {"model": "tiny", "input": "a"}
    status, payload = await told(warm.http.post("/v1/embeddings", json=fields))
    assert (status, payload["data"][0]["embedding"], tasks) == (200, [1], [])


FAILURES = [
    ({"status": 400}, 400),
    ({"status": 500}, 502),
    ({"status": 503, "retry_after": "7"}, 429),
    ({"garbage": True}, 502),
    ({"die_before_headers": True}, 502),
]
"""Faults of a worker, each with the status that callers get."""


@pytest.mark.parametrize(
    ("faults", "status"),
    [*FAILURES, ({"empty": True}, 502), ({"code": 3}, 502), ({"packed": True}, 502)],
)
async def test_failures_are_reported_as_without_direct_calls(warm, worker, tasks, faults, status):
    worker.fail(**faults)
    got, payload = await told(warm.http.post(URL, json=CHAT))
    assert got == status, payload
    assert payload["error"]["message"]
    assert tasks == ["tiny"]
    await settled(warm)


@pytest.mark.parametrize(("faults", "status"), FAILURES)
async def test_failures_before_a_stream_begins_are_reported_as_without_direct_calls(
    streaming, worker, tasks, faults, status
):
    worker.fail(**faults)
    got, payload = await told(streaming.http.post(URL, json=STREAM))
    assert got == status, payload
    assert payload["error"]["message"]
    assert tasks == ["tiny"]
    await settled(streaming)


async def test_another_worker_answers_where_the_first_fails(warm, worker, tasks):
    async with running() as other:
        await warm.register(other, project="q")
        worker.fail(status=500)
        other.fail(status=500)
        assert (await told(warm.http.post(URL, json=CHAT)))[0] == 502
        attempts = len(worker.received), len(other.received)
        other.fail()
        for _ in range(6):
            async with warm.http.post(URL, json=CHAT) as response:
                assert response.status == 200, (attempts, await response.text())
                assert response.headers["x-modelvine-attempts"] in ("1", "2")
                await response.read()
    await settled(warm)


async def test_a_slow_answer_is_awaited_by_a_task(warm, worker, tasks):
    worker.fail(delay_headers=2 * direct.PATIENCE_SECONDS)
    assert (await told(warm.http.post(URL, json=CHAT)))[0] == 200
    assert tasks == ["tiny"]
    await settled(warm)


async def test_a_long_answer_is_passed_on_by_a_task(warm, worker, tasks):
    worker.fail(pad_bytes=100_000)
    status, payload = await told(warm.http.post(URL, json=CHAT))
    assert (status, tasks) == (200, ["tiny"])
    assert len(orjson.dumps(payload)) > 100_000


async def test_an_answer_carries_our_name_of_the_model(warm, worker, tasks):
    worker.fail(name="a/b.gguf")
    assert (await told(warm.http.post(URL, json=CHAT)))[1]["model"] == "tiny"
    assert tasks == []


@pytest.mark.parametrize("chat", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("seconds", [0.05, 1.5 * direct.PATIENCE_SECONDS], ids=["at once", "later"])
async def test_a_worker_sees_its_caller_leave(streaming, worker, caplog, seconds, chat):
    worker.fail(hang=True)
    with caplog.at_level(logging.INFO, "modelvine.requests"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await told(streaming.http.post(URL, json=chat))
        await until(lambda: worker.hung_up == 1)
        await settled(streaming)
    (line,) = [record.getMessage() for record in caplog.records]
    assert " status=499 " in line


async def test_a_key_revoked_during_a_call_ends_the_next_call_and_not_this_one(warm, worker, tasks):
    key = (await warm.context.keys.create({"ann": Allowance()}))["ann"]
    call = partial(warm.http.post, URL, json=CHAT, headers={"Authorization": f"Bearer {key}"})
    before = len(worker.received)
    worker.fail(delay_headers=2 * direct.PATIENCE_SECONDS)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(told(call()))
        await until(lambda: len(worker.received) > before)
        await warm.context.keys.revoke("ann")
    await settled(warm)
    assert (first.result()[0], tasks) == (200, ["tiny"])
    assert (await told(call()))[0] == 401


async def test_a_node_that_closes_answers_requests_in_flight(worker, tasks):
    async with node(World(MemoryNet()), settings_of()) as one:
        await one.register(worker)
        assert (await told(one.http.post(URL, json=CHAT)))[0] == 200
        worker.fail(delay_headers=0.3)
        async with asyncio.TaskGroup() as group:
            request = group.create_task(told(one.http.post(URL, json=CHAT)))
            await until(lambda: len(worker.received) == 2)
    assert request.result()[0] == 200


async def test_openais_client_sees_no_difference(warm, tasks):
    async with openai_at(warm) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}]
        )
    assert answer.choices[0].message.content
    assert tasks == []


@pytest.fixture
async def hop(worker, tasks):
    """Yield a node without a worker, with a proven link to a node that has an idle connection to its worker."""
    world = World(MemoryNet())
    async with node(world, dialled=True) as one, node(world, dialled=True) as two:
        await until(lambda: two.context.peer in one.context.registry.catalog.held)
        asked_node = await Pair(one, two).offers("asked", worker)
        assert (await told(asked_node.http.post(URL, json=CHAT)))[0] == 200
        tasks.clear()
        yield asked_node


async def test_a_link_tells_whether_bytes_of_the_other_node_came_lately(hop):
    links = hop.context.links
    (peer,) = hop.context.registry.catalog.held.keys() - {hop.context.peer}
    assert links.has_heard(peer, within=60.0)
    assert not links.has_heard(peer, within=-1.0)
    assert not links.has_heard(hop.context.peer, within=60.0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_over_a_hop_neither_node_needs_a_task(hop, worker, tasks, caplog, path):
    worker.fail(answer=ANSWER)
    with caplog.at_level(logging.INFO, "modelvine.requests"):
        async with hop.http.post(path, json=CHAT | {"input": "a"}) as response:
            payload = await response.json()
            headers = response.headers
    assert tasks == []
    assert payload["model"] == "tiny"
    assert headers["x-modelvine-route"] == "direct"
    assert headers["x-modelvine-node"] != hop.context.peer
    assert not {"x-modelvine-load", "x-modelvine-service-time"} & set(headers)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" route=")[2].split()[0] for line in lines] == ["local", "direct"]
    await settled(hop)


async def test_a_stream_over_a_hop_takes_tasks_from_its_first_byte_on(hop, worker, tasks):
    await read_stream(hop)
    tasks.clear()
    before = len(worker.received)
    worker.fail(delay_headers=0.4 * direct.PATIENCE_SECONDS)
    async with asyncio.TaskGroup() as group:
        stream = group.create_task(read_stream(hop))
        await until(lambda: len(worker.received) > before)
        assert tasks == []
    assert tasks == ["tiny", "tiny"]
    assert stream.result().endswith(b"data: [DONE]\n\n")
    await settled(hop)


@pytest.mark.parametrize(
    ("faults", "status"),
    [({"status": 400}, 400), ({"status": 500}, 502), ({"die_before_headers": True}, 502)],
)
async def test_failures_over_a_hop_are_reported_as_without_direct_calls(
    hop, worker, tasks, faults, status
):
    worker.fail(**faults)
    got, payload = await told(hop.http.post(URL, json=CHAT))
    assert got == status, payload
    assert tasks == ["tiny", "tiny"]
    await settled(hop)


@pytest.mark.parametrize("seconds", [0.05, 1.5 * direct.PATIENCE_SECONDS], ids=["at once", "later"])
async def test_a_worker_beyond_a_hop_sees_its_caller_leave(hop, worker, seconds):
    worker.fail(hang=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await told(hop.http.post(URL, json=CHAT))
    await until(lambda: worker.hung_up == 1)
    await settled(hop)


async def test_many_calls_at_once_over_a_hop_are_answered_and_leave_none_in_flight(hop, tasks):
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(told(hop.http.post(URL, json=CHAT))) for _ in range(50)]
    assert {call.result()[0] for call in calls} == {200}
    await settled(hop)


async def test_many_calls_at_once_each_get_their_own_answer(warm, tasks):
    async def one(number: int) -> None:
        name = f"r-{number}"
        async with warm.http.post(URL, json=CHAT, headers={"x-request-id": name}) as response:
            assert response.headers["x-request-id"] == name
            assert (await response.json())["model"] == "tiny"

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(one(number))
    await settled(warm)


async def test_a_direct_call_is_freed_without_the_garbage_collector(warm, worker, tasks):
    worker.fail(answer=ANSWER)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert (await told(warm.http.post(URL, json=CHAT)))[0] == 200
        assert tasks == []
        assert not [found for found in gc.get_objects() if isinstance(found, direct.DirectCall)]
    finally:
        gc.enable()
