"""Does a real language model's stream reach a client of another machine? llama.cpp behind one node, asked at another."""

import time

import orjson
import pytest

from tests.swarm.client import Client, events_of
from tests.swarm.nodes import Node, Swarm
from tests.swarm.waiting import show

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
    came: list[float] = []
    words: list[str] = []
    url = f"{three[2].http}/v1/chat/completions"
    async with client.session.post(url, json=body) as response:
        assert response.status == 200
        assert response.headers["x-modelvine-node"] == three[0].peer
        async for event in events_of(response):
            came.append(time.monotonic() - began)
            words.append(event)
    assert words.pop() == "[DONE]"
    chunks = [orjson.loads(word) for word in words]
    assert {chunk["model"] for chunk in chunks} == {model}
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text.strip()
    # Words that were held back until the end would all come at the end.
    assert came[0] < 0.9 * came[-1]
    show(
        f"{worker.fields['source']} through two nodes",
        first=came[0],
        last=came[-1],
        events=str(len(came)),
    )
    await client.unregister(three[0], "real")
