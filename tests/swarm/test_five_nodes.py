"""Do five nodes see the same registry? What is registered at one is seen at all; nothing is lost or forgotten."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm
from tests.swarm.waiting import show, until
from tests.workers.openai_worker import running

pytestmark = pytest.mark.swarm

# Nothing listens there: these tests are about the news, not about the answers.
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture(scope="module")
def started(swarm: Swarm) -> list[Node]:
    """Five nodes; a restarted one takes its predecessor's place."""
    return swarm.start_all("node1", "node2", "node3", "node4", "node5")


@pytest.fixture
async def five(started: list[Node], client: Client) -> AsyncIterator[list[Node]]:
    """The five nodes, once each knows all others."""
    await client.met(started)
    yield started
    assert all(node.running for node in started)


async def _agree(client: Client, nodes: Sequence[Node], *, within: float = 5.0) -> float:
    async def equal() -> bool:
        return len({await client.digest(node) for node in nodes}) == 1

    return await until(equal, within=within, otherwise="the registries differ")


async def _each(
    client: Client, nodes: Sequence[Node], model: str, since: float, *, listed: bool
) -> list[float]:
    """Return after how many seconds each node came to list a model, or to list it no more."""

    async def seen(node: Node) -> float:
        async def so() -> bool:
            return (model in await client.models(node)) is listed

        verb = "does not list" if listed else "still lists"
        return await until(so, within=3, since=since, otherwise=f"{node.name} {verb} {model}")

    return await asyncio.gather(*map(seen, nodes))


async def test_a_model_is_listed_everywhere_once_registered_and_nowhere_once_unregistered(
    five: list[Node], client: Client
) -> None:
    for index, node in enumerate(five):
        began = time.monotonic()
        await client.register(node, "news", [f"news-{index}"], NOWHERE)
        appeared = await _each(client, five, f"news-{index}", began, listed=True)
        began = time.monotonic()
        await client.unregister(node, "news")
        vanished = await _each(client, five, f"news-{index}", began, listed=False)
        show(f"registered at {node.name}", listed=max(appeared), gone=max(vanished))
    show("digests equal", after=await _agree(client, five))


async def test_a_burst_of_200_models_at_one_node_is_visible_at_all(
    five: list[Node], client: Client
) -> None:
    names = [f"burst-{number:03}" for number in range(200)]
    began = time.monotonic()

    async def register(name: str) -> None:
        body = {"project": "burst", "model": name, "api": NOWHERE, "type": 0}
        answer = await client.post(five[0], "/api/v0/ai/model/register", body)
        assert answer.status == 200, answer.body

    await asyncio.gather(*map(register, names))
    answered = time.monotonic() - began
    await client.listed(five, *names)
    show("200 models", answered=answered, visible=time.monotonic() - began)
    await _agree(client, five)
    await client.unregister(five[0], "burst")
    await _agree(client, five)
    assert not [n for node in five for n in await client.models(node) if n.startswith("burst")]


async def test_500_models_of_100_projects_registered_at_five_nodes_at_once_are_visible_at_all(
    five: list[Node], client: Client
) -> None:
    projects = {f"many-{p:03}": [f"many-{p:03}-{m}" for m in range(5)] for p in range(100)}
    names = [name for models in projects.values() for name in models]
    began = time.monotonic()
    await asyncio.gather(
        *(
            client.register(five[number % 5], project, models, NOWHERE)
            for number, (project, models) in enumerate(projects.items())
        )
    )
    answered = time.monotonic() - began
    await client.listed(five, *names)
    show("500 models of 100 projects", answered=answered, visible=time.monotonic() - began)
    await _agree(client, five)
    await asyncio.gather(
        *(client.unregister(five[number % 5], project) for number, project in enumerate(projects))
    )


@pytest.mark.parametrize("farewell", ["SIGTERM", "SIGKILL"])
async def test_a_node_that_comes_back_with_its_files_is_the_same_peer_and_registers_nothing_again(
    five: list[Node], client: Client, swarm: Swarm, farewell: str
) -> None:
    before, model = five[4], f"kept-{farewell}"
    await client.register(before, "kept", [model], NOWHERE)
    await client.listed(five, model)
    if farewell == "SIGTERM":
        assert await asyncio.to_thread(swarm.stop, before) == 0
        gone = await _each(client, five[:4], model, time.monotonic(), listed=False)
        show("a node that left", gone=max(gone))
    else:
        await asyncio.to_thread(swarm.kill, before.actor)
    began = time.monotonic()
    five[4] = await asyncio.to_thread(swarm.again, before, known=five[:1])
    ready = time.monotonic() - began
    assert five[4].peer == before.peer
    assert model in await client.models(five[4])

    async def alive_everywhere() -> bool:
        views = [await client.states(node) for node in five[:4]]
        return all(view.get(before.peer) == "alive" for view in views)

    back = await until(alive_everywhere, within=5, otherwise="it is not held for alive")
    back += await client.listed(five, model)
    show(f"a node back after {farewell}", ready=ready, listed_after_ready=back)
    await client.unregister(five[4], "kept")
    await _agree(client, five)


async def test_a_joiner_sees_everything_that_was_there_before_it(
    five: list[Node], client: Client, swarm: Swarm
) -> None:
    names = {node.name: [f"{node.name}-{number}" for number in range(20)] for node in five}
    for node in five:
        await client.register(node, "there", names[node.name], NOWHERE)
    everything = [name for models in names.values() for name in models]
    await client.listed(five, *everything)
    joiner = await asyncio.to_thread(swarm.start, "node6", known=five[2:3])
    took = await client.listed([joiner], *everything)
    agreed = await _agree(client, [*five, joiner])
    show("a joiner", sees_100_models_after_ready=took, digests_equal_after=took + agreed)
    assert await asyncio.to_thread(swarm.stop, joiner) == 0
    for node in five:
        await client.unregister(node, "there")


async def test_two_nodes_that_serve_one_model_share_its_requests(
    five: list[Node], client: Client
) -> None:
    async with running() as one, running() as two:
        for node, worker in ((five[0], one), (five[1], two)):
            await client.register(node, "shared", ["shared"], worker.url)
        await client.listed(five, "shared")
        # A node that said it was busy is avoided until it says otherwise, a moment later.
        answers, shares = [], Counter()
        while len(answers) < 40 or (len(shares) < 2 and len(answers) < 400):
            answers.append(await client.chat(five[2], "shared"))
            shares[answers[-1].node] += 1
        assert {answer.status for answer in answers} == {200}
        assert set(shares) == {five[0].peer, five[1].peer}
        assert sorted(shares.values()) == sorted(len(w.received) for w in (one, two))
        show(f"{len(answers)} requests", shares=" / ".join(map(str, shares.values())))
        for node in five[:2]:
            await client.unregister(node, "shared")
