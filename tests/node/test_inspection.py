"""Laws of asking workers what they are: when, once for all models of a process, and what becomes of the answer."""

import asyncio
from collections.abc import Awaitable, Callable

from node.agent import Agent
from node.inspection import (
    AGAIN,
    AT_ONCE,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Inspection,
    InspectionSchedule,
    process_of,
)
from registry.records import Ability, Service
from registry.store.memory import MemoryStore
from router.errors import WorkerFailed
from router.worker_description import OfferedModel, WorkerDescription
from router.workers import Worker, Workers
from tests.node.test_agent import make, worker

ONE, TWO = process_of(worker("a")), process_of(worker("b", port=2))
SAID = WorkerDescription(software="s", models=(OfferedModel("x", 4096, Ability.TEXT_IN),))


class World:
    """Workers that give the descriptions in `says`, or none; `asked` lists the addresses that were asked."""

    def __init__(self) -> None:
        self.says: dict[str, WorkerDescription] = {}
        self.asked: list[str] = []
        self.now = 0.0
        self.most = self.under_way = 0
        self.agent: Agent = make(MemoryStore())
        self.inspection = Inspection(self.agent, self, lambda: self.now)

    async def describe(self, worker: Worker) -> WorkerDescription | None:
        self.asked.append(worker.api)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return self.says.get(worker.api)

    async def check_alive(self, worker: Worker) -> bool:
        return worker.api in self.says


class Asking:
    """Workers that answer as `describe` says."""

    def __init__(self, describe: Callable[[Worker], Awaitable[WorkerDescription | None]]) -> None:
        self.describe = describe

    async def check_alive(self, _: Worker) -> bool:
        return True


def test_a_worker_is_asked_at_once_then_rarely_and_with_growing_pauses_while_it_is_silent() -> None:
    turns = InspectionSchedule()
    assert turns.due_processes([ONE, TWO], 0) == [ONE, TWO]
    turns.note_queried(ONE, 0, answered=True)
    pauses, now = [], 0.0
    for _ in range(8):
        turns.note_queried(TWO, now, answered=False)
        pauses.append(turns.seconds_until_due(now))
        assert turns.due_processes([ONE, TWO], now + pauses[-1] - 0.1) == []
        now += pauses[-1]
        assert turns.due_processes([ONE, TWO], now) == [TWO]
    assert (pauses[:2], pauses[-1]) == ([FIRST_PAUSE, 2 * FIRST_PAUSE], LONGEST_PAUSE)
    assert turns.due_processes([ONE], AGAIN) == [ONE]


def test_a_worker_that_is_no_longer_registered_is_forgotten() -> None:
    turns = InspectionSchedule()
    turns.note_queried(ONE, 0, answered=True)
    assert turns.due_processes([], 1) == []
    assert turns.seconds_until_due(1) == AGAIN
    assert turns.due_processes([ONE], 2) == [ONE]


async def test_one_process_is_asked_once_for_all_its_models() -> None:
    world = World()
    api = worker("a").api
    world.says[api] = SAID
    reports = await world.inspection.query_reports([worker("a"), worker("b"), worker("c", port=2)])
    assert sorted(world.asked) == [api, worker("c", port=2).api]
    assert reports == {worker("a"): SAID, worker("b"): SAID}


async def test_at_most_a_fixed_number_of_workers_is_asked_at_once() -> None:
    world = World()
    await world.inspection.query_reports([worker("a", port=n) for n in range(1, 100)])
    assert len(world.asked) == 99
    assert world.most == AT_ONCE


async def test_a_worker_that_never_answers_or_cannot_be_asked_delays_no_other() -> None:
    async def describe(target: Worker) -> WorkerDescription | None:
        if target == worker("slow"):
            await asyncio.Event().wait()
        if target == worker("odd", port=3):
            raise WorkerFailed("needs something that is not installed")
        return SAID

    inspection = Inspection(make(MemoryStore()), Asking(describe), lambda: 0.0, within=0.05)
    reports = await inspection.query_reports(
        [worker("slow"), worker("b", port=2), worker("odd", port=3)]
    )
    assert reports == {worker("b", port=2): SAID}


async def test_each_of_many_workers_that_never_answer_has_its_turn() -> None:
    urls: list[str] = []
    everybody: asyncio.Event = asyncio.Event()

    async def describe(target: Worker) -> None:
        urls.append(target.api)
        if len(set(urls)) == 3 * AT_ONCE:
            everybody.set()
        await asyncio.Event().wait()

    agent = make(MemoryStore())
    inspection = Inspection(agent, Asking(describe), lambda: 0.0, within=0.02)
    many = [worker(str(n), port=n) for n in range(1, 3 * AT_ONCE + 1)]
    await agent.register_project("p", many)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        run = group.create_task(inspection.run())
        await everybody.wait()
        run.cancel()
    assert len(urls) == len(set(urls))


async def test_a_workers_description_is_announced_but_only_its_registration_is_stored() -> None:
    world = World()
    await world.agent.register_model(worker("m"), {worker("m"): SAID})
    service = Service("p", "m", context=4096, abilities=int(Ability.TEXT_IN))
    assert world.agent._registry.own_record.services == (service,)
    assert [w.service for w in world.agent.workers] == [service]
    assert [*world.agent.registered] == [worker("m")]


async def test_a_description_outlives_other_registrations_but_not_a_new_one_of_its_worker() -> None:
    world = World()
    await world.agent.register_model(worker("m"), {worker("m"): SAID})
    await world.agent.register_model(worker("other"))
    assert [s.context for s in world.agent.workers.services()] == [4096, 0]
    await world.agent.register_model(worker("m", port=9))
    assert [s.context for s in world.agent.workers.services()] == [0, 0]
    await world.agent.update_reports({worker("m"): SAID})
    assert [s.context for s in world.agent.workers.services()] == [0, 0]


async def test_a_worker_that_was_down_is_asked_again_and_one_that_changed_is_believed() -> None:
    world, local = World(), worker("m")
    contexts: asyncio.Queue[list[int]] = asyncio.Queue()

    async def note(workers: Workers) -> None:
        await contexts.put([s.context for s in workers.services() if s.model == "m"])

    async def until(context: int) -> None:
        while await contexts.get() != [context]:
            pass

    world.agent.on_change(note)
    await world.agent.register_model(local)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(world.inspection.run())
        await until(0)
        world.now = FIRST_PAUSE
        world.says[local.api] = SAID
        # A registration wakes the task that waits for the next turn, which then looks at the time.
        await world.agent.register_model(worker("x", port=2))
        await until(4096)
        world.now += AGAIN
        world.says[local.api] = WorkerDescription(models=(OfferedModel("x", 2048),))
        await world.agent.register_model(worker("y", port=3))
        await until(2048)
        run.cancel()
