"""A node survives 10,000 bad HTTP requests: its process stays the same, and honest requests are not affected.

They go to every path of the route table, at the listener for clients and at the one for other nodes, from one seed.
Honest requests go through the node meanwhile.
"""

import asyncio
import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import orjson
import pytest

from node.faces.app import public_routes
from node.secrets.identity import load
from registry.mesh.memory import MemoryNet
from router.peers.tls import certificate_of, client_context
from router.requests import Kind
from tests.hostile.mutations import Route, mutants
from tests.hostile.refused import EVERYWHERE
from tests.hostile.wire import Answer, Listener
from tests.node.faces.assembly import World
from tests.node.faces.assembly import node as small_node
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.test_mesh_fuzz import resident
from tests.swarm.waiting import percentile, show

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(240)]

SEED = 4
TO_CLIENTS = 10_000
TO_NODES = 2_000
AT_ONCE = 24
MAX_GROWTH = 16.0
"""MiB that the node may grow by."""

MAX_LAG = 0.5
"""Seconds by which its event loop may wake too late. The goal is a tenth of it; this machine has other work."""

OWN_FAULTS = frozenset(
    {"internal_error", "router_error", "registry_error", "invalid_frame", "unknown_kind", "not_saved",
     "incomplete_generation"}
)  # fmt: skip
"""Codes of failures of the node itself; that a worker or peer is not there may be reported with another 5xx."""


@dataclass
class Seen:
    """What came of the bad requests, and of the honest ones meanwhile."""

    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[bytes, Answer]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    lag: float = 0.0


@dataclass
class Scene:
    """The node under attack, another that it knows, and the worker of both."""

    victim: Node
    other: Node
    worker: str


@pytest.fixture(scope="module")
def scene(swarm: Swarm) -> Scene:
    victim, other = swarm.start_all("victim", Start("other"))
    return Scene(victim, other, swarm.start_worker("worker").fields["url"])


async def _routes() -> list[Route]:
    """Return the routes for clients, as a node of this process has them."""
    async with small_node(World(MemoryNet())) as running:
        return sorted((route.method, route.path) for route in public_routes(running.context))


async def test_ten_thousand_bad_requests_harm_neither_the_node_nor_honest_requests(
    scene: Scene, client: Client
) -> None:
    victim = scene.victim
    for node, model in ((victim, "tiny"), (scene.other, "far")):
        await client.register(node, "honest", [model], scene.worker)
    await client.listed([victim, scene.other], "tiny", "far")
    public = await _routes()
    assert len(public) > 40
    links = [("POST", f"/v1/{kind.value}") for kind in Kind]
    for_clients, for_nodes = await _listeners(scene, client)
    # What the first thousand leave behind is what any traffic leaves: caches, pools, arenas, one of them the unpacker's.
    await _attack(for_clients, mutants(public, SEED - 1), 1_000, Seen())
    await _attack(for_clients, itertools.repeat(EVERYWHERE["packed: a bomb"][0]), 4, Seen())
    before, began = resident(victim), time.monotonic()
    tally = Seen()
    async with asyncio.TaskGroup() as group:
        honest = [group.create_task(_honest(client, victim, model, tally)) for model in ("tiny", "far")]  # fmt: skip
        await _attack(for_clients, mutants(public, SEED), TO_CLIENTS, tally)
        await _attack(for_nodes, mutants(links, SEED), TO_NODES, tally)
        for task in honest:
            task.cancel()
    waits = sorted(tally.waits)
    show(
        "10,000 bad requests",
        seconds=time.monotonic() - began,
        answered=", ".join(
            f"{status}: {times}" for status, times in sorted(tally.statuses.items())
        ),
        grown_by_mib=f"{resident(victim) - before:.1f}",
        honest=str(len(waits)),
        p50=percentile(waits, 0.5),
        p99=percentile(waits, 0.99),
        longest=waits[-1],
        loop_lag_max=max(tally.lag, await client.loop_lag(victim)),
    )
    assert tally.faults == []
    assert victim.running
    assert not re.search(r"Traceback| ERROR |Error\b", victim.log)
    assert resident(victim) - before <= MAX_GROWTH
    assert max(tally.lag, await client.loop_lag(victim)) <= MAX_LAG


async def _listeners(scene: Scene, client: Client) -> tuple[Listener, Listener]:
    host, _, port = scene.victim.http.removeprefix("http://").rpartition(":")
    link = str((await client.get(scene.victim, "/api/v1/status"))["link"])
    link_host, _, link_port = link.rpartition(":")
    caller, called = load(scene.other.folder), load(scene.victim.folder)
    context = client_context(caller, certificate_of(called))
    return Listener(host, int(port)), Listener(link_host, int(link_port), context, caller.peer)


async def _attack(listener: Listener, bad: Iterator[bytes], times: int, tally: Seen) -> None:
    remaining = itertools.islice(bad, times)

    async def send() -> None:
        for sent in remaining:
            # Many connections wait for more, as they should; this loop does not wait for them.
            reply = await listener.say(sent, within=5.0, patience=0.15)
            tally.statuses.update(str(status) for status in reply.statuses)
            if not reply.answers:
                tally.statuses["closed" if reply.closed else "waiting"] += 1
            tally.faults += [(sent, answer) for answer in _own_faults(reply.answers)]

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(send())


def _own_faults(answers: Sequence[Answer]) -> list[Answer]:
    failed = [answer for answer in answers if answer.status >= 500]
    return [answer for answer in failed if _code(answer) in OWN_FAULTS]


def _code(answer: Answer) -> str:
    try:
        payload = orjson.loads(answer.body)
        # TGI's own form: that no node serves its default model (`unhealthy`) is no failure of ours.
        return str(payload["error_type"] if "error_type" in payload else payload["error"]["code"])
    except (ValueError, KeyError, TypeError):
        # An answer to HEAD has no body; an unforeseen failure is a 500.
        return "internal_error" if answer.status == 500 else ""


async def _honest(client: Client, victim: Node, model: str, tally: Seen) -> None:
    for number in itertools.count():
        began = time.monotonic()
        answer = await client.chat(victim, model)
        assert answer.status == 200, answer
        tally.waits.append(time.monotonic() - began)
        if number % 500 == 0:
            tally.lag = max(tally.lag, await client.loop_lag(victim))
        await asyncio.sleep(0.02)
