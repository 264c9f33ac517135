"""Does a real language model's stream reach a client of another machine? llama.cpp behind one node, asked at another."""

import os
import re
import signal
import time
from typing import Any

import orjson
import pytest

from node.demo.play import Actor
from tests.swarm.client import Client, events_of
from tests.swarm.nodes import Node, Swarm
from tests.swarm.waiting import percentile, show

pytestmark = pytest.mark.swarm


async def test_words_of_a_real_model_behind_node_1_come_one_by_one_at_node_3(
    three: list[Node], swarm: Swarm, client: Client
) -> None:
    worker = swarm.start_worker("llama", "--port", "0", module="node.demo.worker")
    model, url = worker.fields["model"], worker.ready.split()[1]
    await client.register(three[0], "real", [model], url)
    await client.listed(three, model)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is a grapevine?"}],
        "stream": True,
        "max_tokens": 32,
    }
    began = time.monotonic()
    arrivals: list[float] = []
    events: list[str] = []
    url = f"{three[2].http}/v1/chat/completions"
    async with client.session.post(url, json=body) as response:
        assert response.status == 200
        assert response.headers["x-modelvine-node"] == three[0].peer
        async for event in events_of(response):
            arrivals.append(time.monotonic() - began)
            events.append(event)
    assert events.pop() == "[DONE]"
    chunks = [orjson.loads(data) for data in events]
    assert {chunk["model"] for chunk in chunks} == {model}
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text.strip()
    # Words that were held back until the end would all come at the end.
    assert arrivals[0] < 0.9 * arrivals[-1]
    metrics = await client.metrics(three[0])
    assert re.search(r'modelvine_worker_tells\{[^}]*figure="running"[^}]*\} 0', metrics)
    show(
        f"{worker.fields['source']} through two nodes",
        first=arrivals[0],
        last=arrivals[-1],
        events=str(len(arrivals)),
    )
    await client.unregister(three[0], "real")


async def test_a_real_model_continues_a_stream_where_another_was_killed(
    three: list[Node], swarm: Swarm, client: Client
) -> None:
    """Two processes with one model, each behind a node of its own; the one that answers is killed in mid-stream."""
    workers = [
        swarm.start_worker(name, "--port", "0", "--threads", "1", module="node.demo.worker")
        for name in ("one", "two")
    ]
    model = workers[0].fields["model"]
    for node, worker in zip(three, workers, strict=False):
        await client.register(node, "real", [model], worker.ready.split()[1])
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "List the numbers from one to twenty."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 120,
        "temperature": 0,
    }
    answer = await client.post(three[0], "/v1/chat/completions", body | {"stream": False})
    expected = orjson.loads(answer.body)["choices"][0]["message"]["content"]
    url = f"{three[2].http}/v1/chat/completions"
    events: list[str] = []
    killed = resumed = 0.0
    async with client.session.post(url, json=body) as response:
        serving = [node.peer for node in three].index(response.headers["x-modelvine-node"])
        async for event in events_of(response):
            events.append(event)
            if len(events) == 20:
                os.kill(workers[serving].process.pid, signal.SIGKILL)
                killed = time.monotonic()
            elif killed and not resumed and "seam" in event:
                resumed = time.monotonic()
    assert events.pop() == "[DONE]"
    chunks = [orjson.loads(data) for data in events]
    assert not [chunk for chunk in chunks if "error" in chunk]
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    [seam] = [c["modelvine"]["seam"] for c in chunks if "seam" in c.get("modelvine", {})]
    assert {seam["from"], seam["to"]} == {three[0].peer, three[1].peer}
    assert len({chunk["id"] for chunk in chunks}) == 1
    # At temperature 0 the rest is what the first worker would have said, except where tokens are cut differently.
    assert text[: seam["characters"]] == expected[: seam["characters"]]
    show(
        "killed in mid-stream, another goes on",
        seam_after=resumed - killed,
        characters=f"{seam['characters']} of {len(text)}",
        same_text=str(text == expected),
        usage=str(chunks[-1].get("usage")),
    )
    for node in three[:2]:
        await client.unregister(node, "real")


@pytest.mark.timeout(3_600)
async def test_texts_are_whole_and_the_same_however_often_their_workers_are_killed(
    three: list[Node], swarm: Swarm, client: Client
) -> None:
    """With MODELVINE_KILLS=200 that many workers are killed."""

    def start(name: str) -> Actor:
        arguments = ("--port", "0", "--threads", "1")
        return swarm.start_worker(name, *arguments, module="node.demo.worker")

    workers = [start("first"), start("second")]
    model = workers[0].fields["model"]
    for node, worker in zip(three, workers, strict=False):
        await client.register(node, "killed", [model], worker.ready.split()[1])
    await client.listed(three, model)
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "List the numbers from one to twenty."}],
        "stream": True,
        "max_tokens": 80,
        "temperature": 0,
    }
    answer = await client.post(three[0], "/v1/chat/completions", body | {"stream": False})
    expected = orjson.loads(answer.body)["choices"][0]["message"]["content"]
    pauses: list[float] = []
    for number in range(int(os.environ.get("MODELVINE_KILLS", "5"))):
        events: list[str] = []
        killed = resumed = 0.0
        url = f"{three[2].http}/v1/chat/completions"
        async with client.session.post(url, json=body) as response:
            index = [node.peer for node in three].index(response.headers["x-modelvine-node"])
            async for event in events_of(response):
                if killed and not resumed and "seam" in events[-1]:
                    resumed = time.monotonic()
                events.append(event)
                if len(events) == 5 + number % 40:
                    swarm.kill(workers[index])
                    killed = time.monotonic()
        assert events.pop() == "[DONE]"
        chunks = [orjson.loads(data) for data in events]
        deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == expected
        pauses.append(resumed - killed)
        workers[index] = start(f"after {number + 1}")
        await client.register(three[index], "killed", [model], workers[index].ready.split()[1])
    show(
        "workers killed in mid-stream, each text whole and the same",
        kills=str(len(pauses)),
        pause_p50=percentile(pauses, 0.5),
        pause_p99=percentile(pauses, 0.99),
    )
    for node in three[:2]:
        await client.unregister(node, "killed")
