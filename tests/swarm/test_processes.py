"""A node of several processes behaves as one: registrations, slots, metrics, drain, and what happens when one of them dies."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.swarm.client import PROMPT, Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.processes import Line, alive, helpers, kill, lines, processes
from tests.swarm.waiting import SLACK, show, until
from tests.workers.openai_worker import OpenAIWorker

pytestmark = pytest.mark.swarm

TWO = {"node": {"workers": 2}}
CHAT = {"model": "hour", "messages": PROMPT}
_REQUESTS = re.compile(rb'^modelvine_requests_total\{kind="chat/completions",status="200"\} (\S+)$', re.MULTILINE)  # fmt: skip


@pytest.fixture(scope="module")
def pair(swarm: Swarm) -> list[Node]:
    """A node of two processes, and one of a single process that peers reach over pipes only."""
    return swarm.start_all(Start("many", TWO), Start("hidden", module="tests.swarm.hidden_node"))


@pytest.fixture(scope="module")
def many(pair: list[Node]) -> Node:
    return pair[0]


@pytest.fixture
def fresh(tmp_path) -> Iterator[Node]:
    """A node of two processes that a test may end."""
    with Swarm(tmp_path) as swarm:
        yield swarm.start(Start("fresh", TWO))


def row(worker: OpenAIWorker, model: str, **fields: object) -> dict[str, object]:
    return {"project": "p", "model": model, "api": worker.url, "type": 0, **fields}


async def register(line: Line, worker: OpenAIWorker, model: str, **fields: object) -> None:
    status, body = await line.ask("POST", "/api/v0/ai/model/register", row(worker, model, **fields))
    assert (status, body) == (200, b'{"code":0,"message":"ok"}')


async def unregister(line: Line, model: str) -> None:
    fields = {"project": "p", "model": model}
    assert (await line.ask("POST", "/api/v0/ai/model/unregister", fields))[0] == 200


def each(by_process: dict[int, list[Line]]) -> list[Line]:
    return [line for connections in by_process.values() for line in connections]


async def counted(line: Line) -> int:
    match = _REQUESTS.search((await line.ask("GET", "/metrics"))[1])
    return int(float(match[1])) if match else 0


async def test_both_processes_answer_and_are_counted_as_one(many: Node, worker: OpenAIWorker):
    async with lines(many, 2) as by_process:
        assert len(by_process) == 2
        connections = each(by_process)
        await register(connections[0], worker, "counted")
        before = await counted(connections[0])
        for line in connections:
            assert (await line.chat("counted"))[0] == 200
        assert [await counted(line) - before for line in connections] == [4, 4, 4, 4]
        fields = {"project": "p", "model": "counted", "messages": []}
        for line in connections:
            assert (await line.ask("POST", "/api/v0/chat/completion/proxy", fields))[0] == 200
        answers = [await line.ask("GET", "/api/v1/status") for line in connections]
        assert all(b'"processes":2' in body for _, body in answers)
        await unregister(connections[0], "counted")


async def test_a_registration_is_known_to_both_processes_when_the_answer_comes(
    many: Node, worker: OpenAIWorker
):
    async with lines(many) as by_process:
        connections = each(by_process)
        for number in range(20):
            informed, model = connections[number % 2], f"soon{number}"
            await register(informed, worker, model)
            assert [(await line.chat(model))[0] for line in connections] == [200, 200]
            await unregister(informed, model)
            assert [(await line.chat(model))[0] for line in connections] == [404, 404]


async def test_a_worker_never_has_more_requests_than_it_takes(many: Node, worker: OpenAIWorker):
    async with lines(many, 25) as by_process:
        connections = each(by_process)
        await register(connections[0], worker, "narrow", capacity=1)
        worker.fail(delay_headers=0.01)
        began = time.monotonic()
        answers = await asyncio.gather(*(line.chat("narrow") for line in connections))
        show("50 requests for 1 slot through two processes", took=time.monotonic() - began)
        assert {status for status, _ in answers} == {200}
        assert (len(worker.received), worker.most) == (50, 1)
        await unregister(connections[0], "narrow")


async def test_a_full_queue_refuses_in_both_processes(many: Node, worker: OpenAIWorker):
    async with lines(many, 80) as by_process:
        connections = each(by_process)
        await register(connections[0], worker, "refused", capacity=1)
        # The slot is held until all have come: had one been answered before the last came, another would fit.
        worker.fail(delay_headers=5)
        sent = [asyncio.ensure_future(line.chat("refused")) for line in connections]
        await until(
            lambda: sum(task.done() for task in sent) == 59, within=1.5, otherwise="not refused"
        )
        worker.fail()
        statuses = [status for status, _ in await asyncio.gather(*sent)]
        assert (statuses.count(200), statuses.count(429)) == (101, 59)
        await unregister(connections[0], "refused")


async def test_the_history_shows_the_queue_and_refusals_of_all_processes(
    tmp_path: Path, client: Client, worker: OpenAIWorker
):
    with Swarm(tmp_path) as swarm:
        node = await asyncio.to_thread(swarm.start, Start("short", {**TWO, "router": {"queue": 3}}))
        await client.register(node, "p", ["hour"], worker.url, capacity=1)
        worker.fail(delay_headers=60)
        async with lines(node, 6) as by_process:
            of_first, of_helper = (by_process[pid] for pid in processes(node))
            await of_first[0].send("POST", "/v1/chat/completions", CHAT)
            await until(
                lambda: len(worker.received) == 1, within=5, otherwise="nobody has the slot"
            )
            for line in of_helper[:3]:
                await line.send("POST", "/v1/chat/completions", CHAT)

            async def last_hour(queued: int, refused: int) -> bool:
                rows = (await client.get(node, "/api/v1/history?model=hour"))["history"]
                counts = [(row["node"], row["queued"], row["refused"]) for row in rows]
                return counts == [(node.peer, queued, refused)]

            condition = partial(last_hour, queued=3, refused=0)
            await until(condition, within=SLACK * 5, otherwise="the queue is not seen")
            # Only the helper's requests hold places in the queue, and the refusals of both processes count.
            for line in (*of_helper[3:], of_first[1]):
                assert (await line.chat("hour"))[0] == 429
            refused = partial(last_hour, queued=3, refused=4)
            await until(refused, within=SLACK * 7, otherwise="refusals are not counted")
        await asyncio.to_thread(swarm.stop, node)


async def test_requests_go_out_of_both_processes_to_another_node_over_pipes(
    pair: list[Node], client: Client, worker: OpenAIWorker
):
    many, hidden = pair
    await client.met(pair)
    await client.register(hidden, "far", ["away"], worker.url)
    await client.listed([many], "away")
    async with lines(many) as by_process:
        for line in each(by_process):
            assert (await line.chat("away"))[0] == 200
    await client.unregister(hidden, "far")


async def test_forty_requests_of_another_node_at_once_are_all_answered(
    pair: list[Node], client: Client, worker: OpenAIWorker
):
    many, hidden = pair
    await client.register(many, "near", ["here"], worker.url)
    await client.listed([hidden], "here")
    worker.fail(delay_headers=0.2)
    answers = await asyncio.gather(*(client.chat(hidden, "here") for _ in range(40)))
    assert {(answer.status, answer.node, answer.route) for answer in answers} == {
        (200, many.peer, "direct")
    }
    await client.unregister(many, "near")


async def test_another_node_learns_the_load_of_a_worker_summed_over_all_processes(
    pair: list[Node], client: Client, worker: OpenAIWorker
):
    many, hidden = pair
    await client.register(many, "busy", ["sums"], worker.url)
    await client.listed([hidden], "sums")
    async with lines(many) as by_process:
        worker.fail(delay_headers=2.5)
        tasks = [asyncio.ensure_future(line.chat("sums")) for line in each(by_process)]
        await until(lambda: len(worker.received) == 2, within=3, otherwise="they were not asked")

        async def told() -> bool:
            (candidate,) = (await client.get(hidden, "/api/v1/route?model=sums"))["candidates"]
            return candidate["load"] is not None and candidate["load"]["in_flight"] == 2

        show("two requests, one in each process", known_after=await until(told, within=2, otherwise="nobody hears"))  # fmt: skip
        await asyncio.gather(*tasks)
    await client.unregister(many, "busy")


async def test_a_caller_that_hangs_up_frees_the_slot_that_another_process_gave(
    many: Node, worker: OpenAIWorker
):
    async with lines(many, 2) as by_process:
        (first, _), (helper, other) = by_process.values()
        await register(first, worker, "left", capacity=1)
        worker.fail(hang=True)
        await helper.send("POST", "/v1/chat/completions", {"model": "left", "messages": []})
        await until(lambda: len(worker.received) == 1, within=3, otherwise="it was not asked")
        helper.writer.transport.abort()
        await until(lambda: worker.hung_up == 1, within=3, otherwise="the worker works on")
        worker.fail()
        for line in (first, other):
            assert (await asyncio.wait_for(line.chat("left"), 3))[0] == 200
        await unregister(first, "left")


async def test_a_helper_that_is_killed_costs_only_its_own_connections_and_is_started_again(
    many: Node, worker: OpenAIWorker
):
    (killed,) = helpers(many)
    async with lines(many, 3) as by_process:
        ours, cut = by_process[many.actor.process.pid], by_process[killed]
        await register(ours[0], worker, "kept", capacity=4)
        for line in cut:
            assert (await line.chat("kept"))[0] == 200
        before = await counted(ours[0])
        worker.fail(delay_headers=0.5)
        tasks = [asyncio.ensure_future(line.chat("kept")) for line in (*ours, *cut)]
        await until(lambda: len(worker.received) == 7, within=3, otherwise="they were not asked")
        kill(killed)
        killed_at = time.monotonic()
        worker.fail()
        # New connections are accepted at once, and the slots of those that were cut are free.
        fresh = [await _once(many, "kept") for _ in range(20)]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {answer[0] for answer in (*fresh, *ended[:3])} == {200}
        assert all(isinstance(answer, EOFError | OSError) for answer in ended[3:])
        # What the helper had counted still counts.
        assert await counted(ours[0]) >= before + 23
        took = await until(
            lambda: helpers(many) not in ([], [killed]),
            within=10,
            otherwise="it is not back",
            since=killed_at,
        )
        await _serving(many)
        show(
            "a helper is killed",
            started_again_after=took,
            serves_after=time.monotonic() - killed_at,
        )
        await unregister(ours[0], "kept")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
async def test_no_request_is_lost_when_a_node_of_two_processes_is_told_to_end(
    fresh: Node, worker: OpenAIWorker, how: signal.Signals
):
    (helper,) = helpers(fresh)
    async with lines(fresh, 5) as by_process:
        connections = each(by_process)
        await register(connections[0], worker, "last")
        worker.fail(delay_headers=1.0)
        tasks = [asyncio.ensure_future(line.chat("last")) for line in connections]
        await until(lambda: len(worker.received) == 10, within=3, otherwise="they were not asked")
        # A service manager may signal all processes of a service.
        fresh.actor.process.send_signal(how)
        os.kill(helper, how)
        answers = await asyncio.gather(*tasks)
        assert {status for status, _ in answers} == {200}
        assert await asyncio.to_thread(fresh.actor.process.wait, 10) == 0
        assert not alive(helper)


async def test_a_second_signal_ends_all_processes_at_once(fresh: Node, worker: OpenAIWorker):
    (helper,) = helpers(fresh)
    async with lines(fresh) as by_process:
        connections = each(by_process)
        await register(connections[0], worker, "hung")
        worker.fail(hang=True)
        tasks = [asyncio.ensure_future(line.chat("hung")) for line in connections]
        await until(lambda: len(worker.received) == 2, within=3, otherwise="they were not asked")
        fresh.actor.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert fresh.running
        fresh.actor.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert await asyncio.to_thread(fresh.actor.process.wait, 10) == 0
        show("a second signal", ended_after=time.monotonic() - began)
        assert not alive(helper)
        assert all(await asyncio.gather(*tasks, return_exceptions=True))


async def test_helpers_end_at_once_with_the_first_process(fresh: Node):
    (helper,) = helpers(fresh)
    kill(fresh.actor.process.pid)
    took = await until(lambda: not alive(helper), within=2, otherwise="the helper lives on")
    show("the first process is killed", helper_gone_after=took)


async def test_streams_of_a_helper_whose_first_process_is_killed_end_in_an_error(
    fresh: Node, worker: OpenAIWorker
):
    (helper,) = helpers(fresh)
    async with lines(fresh) as by_process:
        (line,) = by_process[helper]
        await register(line, worker, "streamed")
        worker.fail(delay_between=20)
        fields = {"model": "streamed", "messages": [], "stream": True}
        await line.send("POST", "/v1/chat/completions", fields)
        await line.reader.readuntil(b"data: ")
        kill(fresh.actor.process.pid)
        rest = await asyncio.wait_for(line.reader.read(), 5)
        assert b'"code":"answer_broken"' in rest
        assert b"[DONE]" not in rest
    await until(lambda: not alive(helper), within=2, otherwise="the helper lives on")


async def test_a_helper_that_freezes_is_replaced(fresh: Node):
    (helper,) = helpers(fresh)
    os.kill(helper, signal.SIGSTOP)
    took = await until(
        lambda: helpers(fresh) not in ([], [helper]), within=20, otherwise="nobody notices"
    )
    show("a helper freezes", replaced_after=took)
    await _serving(fresh)


async def _once(node: Node, model: str) -> tuple[int, bytes]:
    host, _, port = node.http.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        return await asyncio.wait_for(Line(reader, writer, 0).chat(model), 5)
    finally:
        writer.transport.abort()


async def _serving(node: Node) -> None:
    """Wait until every process accepts connections."""
    deadline = time.monotonic() + 10
    while True:
        try:
            async with lines(node):
                return
        except AssertionError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
