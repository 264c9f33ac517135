"""What if libp2p dies? HTTP keeps serving, and the mesh comes back with the same peer id, at the same address."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest

from tests.swarm.client import Client, Seen
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import percentile, show, until
from tests.workers.openai_worker import running

pytestmark = pytest.mark.swarm

MODEL = "mortal"


@pytest.fixture(scope="module")
def started(swarm: Swarm) -> list[Node]:
    """Two ordinary nodes, and one between them whose libp2p thread can be struck dead."""
    mortal = Start("mortal", module="tests.swarm.mortal_node")
    return swarm.start_all("node1", mortal, "node3")


@pytest.fixture
async def nodes(started: list[Node], client: Client) -> AsyncIterator[list[Node]]:
    """The three, once they have met."""
    await client.met(started)
    yield started
    assert all(node.running for node in started)


async def _ask_until(client: Client, node: Node, model: str, end: asyncio.Event) -> list[Seen]:
    answers: list[Seen] = []
    while not end.is_set():
        answers.append(await client.chat(node, model))
        await asyncio.sleep(0.02)
    return answers


async def test_http_keeps_serving_while_the_mesh_dies_and_comes_back_under_the_same_peer_id(
    nodes: list[Node], client: Client
) -> None:
    one, mortal, three = nodes
    async with running() as worker, running() as distant:
        await client.register(mortal, "down", [MODEL], worker.url)
        await client.register(three, "down", ["distant"], distant.url)
        await client.listed(nodes, MODEL, "distant")
        before = (await client.get(mortal, "/api/v1/status"))["p2p"]
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            own = group.create_task(_ask_until(client, mortal, MODEL, ended))
            others = group.create_task(_ask_until(client, mortal, "distant", ended))
            to_it = group.create_task(_ask_until(client, one, MODEL, ended))
            await asyncio.sleep(0.5)
            os.kill(mortal.actor.process.pid, signal.SIGUSR1)
            struck = time.monotonic()
            noticed = await until(lambda: "the mesh failed" in mortal.log, within=5, otherwise="not noticed")  # fmt: skip

            async def well() -> bool:
                ready = await client.get(mortal, "/readyz")
                return bool(ready["parts"]["mesh"] == "ok")

            back = await until(well, within=10, since=struck, otherwise="the mesh is still down")
            met = back + await client.met(nodes)
            ended.set()
        show("mesh struck dead", noticed_after=noticed, back_after=back, all_met_after=met)
        for label, task in (("its own model", own), ("another's model", others), ("through another", to_it)):  # fmt: skip
            answers = task.result()
            assert {answer.status for answer in answers} == {200}
            seconds = [answer.seconds for answer in answers]
            show(f"{label} meanwhile", requests=str(len(answers)), p50=percentile(seconds, 0.5), max=max(seconds))  # fmt: skip
        after = await client.get(mortal, "/api/v1/status")
        assert (after["peer"], after["p2p"]) == (mortal.peer, before)


async def test_models_registered_while_the_mesh_is_down_reach_all_nodes_and_none_is_forgotten(
    nodes: list[Node], client: Client
) -> None:
    one, mortal, _three = nodes
    os.kill(mortal.actor.process.pid, signal.SIGUSR1)
    began = time.monotonic()
    # Registered at once: the mesh may be up, down or on its way back at that moment.
    await client.register(mortal, "after", ["after-death"], "http://127.0.0.1:9/v1")
    await client.register(one, "after", ["meanwhile"], "http://127.0.0.1:9/v1")
    await client.listed(nodes, MODEL, "after-death", "meanwhile", within=10)
    heard_after = time.monotonic() - began

    async def equal() -> bool:
        return len({await client.digest(node) for node in nodes}) == 1

    agreed = heard_after + await until(equal, within=10, otherwise="the registries differ")
    show("registered while the mesh was dead", heard_after=heard_after, digests_equal_after=agreed)
