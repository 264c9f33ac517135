"""What does a client notice when a machine fails? Nothing, as long as another one serves the model."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import pytest

from node.demo.play import Actor
from tests.swarm.client import Client, events_of
from tests.swarm.load import Load, Shot, report
from tests.swarm.nodes import Node, Swarm
from tests.swarm.waiting import SLACK, few, show, until

pytestmark = pytest.mark.swarm

# Long enough that some request is always at a worker when something is killed.
THINKING = 0.1

WITHDRAWN = 1.0
"""Seconds until a node that was told to stop gets no more requests."""


@dataclass(slots=True)
class Scene:
    """One node that clients ask, three that serve, and the workers behind the first two of these."""

    swarm: Swarm
    client: Client
    entry: Node
    serving: list[Node]
    workers: list[Actor]
    model: str = ""

    async def revive(self) -> None:
        """Start the nodes and workers again that the last test ended."""
        for index, node in enumerate(self.serving):
            if not node.running:
                again = asyncio.to_thread(self.swarm.again, node, known=[self.entry])
                self.serving[index] = await again
        for index, actor in enumerate(self.workers):
            if actor.process.poll() is not None:
                self.workers[index] = await asyncio.to_thread(_worker, self.swarm, index)
        await self.client.met([self.entry, *self.serving])

    async def serve(self, *, nodes: int) -> None:
        """Have so many nodes serve a model of a new name; return when the entry node knows every replica."""
        self.model = f"model-{uuid4().hex[:8]}"
        for index in range(nodes):
            api = self.workers[index % len(self.workers)].fields["url"]
            await self.client.register(self.serving[index], "failover", [self.model], api)

        async def known() -> bool:
            listed = (await self.client.get(self.entry, "/v1/models"))["data"]
            return any(m["id"] == self.model and m["replicas"] == nodes for m in listed)

        await until(known, within=5, otherwise="not every replica is known")

    @asynccontextmanager
    async def under_load(self, rate: float = 20.0) -> AsyncIterator[Load]:
        """Ask for the model so many times a second within the block."""
        load = Load(self.client, self.entry, self.model, rate=rate)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            try:
                yield load
            finally:
                load.end()


def _worker(swarm: Swarm, index: int) -> Actor:
    return swarm.start_worker(f"worker{index}", "--delay-first", str(THINKING))


@pytest.fixture(scope="module")
def started(swarm: Swarm) -> tuple[list[Node], list[Actor]]:
    """Four nodes and two workers."""
    nodes = swarm.start_all("entry", "serving1", "serving2", "serving3")
    return nodes, [_worker(swarm, index) for index in range(2)]


@pytest.fixture
async def scene(
    swarm: Swarm, started: tuple[list[Node], list[Actor]], client: Client
) -> AsyncIterator[Scene]:
    """The scene, with everything alive."""
    nodes, workers = started
    scene = Scene(swarm, client, nodes[0], nodes[1:], workers)
    await scene.revive()
    yield scene
    nodes[1:] = scene.serving
    for node in scene.serving:
        if node.running:
            await client.unregister(node, "failover")


async def _harm(
    scene: Scene,
    label: str,
    harm: Callable[[], Awaitable[object]],
    *,
    after: float = 4.0,
    rate: float = 20.0,
) -> tuple[list[Shot], float]:
    """Do harm in the middle of a load; return its shots, and when the harm was done."""
    async with scene.under_load(rate) as load:
        await asyncio.sleep(4)
        done = time.monotonic()
        await harm()
        await asyncio.sleep(max(0.0, done + after - time.monotonic()))
    report(label, load.shots, since=done)
    return load.shots, done


async def test_no_request_fails_when_a_serving_node_is_killed(scene: Scene) -> None:
    await scene.serve(nodes=2)
    victim = scene.serving[0]
    shots, killed = await _harm(
        scene, "node killed", lambda: asyncio.to_thread(scene.swarm.kill, victim.actor)
    )
    before = [s for s in shots if s.at < killed and s.seen and s.seen.node == victim.peer]
    after = [s for s in shots if s.at > killed + 1 and s.seen and s.seen.node == victim.peer]
    assert before
    assert not after


async def test_no_request_fails_when_a_worker_is_killed(scene: Scene) -> None:
    await scene.serve(nodes=2)
    victim = scene.workers[0]
    kill = partial(asyncio.to_thread, scene.swarm.kill, victim)
    await _harm(scene, "worker killed", kill, rate=40.0)


async def test_a_worker_that_freezes_is_avoided_after_few_slow_requests_and_asked_again_once_it_thaws(
    scene: Scene,
) -> None:
    await scene.serve(nodes=2)
    victim, frozen = scene.workers[0].process, scene.serving[0].peer
    async with scene.under_load() as load:
        await asyncio.sleep(2)
        victim.send_signal(signal.SIGSTOP)
        since = time.monotonic()
        await asyncio.sleep(12)
        victim.send_signal(signal.SIGCONT)
        thawed = time.monotonic()
        back = await until(
            lambda: any(s.at > thawed and s.seen and s.seen.node == frozen for s in load.shots),
            within=10,
            otherwise="it is left alone though it has thawed",
        )
    report("worker frozen", load.shots, since=since)
    slow = [s for s in load.shots if s.seen is not None and s.seen.seconds > 1]
    show(
        "worker frozen",
        slow=str(len(slow)),
        slowest=max((s.seen.seconds for s in slow if s.seen), default=0.0),
        last_slow_one_sent_after=max((s.at - since for s in slow), default=0.0),
        back_after=back,
    )
    assert few(len(slow), len([s for s in load.shots if since < s.at < thawed]))


async def test_no_request_fails_when_a_serving_node_is_told_to_stop(scene: Scene) -> None:
    await scene.serve(nodes=2)
    leaving = scene.serving[0]
    codes: list[int] = []

    async def stop() -> None:
        codes.append(await asyncio.to_thread(scene.swarm.stop, leaving))

    shots, told_at = await _harm(scene, "node told to stop", stop)
    last = max(s.at for s in shots if s.seen and s.seen.node == leaving.peer)
    show("node told to stop", last_request_it_answered_was_sent_after=last - told_at)
    assert codes == [0]
    assert last < told_at + SLACK * WITHDRAWN

    async def out_of_view() -> bool:
        return leaving.peer not in await scene.client.states(scene.entry)

    waited = await until(out_of_view, within=6, otherwise="it is still in the live view")
    show("node told to stop", still_in_the_live_view_when_the_load_ended_for=waited)


@pytest.mark.parametrize("rate", [1.0, 10.0])
async def test_no_request_fails_when_the_only_serving_node_is_restarted(
    scene: Scene, rate: float
) -> None:
    await scene.serve(nodes=1)

    async def restart() -> None:
        assert await asyncio.to_thread(scene.swarm.stop, scene.serving[0]) == 0
        again = asyncio.to_thread(scene.swarm.again, scene.serving[0], known=[scene.entry])
        scene.serving[0] = await again

    shots, told_at = await _harm(scene, "only node restarted", restart, after=6, rate=rate)
    show(
        "only node restarted",
        longest=max(s.seen.seconds for s in shots if s.seen and s.at > told_at),
    )


async def test_a_stream_whose_node_is_killed_ends_in_an_error_event_without_done(
    scene: Scene,
) -> None:
    await scene.serve(nodes=1)
    slow = await asyncio.to_thread(scene.swarm.start_worker, "slow", "--delay-between", "0.3")
    await scene.client.register(scene.serving[0], "failover", [scene.model], slow.fields["url"])
    events: list[str] = []
    killed = 0.0
    async with scene.client.stream(scene.entry, scene.model) as response:
        assert response.status == 200
        async for event in events_of(response):
            events.append(event)
            if len(events) == 3:
                await asyncio.to_thread(scene.swarm.kill, scene.serving[0].actor)
                killed = time.monotonic()
    show("killed in mid-stream", told_after=time.monotonic() - killed)
    assert '"error"' in events[-1]
    assert "[DONE]" not in events
    answer = await scene.client.chat(scene.entry, scene.model)
    assert answer.status == 503
    show("asked again, nobody left", answered_after=answer.seconds)
    await asyncio.to_thread(scene.swarm.kill, slow)


async def test_no_request_fails_when_all_serving_nodes_are_restarted_one_after_the_other(
    scene: Scene,
) -> None:
    await scene.serve(nodes=3)
    codes: list[int] = []

    async def restart_all() -> None:
        for index, node in enumerate(list(scene.serving)):
            codes.append(await asyncio.to_thread(scene.swarm.stop, node))
            again = asyncio.to_thread(scene.swarm.again, node, known=[scene.entry])
            scene.serving[index] = await again
            await scene.client.met([scene.entry, *scene.serving])

    shots, began = await _harm(scene, "rolling restart", restart_all)
    show("rolling restart", took=max(s.at for s in shots) - began)
    assert codes == [0, 0, 0]
    answered = {s.seen.node for s in shots if s.seen}
    assert answered == {node.peer for node in scene.serving}
