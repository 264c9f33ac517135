"""Information and metrics of a model, from the replicas that the router knows."""

import pytest

from node.faces.tgi import info, metrics, served
from router.errors import UnknownModel
from router.worker_description import WorkerDescription
from tests.node.faces.assembly import until


async def test_replicas_of_all_nodes_are_combined(mesh, worker):
    await mesh.one.register(worker, context=2048, capacity=2)
    await mesh.two.register(worker, context=4096, capacity=3)
    context = mesh.one.context
    await until(lambda: len(served(context, "r", "p/tiny").now) == 2)
    found = served(context, "r", "p/tiny")
    assert info(context, "p/tiny", found, WorkerDescription())["max_total_tokens"] == 4096
    assert metrics(context, found).count(b"# TYPE") == 2


async def test_a_draining_replica_is_described_but_serves_nothing(mesh, worker):
    await mesh.one.register(worker, context=2048)
    await mesh.knows(mesh.two, "p/tiny")
    async with mesh.one.http.post("/api/v1/drain") as response:
        assert response.status == 200
    context = mesh.two.context
    await until(lambda: not served(context, "r", "p/tiny").now)
    found = served(context, "r", "p/tiny")
    assert info(context, "p/tiny", found, WorkerDescription())["max_total_tokens"] == 2048


async def test_a_model_of_another_type_is_unknown(alone, worker):
    await alone.register(worker, type=1)
    found = served(alone.context, "r", "p/tiny")
    assert found.now == ()
    with pytest.raises(UnknownModel):
        info(alone.context, "p/tiny", found, WorkerDescription())
