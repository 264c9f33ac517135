"""Load of replicas as it is shown: measured at their node, reported to every node, with its age."""

import asyncio
import time
from contextlib import asynccontextmanager

import orjson

from registry.records import Standing
from tests.node.faces.assembly import until

PATH = "/v1/chat/completions"
CHAT = {"model": "tiny", "messages": []}


@asynccontextmanager
async def asking(node, **fields):
    """Keep a request in flight whose answer does not end."""
    async with node.http.post(PATH, json=CHAT | {"stream": True} | fields) as response:
        await response.content.readuntil(b"\n\n")
        yield response
        response.close()


async def told(node, path):
    async with node.http.get(path) as response:
        return orjson.loads(await response.read())


async def candidate(node, of):
    body = await told(node, "/api/v1/route?model=tiny")
    return next(c for c in body["candidates"] if c["node"] == of.context.peer)


async def test_another_node_shows_how_busy_a_replica_is_and_since_when(mesh, worker):
    worker.fail(delay_first=0.01, delay_between=60)
    await mesh.one.register(worker, capacity=8)
    await mesh.knows(mesh.two, "tiny")
    assert (await candidate(mesh.two, mesh.one))["load"] is None
    peer = mesh.one.context.peer
    reports = mesh.two.context.router.reports
    async with asking(mesh.one), asking(mesh.one):
        await until(
            lambda: [r.load.in_flight for _, r in reports.of_node(peer, time.monotonic())] == [2]
        )
        found = await candidate(mesh.two, mesh.one)
        assert (found["load"]["in_flight"], found["load"]["slots"]) == (2, 8)
        assert found["load"]["first_byte"] > 0
        assert 0 <= found["load"]["age"] < 5
        assert 1 < found["score"] <= 2
        assert "2 from others" in found["why"]
        rows = {n["node"]: n["load"] for n in (await told(mesh.two, "/api/v1/nodes"))["nodes"]}
        assert [row["model"] for row in rows.pop(peer)] == ["tiny"]
        assert not any(rows.values())
        [row] = (await told(mesh.one, "/api/v1/status"))["load"]
        assert (row["in_flight"], row["age"]) == (2, 0.0)
    await until(
        lambda: [r.load.in_flight for _, r in reports.of_node(peer, time.monotonic())] == [0]
    )
    assert (await told(mesh.one, "/api/v1/status"))["load"] == []
    text = await (await mesh.two.http.get("/metrics")).text()
    assert 'modelvine_registry_events_total{event="loads_in"}' in text


async def test_a_peers_answer_carries_its_load_which_the_caller_does_not_see(mesh, worker):
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    async with mesh.two.http.post(PATH, json=CHAT) as response:
        assert response.status == 200
        assert "x-modelvine-load" not in response.headers
    router = mesh.two.context.router
    [(_, report)] = router.reports.of_node(mesh.one.context.peer, time.monotonic())
    assert (report.load.in_flight, report.ours, report.requests_of_others) == (1, 1, 0)
    assert report.load.first is not None
    peer = mesh.one.context.peer
    rows = {n["node"]: n["load"] for n in (await told(mesh.two, "/api/v1/nodes"))["nodes"]}
    assert [row["in_flight"] for row in rows[peer]] == [0]
    fields = {"project": "p", "model": "tiny"}
    async with mesh.one.http.post("/api/v0/ai/model/unregister", json=fields) as response:
        assert response.status == 200
    await until(lambda: not mesh.two.context.registry.catalog.held[peer].record.services)
    rows = {n["node"]: n["load"] for n in (await told(mesh.two, "/api/v1/nodes"))["nodes"]}
    assert rows[peer] == []


async def test_service_times_are_sent_to_nodes_and_shown_in_the_api(mesh, worker):
    worker.fail(delay_first=0.05)
    await mesh.one.register(worker, capacity=4)
    await mesh.knows(mesh.two, "tiny")
    for node in (mesh.one, mesh.two):
        assert (await candidate(node, mesh.one))["figures"] == {}
    # A node learns from each answer, and the next answer carries what it has learnt.
    for seconds in (0.05, 0.15, 0.05):
        # No two alike: else one may take exactly as long as expected, to the last digit that is sent.
        worker.fail(delay_first=seconds)
        async with mesh.two.http.post(PATH, json=CHAT) as response:
            assert response.status == 200
            assert "x-modelvine-service-time" not in response.headers
            await response.read()
    for node in (mesh.one, mesh.two):
        figures = (await candidate(node, mesh.one))["figures"]
        assert 0.03 < figures["service_seconds"] == figures["expected_seconds"] < 1
        assert figures["error"] > 0


async def test_wanted_times_to_first_token_met_and_missed_are_counted(served, worker):
    worker.fail(delay_first=0.05)
    for milliseconds in ("9000", "1"):
        headers = {"x-modelvine-ttft-ms": milliseconds}
        body = CHAT | {"stream": True}
        async with served.http.post(PATH, json=body, headers=headers) as response:
            assert response.status == 200
            await response.read()
    events = served.context.router.events
    assert (events["aims_met"], events["aims_missed"]) == (1, 1)
    for nonsense in ("0", "soon", "-1", "1.5", "1" * 8):
        headers = {"x-modelvine-ttft-ms": nonsense}
        async with served.http.post(PATH, json=CHAT, headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "x-modelvine-ttft-ms"


async def test_only_a_node_may_set_the_patience_of_a_request(served, worker):
    worker.fail(delay_first=0.01, delay_between=60)
    await served.register(worker, capacity=1)
    patient = {"x-modelvine-patience": "0.001"}
    async with asking(served):
        call = asyncio.ensure_future(served.http.post(PATH, json=CHAT, headers=patient))
        done, _ = await asyncio.wait([call], timeout=0.2)
        assert not done
        call.cancel()
        hop = patient | {"x-modelvine-hop": "x"}
        async with served.http.post(PATH, json=CHAT, headers=hop) as response:
            assert response.status == 429
        hop["x-modelvine-patience"] = "nonsense"
        async with served.http.post(PATH, json=CHAT, headers=hop) as response:
            assert response.status == 429


async def test_a_caller_that_poses_as_a_node_is_not_told_the_load(served):
    async with served.http.post(PATH, json=CHAT, headers={"x-modelvine-hop": "x"}) as response:
        assert response.status == 200
        assert "x-modelvine-load" not in response.headers


async def test_tokens_per_second_are_measured_from_the_events_of_a_stream(served, worker):
    worker.fail(delay_between=0.05)
    async with served.http.post(PATH, json=CHAT | {"stream": True}) as response:
        async with asyncio.timeout(5):
            rates = []
            while not response.content.at_eof():
                await response.content.readany()
                rates += [load.rate for load in served.context.router.busy_loads().values()]
    assert 5 < max(rates) < 40


async def test_reports_of_a_node_are_forgotten_when_it_leaves(mesh, worker):
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")
    async with mesh.two.http.post(PATH, json=CHAT) as response:
        await response.read()
    router, one = mesh.two.context.router, mesh.one.context
    assert [*router.reports.of_node(one.peer, time.monotonic())]
    await one.registry.set_standing(Standing.LEFT)
    await until(lambda: not [*router.reports.of_node(one.peer, time.monotonic())])


async def test_a_learned_slot_count_is_shown_as_learned_and_sent_to_other_nodes(mesh, worker):
    worker.fail(slots=2, delay_headers=0.05)
    await mesh.one.register(worker)
    await mesh.knows(mesh.two, "tiny")

    async def ask():
        async with mesh.one.http.post(PATH, json=CHAT) as response:
            await response.read()
            return response.status

    assert await asyncio.gather(*(ask() for _ in range(8))) == [200] * 8
    found = await candidate(mesh.one, mesh.one)
    assert (found["load"]["slots"], found["load"]["learned"]) == (2, True)
    async with mesh.two.http.post(PATH, json=CHAT) as response:
        await response.read()
    assert (await candidate(mesh.two, mesh.one))["load"]["slots"] == 2
