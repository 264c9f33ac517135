"""Backends and clients that speak LocalAI's protocol of today: a backend behind a node, a client before one."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest

from node.demo.play import Actor, ProcessGroup
from tests.real.conftest import World
from tests.real.programs import SCRIPTS, free_port
from tests.real.scripts.localai_today import MESSAGES, RPCS, SERVICE, WORDS
from tests.swarm.client import Client, Seen, events_of

# No other environment is needed, so the gate runs this module too.
pytestmark = [pytest.mark.real, pytest.mark.swarm, pytest.mark.timeout(300)]

PROJECT = "localai"
KINDS = {"texts": 0, "others": 0, "vectors": 3, "ranks": 6}
"""Models of one backend, each with weights of its own, and their types."""
SAID = "".join(WORDS)


@dataclass(slots=True)
class Backend:
    """The backend's process, which can be killed and started again on the same port."""

    stage: ProcessGroup
    fails: str
    port: int
    actor: Actor

    @classmethod
    def start(cls, stage: ProcessGroup, fails: str, port: int) -> "Backend":
        script = str(SCRIPTS / "localai_today.py")
        actor = stage.run(f"localai-{fails}", sys.executable, script, str(port), fails)
        return cls(stage, fails, port, actor)

    async def restart(self) -> None:
        """Kill the backend as a power cut would, and start it again without any model."""
        await asyncio.to_thread(self.stage.kill, self.actor)
        self.actor = (await asyncio.to_thread(self.start, self.stage, self.fails, self.port)).actor


@pytest.fixture(scope="module", params=["exception", "status"])
def backend(request: pytest.FixtureRequest, world: World) -> Iterator[Backend]:
    """A backend that fails in the given way without a model."""
    folder: Path = world.folder / f"localai-{request.param}"
    folder.mkdir()
    with ProcessGroup(folder) as stage:
        yield Backend.start(stage, request.param, free_port())


@pytest.fixture
async def served(backend: Backend, world: World, client: Client) -> Backend:
    rows = [
        {
            "model": name,
            "api": backend.actor.fields["url"],
            "type": kind,
            "load": {"Model": f"weights-of-{name}", "FlashAttention": True},
        }
        for name, kind in KINDS.items()
    ]
    body = {"project": PROJECT, "models": rows}
    answer = await client.post(world.serving, "/api/v0/ai/project/register", body)
    assert answer.status == 200, answer.body
    await client.listed([world.asked], *KINDS)
    return backend


def text_of(answer: Seen) -> str:
    assert answer.status == 200, answer.body
    return str(orjson.loads(answer.body)["choices"][0]["message"]["content"])


async def test_texts_vectors_and_ranks_come_from_one_backend_over_a_hop(
    served: Backend, world: World, client: Client
) -> None:
    assert SAID in text_of(await client.chat(world.asked, "texts"))
    async with client.stream(world.asked, "texts") as response:
        *events, done = [event async for event in events_of(response)]
    assert done == "[DONE]"
    deltas = [choice["delta"] for e in events for choice in orjson.loads(e)["choices"]]
    assert SAID in "".join(delta.get("content") or "" for delta in deltas)
    body: dict[str, object] = {"model": "vectors", "input": ["a vine", "a car"]}
    vectors = await client.post(world.asked, "/v1/embeddings", body)
    one, other = (row["embedding"] for row in orjson.loads(vectors.body)["data"])
    assert one != other
    body = {"model": "ranks", "query": "wine", "documents": ["a car", "vine", "x"], "top_n": 1}
    ranks = await client.post(world.asked, "/v1/rerank", body)
    assert [row["index"] for row in orjson.loads(ranks.body)["results"]] == [1]


async def test_two_models_of_one_backend_are_never_taken_for_each_other(
    served: Backend, world: World, client: Client
) -> None:
    names = ("texts", "others") * 4
    answers = await asyncio.gather(*(client.chat(world.asked, name) for name in names))
    for name, answer in zip(names, answers, strict=True):
        assert f"weights-of-{name}" in text_of(answer)


async def test_a_backend_that_restarts_loads_its_model_again(
    served: Backend, world: World, client: Client
) -> None:
    for name in ("texts", "texts", "others"):
        await served.restart()
        assert f"weights-of-{name}" in text_of(await client.chat(world.asked, name))


async def test_the_reason_why_a_model_cannot_be_loaded_is_told(
    served: Backend, world: World, client: Client
) -> None:
    row = {"model": "gone", "api": served.actor.fields["url"], "type": 0}
    row |= {"load": {"Model": "missing"}}
    await client.post(
        world.serving, "/api/v0/ai/project/register", {"project": "gone", "models": [row]}
    )
    await client.listed([world.asked], "gone")
    answer = await client.chat(world.asked, "gone")
    assert answer.status >= 500
    assert b"no weights for missing" in answer.body
    assert "weights-of-texts" in text_of(await client.chat(world.asked, "texts"))
    await client.unregister(world.serving, "gone")


async def call(world: World, name: str, **fields: Any) -> Any:
    """Call the second node's face over gRPC with the messages of today."""
    request_class, reply_class = (MESSAGES[message] for message in RPCS[name])
    async with grpc.aio.insecure_channel(world.asked.actor.fields["localai"]) as channel:
        method = channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=reply_class.FromString,
        )
        return await method(request_class(**fields), metadata=(("x-model", "texts"),), timeout=20)


async def test_a_client_of_today_is_answered(served: Backend, world: World) -> None:
    reply = await call(world, "Predict", Prompt="a vine", Tokens=5)
    assert SAID in reply.message.decode()
    assert (await call(world, "Health")).message == b"OK"


async def test_tools_of_today_pass_from_a_client_to_a_backend(
    served: Backend, world: World
) -> None:
    messages = [{"role": "tool", "content": "sunny", "tool_call_id": "call-1"}]
    tools = '[{"type":"function","function":{"name":"weather"}}]'
    fields = {"Messages": messages, "UseTokenizerTemplate": True, "Tools": tools}
    reply = await call(world, "Predict", **fields, ToolChoice="auto")
    received = orjson.loads(reply.message.decode().removeprefix(SAID))
    assert received["tools"] == tools
    assert received["choice"] == "auto"
    assert received["results"] == ["call-1"]
