"""RemoteLLM's own server and client, as their package has them: the server behind a node, the client before one."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from node.demo.play import Actor, ProcessGroup
from tests.real.conftest import TALKER, World
from tests.real.programs import SCRIPTS, free_port, interpreter, run
from tests.swarm.client import Client

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PROJECT, MODEL = "remotellm", "neo"
PROMPT = "my name is"


@dataclass(slots=True)
class Neo:
    """The server, which can be killed and started again on the same port."""

    stage: ProcessGroup
    folder: Path
    port: int
    actor: Actor

    @classmethod
    def start(cls, stage: ProcessGroup, folder: Path, port: int) -> "Neo":
        script = str(SCRIPTS / "remotellm_server.py")
        python = str(interpreter("real-texts"))
        alone = ("env", "OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1")
        actor = stage.run("remotellm", *alone, python, script, str(folder), str(port))
        return cls(stage, folder, port, actor)

    @property
    def row(self) -> dict[str, Any]:
        """The row by which the server is registered."""
        fields = self.actor.fields
        headers = {"x-api-key": fields["key"]}
        return {"model": MODEL, "api": fields["url"], "type": 0, "headers": headers}


@pytest.fixture(scope="module")
def neo(world: World) -> Iterator[Neo]:
    folder = world.folder / "remotellm"
    folder.mkdir()
    interpreter("real-texts")
    with ProcessGroup(folder) as stage:
        yield Neo.start(stage, folder, free_port())


@pytest.fixture
async def served(neo: Neo, world: World, client: Client) -> Neo:
    """Register the server at the first node, and wait until the second one lists it."""
    body = {"project": PROJECT, "models": [neo.row]}
    answer = await client.post(world.serving, "/api/v0/ai/project/register", body)
    assert answer.status == 200, answer.body
    await client.listed([world.asked], MODEL)
    return neo


async def test_a_batch_of_prompts_and_its_alternatives_are_completions(
    served: Neo, world: World, client: Client
) -> None:
    body = {"model": MODEL, "prompt": [PROMPT, "once"], "n": 3}
    answer = await client.post(world.asked, "/v1/completions", body)
    assert answer.status == 200, answer.body
    texts = [choice["text"] for choice in orjson.loads(answer.body)["choices"]]
    assert len(texts) == len(set(texts)) == 6
    assert all(texts)


async def test_a_chat_is_answered_whole_and_as_a_stream(
    served: Neo, world: World, client: Client
) -> None:
    assert (await client.chat(world.asked, MODEL)).status == 200
    async with client.stream(world.asked, MODEL) as response:
        assert response.status == 200
        assert (await response.text()).rstrip().endswith("data: [DONE]")


async def test_a_server_that_writes_for_long_and_answers_nothing_else_meanwhile_is_waited_for(
    served: Neo, world: World, client: Client
) -> None:
    answer = await client.post(world.asked, "/v1/completions", {"model": MODEL, "prompt": "slowly"})
    assert answer.status == 200, answer.body
    assert answer.seconds > 15


async def test_a_wrong_key_is_reported_when_the_server_is_registered(
    served: Neo, world: World, client: Client
) -> None:
    row = served.row | {"model": "shut", "headers": {"x-api-key": "no key of its"}}
    body = {"project": "remotellm-shut", "models": [row]}
    answer = await client.post(world.serving, "/api/v0/ai/project/register", body)
    assert b"fault" in answer.body, answer.body
    await client.unregister(world.serving, "remotellm-shut")


def ask(world: World, key: str, *prompts: str) -> dict[str, Any]:
    """Have RemoteLLM's own client ask the second node."""
    host, _, port = world.asked.actor.fields["remotellm"].rpartition(":")
    output = run("real-texts", "remotellm_client.py", host, port, key, *prompts, home=world.folder)
    return dict(json.loads(output.splitlines()[-1]))


async def test_the_client_sees_at_a_node_what_it_sees_at_its_own_server(
    served: Neo, world: World
) -> None:
    result = await asyncio.to_thread(ask, world, f"any@{MODEL}", PROMPT, "once")
    assert result["name"] == MODEL
    assert [len(texts) for texts in result["texts"]] == [2, 2]
    # One token for each letter, and as many next tokens as were asked for.
    assert result["guts"] == [len(PROMPT), 5]


async def test_the_client_is_answered_by_a_worker_of_another_protocol(world: World) -> None:
    result = await asyncio.to_thread(ask, world, f"any@{TALKER}", PROMPT)
    assert result["name"] == TALKER
    assert result["texts"][0][0]
    assert "UNIMPLEMENTED" in result["refused"]


async def test_the_server_is_asked_again_after_a_restart(
    served: Neo, world: World, client: Client
) -> None:
    await asyncio.to_thread(served.stage.kill, served.actor)
    assert (await client.chat(world.asked, MODEL)).status == 503
    again = await asyncio.to_thread(Neo.start, served.stage, served.folder, served.port)
    assert again.actor.fields["key"] == served.actor.fields["key"]
    assert (await client.chat(world.asked, MODEL)).status == 200
