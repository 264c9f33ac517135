"""State of a node as load balancers, Prometheus and people see it."""

import pytest

from tests.workers import tgi_worker


async def test_a_node_that_runs_is_healthy_and_ready(alone):
    async with alone.http.get("/healthz") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})
    async with alone.http.get("/readyz") as response:
        payload = await response.json()
        assert response.status == 200
        assert payload == {"status": "ok", "parts": {"http": "ok", "mesh": "ok", "store": "ok"}}


async def test_a_node_without_its_mesh_stays_ready_and_names_the_degraded_part(alone):
    alone.context.registry.mesh.fail()
    async with alone.http.get("/readyz") as response:
        payload = await response.json()
        assert response.status == 200
        assert payload["status"] == "degraded"
        assert "restarting" in payload["parts"]["mesh"]
    async with alone.http.get("/metrics") as response:
        assert 'modelvine_up{part="mesh"} 0.0' in await response.text()
    alone.context.registry.mesh.recover()


@pytest.mark.parametrize("prefix", ["", "/debug", "/api/v0/debug"])
async def test_metrics_are_in_prometheus_format_also_on_the_go_programs_paths(alone, prefix):
    path = f"{prefix}/metrics/prometheus" if prefix else "/metrics"
    async with alone.http.get(path) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert 'modelvine_nodes{presence="alive"} 1.0' in await response.text()


async def test_the_status_shows_addresses_counts_and_readiness(alone, worker):
    await alone.register(worker)
    async with alone.http.get("/api/v1/status") as response:
        payload = await response.json()
    assert payload["peer"] == alone.context.peer
    assert payload["http"] == f"http://{alone.context.listening.http}"
    assert payload["p2p"] == [f"/memory/0/p2p/{alone.context.peer}"]
    assert (payload["models"], payload["nodes_alive"], payload["in_flight"]) == (1, 1, 0)
    assert payload["digest"] == alone.context.registry.catalog.digest
    assert payload["ready"]["http"] == "ok"
    assert payload.keys() >= {"version", "uptime", "link", "store", "profile"}


async def test_answers_do_not_reveal_which_http_server_is_used(alone):
    for path in ("/healthz", "/nowhere"):
        async with alone.http.get(path) as response:
            assert response.headers["Server"] == "modelvine"


async def test_metrics_that_workers_report_are_shown(alone):
    async with tgi_worker.running() as tgi:
        tgi.fail(metrics=b"tgi_queue_size 3\n")
        await alone.register(tgi, api=tgi.url.replace("http:", "tgi+http:"))
        async with alone.http.get("/metrics") as response:
            text = await response.text()
    labels = 'cid="",figure="queued",model="tiny",project="p",type="0"'
    assert f"modelvine_worker_tells{{{labels}}} 3.0" in text
