"""Laws of registering and unregistering on one node."""

import orjson
import pytest
from pydantic import TypeAdapter

from node.agent import Agent
from registry.errors import LimitReached, StoreUnavailable
from registry.mesh.memory import MemoryMesh, MemoryNet
from registry.records import Ability, ModelType, Service
from registry.service import Registry
from registry.settings import RegistrySettings
from registry.signing import Identity
from registry.store import Put, Space
from registry.store.memory import MemoryStore
from router.worker_description import OfferedModel, WorkerDescription
from router.workers import Worker
from tests.failing_store import FailingStore


def make(store: MemoryStore, *, max_services: int = 100, now: float = 1_000.5) -> Agent:
    identity = Identity(bytes(32))
    registry = Registry(
        identity,
        RegistrySettings(max_services=max_services),
        store=store,
        mesh=MemoryMesh(identity.peer, MemoryNet()),
        epoch=1,
        now=lambda: 0.0,
        random=lambda: 0.5,
    )
    return Agent(registry, store, lambda: now)


def worker(
    model: str,
    *,
    project: str = "p",
    cid: str = "",
    port: int = 1,
    kind: ModelType = ModelType.TEXT,
) -> Worker:
    return Worker(Service(project, model, cid, kind), f"http://127.0.0.1:{port}/v1")


async def test_a_registered_model_is_served_and_announced() -> None:
    agent = make(MemoryStore())
    await agent.register_model(worker("m"))
    assert [w.service.model for w in agent.workers] == ["m"]
    assert agent._registry.own_record.services == (Service("p", "m"),)


async def test_registering_a_project_replaces_its_whole_list_and_no_other() -> None:
    agent = make(MemoryStore())
    await agent.register_model(worker("other", project="q"))
    await agent.register_project("p", [worker("a"), worker("b")])
    await agent.register_project("p", [worker("c")])
    assert {w.service.model for w in agent.workers} == {"other", "c"}
    await agent.register_project("p", [])
    assert {w.service.model for w in agent.workers} == {"other"}


async def test_a_registration_replaces_the_one_with_the_same_project_model_and_cid() -> None:
    agent = make(MemoryStore())
    await agent.register_model(worker("m", port=1))
    await agent.register_model(worker("m", port=2))
    await agent.register_model(worker("m", cid="two", port=3))
    assert {(w.service.cid, w.api[-4]) for w in agent.workers} == {("", "2"), ("two", "3")}


async def test_registered_models_survive_a_restart() -> None:
    store = MemoryStore()
    await make(store).register_project("p", [worker("a"), worker("b")])
    restarted = make(store)
    await restarted.restore()
    assert {w.service.model for w in restarted.workers} == {"a", "b"}


async def test_an_unregistered_model_stays_away_after_a_restart() -> None:
    store = MemoryStore()
    agent = make(store)
    await agent.register_project("p", [worker("a"), worker("b")])
    assert await agent.unregister_model("p", "a", "")
    assert not await agent.unregister_model("p", "a", "")
    assert not await agent.unregister_model("p", "b", "another")
    restarted = make(store)
    await restarted.restore()
    assert {w.service.model for w in restarted.workers} == {"b"}
    assert await restarted.unregister_project("p")
    assert not await restarted.unregister_project("p")


async def test_a_registration_that_cannot_be_saved_changes_nothing() -> None:
    store = FailingStore()
    agent = make(store)
    await agent.register_model(worker("a"))
    store.broken = True
    with pytest.raises(StoreUnavailable):
        await agent.register_model(worker("b"))
    with pytest.raises(StoreUnavailable):
        await agent.unregister_project("p")
    assert {w.service.model for w in agent.workers} == {"a"}
    assert agent._registry.own_record.services == (Service("p", "a"),)


async def test_a_registration_that_does_not_fit_changes_nothing() -> None:
    store = MemoryStore()
    agent = make(store, max_services=2)
    await agent.register_project("p", [worker("a"), worker("b")])
    with pytest.raises(LimitReached):
        await agent.register_model(worker("c"))
    assert {w.service.model for w in agent.workers} == {"a", "b"}
    restarted = make(store)
    await restarted.restore()
    assert len(restarted.workers) == 2


async def test_repeating_a_registration_makes_no_new_version_of_the_record() -> None:
    agent = make(MemoryStore())
    await agent.register_model(worker("m"))
    version = agent._registry.own_record.version
    await agent.register_model(worker("m"))
    assert agent._registry.own_record.version == version


async def test_an_unreadable_worker_in_the_store_is_left_alone() -> None:
    store = MemoryStore()
    await store.write(Put(Space.WORKERS, "x", b'{"from": "the future"}'))
    agent = make(store)
    await agent.restore()
    assert len(agent.workers) == 0
    assert await store.read(Space.WORKERS) == {"x": b'{"from": "the future"}'}


async def test_a_row_stored_by_an_older_version_is_read_with_the_defaults() -> None:
    store = MemoryStore()
    row = b'{"service":{"project":"p","model":"m","cid":"","type":0},"api":"http://w","dialect":"openai_http","capacity":4}'
    await store.write(Put(Space.WORKERS, "x", row))
    agent = make(store)
    await agent.restore()
    assert [*agent.workers] == [Worker(Service("p", "m"), "http://w", capacity=4)]


async def test_all_fields_of_a_worker_survive_a_restart() -> None:
    store = MemoryStore()
    registered = Worker(
        Service("p", "m"), "http://w", load='{"a":true}', headers=(("k", "v"),), template="llama3"
    )
    await make(store).register_model(registered)
    restarted = make(store)
    await restarted.restore()
    assert [*restarted.workers] == [registered]


async def test_a_replica_may_have_several_types_side_by_side() -> None:
    agent = make(store := MemoryStore())
    draw, edit = (worker("m", kind=kind) for kind in (ModelType.IMAGE, ModelType.IMAGE_EDIT))
    await agent.register_model(draw)
    await agent.register_model(edit)
    assert {*agent.workers} == {draw, edit}
    assert len(await store.read(Space.WORKERS)) == 2
    again = make(store)
    await again.restore()
    assert {*again.workers} == {draw, edit}


@pytest.mark.parametrize(
    ("kind", "left"),
    [(None, set()), (ModelType.IMAGE, {ModelType.IMAGE_EDIT}), (ModelType.TEXT, None)],
)
async def test_unregistering_a_replica_removes_all_its_types_unless_one_is_named(
    kind: ModelType | None, left: set[ModelType] | None
) -> None:
    agent = make(MemoryStore())
    both = {ModelType.IMAGE, ModelType.IMAGE_EDIT}
    await agent.register_project("p", [worker("m", kind=one) for one in both])
    assert await agent.unregister_model("p", "m", "", kind) is (left is not None)
    assert {w.service.type for w in agent.workers} == (both if left is None else left)


async def test_rows_of_older_versions_get_abilities_and_are_stored_under_their_new_key() -> None:
    store = MemoryStore()
    old = [
        Worker(Service("p", "chat"), "http://127.0.0.1:1/custom/chat"),
        Worker(Service("p", "base"), "http://127.0.0.1:1/v1"),
    ]
    rows = [(orjson.dumps(w.key[:3]).decode(), TypeAdapter(Worker).dump_json(w)) for w in old]
    await store.write(*(Put(Space.WORKERS, name, row) for name, row in rows))
    agent = make(store)
    await agent.restore()
    alone = {w.service.model: bool(w.service.abilities & Ability.OWN_PATH) for w in agent.workers}
    assert alone == {"chat": True, "base": False}
    assert len(await store.read(Space.WORKERS)) == 2
    await agent.unregister_project("p")
    assert not await store.read(Space.WORKERS)


def created(agent: Agent) -> dict[str, int]:
    return {service.model: service.created for service in agent._registry.own_record.services}


async def test_a_worker_keeps_its_creation_time_until_it_is_unregistered() -> None:
    agent = make(store := MemoryStore(), now=1_000.5)
    await agent.register_model(worker("m"))
    assert created(agent) == {"m": 1_000}
    agent._wall = lambda: 2_000.0
    await agent.register_model(worker("m", port=2))
    description = WorkerDescription(models=(OfferedModel("m", context=4096), OfferedModel("n")))
    await agent.register_project(
        "p", [worker("m", port=3), worker("n")], {worker("m", port=3): description}
    )
    assert created(agent) == {"m": 1_000, "n": 2_000}
    assert agent._registry.own_record.services[0].context == 4096
    again = make(store, now=3_000.0)
    await again.restore()
    assert {w.service.model: w.service.created for w in again.workers} == {"m": 1_000, "n": 2_000}
    await again.unregister_model("p", "m", "")
    await again.register_model(worker("m"))
    assert created(again) == {"m": 3_000, "n": 2_000}
