"""How the parts of a node work together, tested with real nodes."""

import asyncio
import logging
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from node.config.settings import Settings
from registry.members.liveness import Presence
from registry.mesh.memory import Faults, MemoryNet
from registry.records import Standing
from registry.settings import RegistrySettings
from router.settings import RouterSettings
from tests.node.faces.assembly import Pair, Running, World, node, settings_of, told, until
from tests.workers.openai_worker import running

# With these intervals, only a request makes two nodes compare records within the time of a test.
SELDOM = Settings(
    registry=RegistrySettings(heartbeat=60, lease=600, suspicion=60, sync=300, probe=30),
    router=RouterSettings(policy="round_robin", ready_timeout=0),
)
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_a_catalog_that_a_request_finds_stale_is_corrected_right_away(
    elsewhere: bool,
) -> None:
    world = World(MemoryNet())
    async with running() as worker, node(world, SELDOM) as one, node(world, SELDOM) as two:
        catalog = one.context.registry
        await two.register(worker)
        await until(lambda: "tiny" in catalog.catalog.offers)
        if elsewhere:
            await one.register(worker)
        world.net.faults = Faults(lost=1.0)
        async with two.http.post(
            "/api/v0/ai/model/unregister", json={"project": "p", "model": "tiny"}
        ) as response:
            assert response.status == 200
        assert two.context.peer in {offer.node for offer in catalog.catalog.offers["tiny"]}
        attempts = []
        for _ in range(2 if elsewhere else 1):
            async with one.http.post("/v1/chat/completions", json=ASKED) as response:
                assert response.status == (200 if elsewhere else 503)
                attempts.append(int(response.headers["x-modelvine-attempts"]))
        assert max(attempts) == 2 - (not elsewhere)
        await until(
            lambda: (
                two.context.peer
                not in {offer.node for offer in catalog.catalog.offers.get("tiny", ())}
            )
        )
        if not elsewhere:
            status, _ = await told(one.http.post("/v1/chat/completions", json=ASKED))
            assert status == 404


async def test_a_hedged_request_to_a_slow_worker_is_answered_by_another_node() -> None:
    world, hedging = World(MemoryNet()), settings_of(hedge=True, policy="local_first")
    async with (
        running() as slow,
        running() as quick,
        node(world, hedging) as one,
        node(world, hedging) as two,
    ):
        await one.register(slow)
        await two.register(quick)
        registry = one.context.registry
        await until(lambda: two.context.peer in {o.node for o in registry.catalog.offers["tiny"]})
        await until(lambda: registry.presence(two.context.peer) == "alive")
        for _ in range(30):
            async with one.http.post("/v1/chat/completions", json=ASKED) as response:
                assert response.headers["x-modelvine-node"] == one.context.peer
        slow.fail(hang=True)
        for _ in range(5):
            async with one.http.post("/v1/chat/completions", json=ASKED) as response:
                assert (response.status, response.headers["x-modelvine-attempts"]) == (200, "2")
                assert response.headers["x-modelvine-node"] == two.context.peer
                assert (await response.json())["choices"]
        await until(lambda: slow.hung_up == 5)


async def test_a_request_that_killed_two_workers_is_not_sent_to_a_third_node() -> None:
    world, settings = World(MemoryNet()), settings_of()
    async with AsyncExitStack() as stack:
        asked = await stack.enter_async_context(node(world, settings))
        workers = [await stack.enter_async_context(running()) for _ in range(3)]
        for worker in workers:
            await (await stack.enter_async_context(node(world, settings))).register(worker)
        catalog = asked.context.registry
        await until(lambda: len(catalog.catalog.offers.get("tiny", ())) == 3)
        # Leaves kept-alive connections between the nodes and to the workers.
        for _ in range(20):
            assert (await told(asked.http.post("/v1/chat/completions", json=ASKED)))[0] == 200
        for worker in workers:
            worker.received.clear()
            worker.fail(die_before_headers=True)
        async with asked.http.post("/v1/chat/completions", json=ASKED) as response:
            assert response.status == 502
            assert (await response.json())["error"]["code"] == "poisonous_request"
            assert response.headers["x-modelvine-attempts"] == "2"
            assert response.headers["x-should-retry"] == "false"
        assert sum(len(worker.received) for worker in workers) == 2
        # The death of one worker need not be the fault of the request, which is tried again.
        workers[0].fail()
        workers[1].fail()
        await asyncio.sleep(0)
        assert (await told(asked.http.post("/v1/chat/completions", json=ASKED)))[0] == 200


@pytest.mark.parametrize("unregistered", [True, False])
@pytest.mark.parametrize("standing", [Standing.DRAINING, Standing.LEFT])
async def test_a_model_of_a_node_that_drains_or_has_left_is_known_but_not_served(
    standing: Standing, unregistered: bool
) -> None:
    world = World(MemoryNet())
    async with running() as worker, node(world) as one, node(world) as two:
        await one.register(worker)
        registry = two.context.registry
        await until(lambda: "tiny" in registry.catalog.offers)
        if unregistered:
            row = {"project": "p", "model": "tiny"}
            await told(one.http.post("/api/v0/ai/model/unregister", json=row))
            await until(lambda: "tiny" not in registry.catalog.offers)
        await one.context.registry.set_standing(standing)
        await until(lambda: registry.presence(one.context.peer) == standing.value)
        async with two.http.post("/v1/chat/completions", json=ASKED) as response:
            assert response.status == (404 if unregistered else 503)
            assert ("retry-after" in response.headers) is not unregistered
        async with two.http.get("/v1/models/tiny") as response:
            assert response.status == 404
        await one.context.registry.set_standing(Standing.SERVING)
        await until(lambda: registry.presence(one.context.peer) == "alive")
        status, _ = await told(two.http.post("/v1/chat/completions", json=ASKED))
        assert status == (404 if unregistered else 200)


async def test_a_request_of_a_node_whose_return_is_not_known_yet_waits_until_it_is() -> None:
    world, patient = World(MemoryNet()), settings_of(ready_timeout=10.0)
    async with running() as worker, node(world, patient) as one, node(world, patient) as two:
        await one.register(worker)
        registry = two.context.registry
        await until(lambda: "tiny" in registry.catalog.offers)
        # The first node has not heard yet that the second is back.
        await two.context.registry.set_standing(Standing.LEFT)
        await until(lambda: one.context.registry.presence(two.context.peer) is Presence.LEFT)
        world.net.faults = Faults(lost=1.0)
        await two.context.registry.set_standing(Standing.SERVING)
        status, _ = await told(two.http.post("/v1/chat/completions", json=ASKED))
        assert status == 200


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_request_is_held_while_a_node_says_that_its_worker_may_soon_be_back(
    replicas: int,
) -> None:
    world, patient = World(MemoryNet()), settings_of(ready_timeout=10.0)
    async with AsyncExitStack() as stack:
        asked, *serving = [
            await stack.enter_async_context(node(world, patient)) for _ in range(1 + replicas)
        ]
        ports = []
        for server in serving:
            # The worker answers when it is registered, and is gone before the first request.
            async with running() as worker:
                await server.register(worker)
            ports.append(int(worker.url.rpartition(":")[2]))
        catalog = asked.context.registry
        await until(lambda: len(catalog.catalog.offers.get("tiny", ())) == replicas)
        asking = asyncio.ensure_future(told(asked.http.post("/v1/chat/completions", json=ASKED)))
        await until(lambda: any(n.context.router.held_count for n in (asked, *serving)))
        async with running(port=ports[0]):
            assert (await asking)[0] == 200


@dataclass
class Absent:
    """A worker that is not there."""

    url: str


async def test_a_worker_that_never_answered_delays_no_request_and_registering_it_warns() -> None:
    world, patient = World(MemoryNet()), settings_of(ready_timeout=10.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        absent = Absent(f"http://127.0.0.1:{listener.getsockname()[1]}")
    async with node(world, patient) as one, node(world, patient) as two:
        row = {"project": "p", "model": "tiny", "api": absent.url}
        status, body = await told(one.http.post("/api/v0/ai/model/register", json=row))
        assert (status, body["code"], body["message"]) == (200, 0, "ok")
        assert absent.url in body["warnings"][0]
        project = {"project": "p", "models": [row]}
        status, body = await told(one.http.post("/api/v0/ai/project/register", json=project))
        assert absent.url in body["warnings"][0]
        await until(lambda: "tiny" in two.context.registry.catalog.offers)
        clock = asyncio.get_running_loop().time
        for server in (one, two):
            for _ in range(5):
                began = clock()
                async with server.http.post("/v1/chat/completions", json=ASKED) as response:
                    assert response.status == 503
                    assert "retry-after" in response.headers
                assert clock() - began < 2
        assert (await told(one.http.get("/api/v1/status")))[1]["workers"][0][
            "health"
        ] == "never answered"
        for server, health in ((one, "never answered"), (two, None)):
            _, listed = await told(server.http.get("/api/v1/catalog"))
            services = [s for n in listed["nodes"] for s in n["services"]]
            assert [s.get("health") for s in services] == [health]


@pytest.mark.parametrize("place", ["serving", "asked"])
async def test_a_worker_without_the_model_delays_no_request(place: str) -> None:
    world, patient = World(MemoryNet()), settings_of(ready_timeout=10.0)
    async with running() as worker, node(world, patient) as one, node(world, patient) as two:
        running_at = await Pair(one, two).offers(place, worker)
        worker.fail(status=404, refusal=b'{"error":{"message":"no such model"}}')
        began = asyncio.get_running_loop().time()
        status, body = await told(running_at.http.post("/v1/chat/completions", json=ASKED))
        assert (status, body["error"]["code"]) == (503, "worker_stale")
        assert asyncio.get_running_loop().time() - began < 2


async def test_the_log_names_worker_and_reason_of_a_failed_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as worker, node(World(MemoryNet())) as one:
        await one.register(worker)
        worker.fail(status=500)
        caplog.set_level(logging.INFO)
        async with one.http.post("/v1/chat/completions", json=ASKED) as response:
            request_id = response.headers["x-request-id"]
        worker.fail(die_after=1)
        async with one.http.post("/v1/chat/completions", json=ASKED | {"stream": True}) as response:
            await response.read()
    messages = [r.getMessage() for r in caplog.records if r.name == "modelvine.attempts"]
    assert len(messages) == 2
    assert all(worker.url in line for line in messages)
    assert request_id in messages[0]
    assert "status 500" in messages[0]
    assert "broke off" in messages[1]
    lines = [r.getMessage() for r in caplog.records if r.name == "modelvine.requests"]
    assert f"at={worker.url} why=" in lines[0]
    assert "status 500" in lines[0]
    assert "broke off" in lines[1]


async def test_no_request_fails_while_the_only_worker_is_restarted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    world, patient = World(MemoryNet()), settings_of(ready_timeout=10.0)
    statuses: list[int] = []
    asked = 0
    letting, down = asyncio.Event(), asyncio.Event()
    letting.set()

    async def ask(server: Running) -> None:
        nonlocal asked
        asked += 1
        status, _ = await told(server.http.post("/v1/chat/completions", json=ASKED))
        statuses.append(status)

    async def load(server: Running, group: asyncio.TaskGroup) -> None:
        while not down.is_set() or len(statuses) < 100:
            await letting.wait()
            group.create_task(ask(server))
            await asyncio.sleep(0.02)

    async with (
        node(world, patient) as one,
        node(world, patient) as two,
        asyncio.TaskGroup() as group,
    ):
        async with running(port=port) as worker:
            await one.register(worker)
            await until(lambda: "tiny" in two.context.registry.catalog.offers)
            loads = [group.create_task(load(server, group)) for server in (one, two)]
            await until(lambda: len(statuses) > 20)
            # A request that a worker has begun is not sent again, so the worker stops with none in flight.
            letting.clear()
            await until(lambda: len(statuses) == asked)
        letting.set()
        await until(lambda: one.context.router.held_count >= 20)
        down.set()
        async with running(port=port):
            await asyncio.wait(loads)
            await until(lambda: not one.context.router.held_count)
            await until(lambda: not one.context.router.in_flight)
    assert len(statuses) >= 100
    assert set(statuses) == {200}
