"""Laws of holding requests until a worker is ready: real workers that restart or are still loading."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from registry.members.liveness import Presence
from registry.records import Service
from router.errors import (
    NobodyServes,
    UnknownModel,
    WorkerFailed,
    WorkerLoading,
    WorkerUnreachable,
)
from router.hold import COMES_BACK, LONGEST_PAUSE, MAX_HELD, MAX_HELD_BYTES
from router.settings import RouterSettings
from router.state.circuit import TRIP
from router.state.readiness import RESTART
from tests.router.test_dispatch import FAR, World, several
from tests.router.world import MODEL, QUICK, chat, links, own, until
from tests.workers.openai_worker import OpenAIWorker, running

LLAMA_CPP = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
PATIENT = QUICK.model_copy(update={"ready_timeout": 10.0, "queue": 50})
NOTICED = LONGEST_PAUSE + COMES_BACK + 0.5  # half a second more, since machines that test are busy


@asynccontextmanager
async def router(settings: RouterSettings = PATIENT) -> AsyncIterator[World]:
    async with links(settings) as own_links:
        made = World(own_links)
        yield made
        assert not made.router.in_flight
        assert not made.router._held_requests._queues


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def loading(worker: OpenAIWorker) -> None:
    worker.fail(status=503, refusal=LLAMA_CPP)


async def test_requests_for_a_worker_that_restarts_are_answered_once_it_is_back() -> None:
    port = free_port()
    async with router() as world:
        world.serve(own(f"http://127.0.0.1:{port}"))
        asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(40)]
        await until(lambda: world.router.events["held"] == 40)
        await asyncio.sleep(0.7)
        assert not any(task.done() for task in asking)
        async with running(port=port):
            began = asyncio.get_running_loop().time()
            answers = await asyncio.gather(*asking)
            assert asyncio.get_running_loop().time() - began < NOTICED
    assert all(attempts == 1 for _, attempts in answers)
    assert world.router.events["held_in_vain"] == 0


async def test_requests_wait_too_while_a_proxy_says_that_it_does_not_reach_the_worker() -> None:
    async with router() as world, running() as worker:
        worker.fail(status=503, refusal=b"no healthy upstream")
        world.serve(own(worker.url))
        asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(10)]
        await until(lambda: world.router.events["held"] == 10)
        worker.fail()
        answers = await asyncio.wait_for(asyncio.gather(*asking), NOTICED)
    assert all(attempts == 1 for _, attempts in answers)


async def test_while_a_model_loads_one_request_at_a_time_tries_it() -> None:
    async with router() as world, running() as worker:
        loading(worker)
        world.serve(own(worker.url))
        asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(40)]
        await until(lambda: world.router.events["held"] == 40)
        first = len(worker.received)
        assert first == 40
        await asyncio.sleep(1.0)
        assert 1 <= len(worker.received) - first <= 6
        worker.fail()
        await asyncio.gather(*asking)


async def test_held_requests_are_released_while_the_trial_request_is_still_being_answered() -> None:
    async with router() as world, running() as worker:
        loading(worker)
        world.serve(own(worker.url))
        asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(5)]
        await until(lambda: world.router.events["held"] == 5)
        worker.fail(delay_headers=3.0)
        before = len(worker.received)
        await until(lambda: len(worker.received) == before + 5, within=NOTICED)
        assert not any(task.done() for task in asking)
        await asyncio.gather(*asking)


async def test_when_the_time_is_up_the_reason_is_raised() -> None:
    settings = PATIENT.model_copy(update={"ready_timeout": 0.3})
    async with router(settings) as world, running() as worker:
        loading(worker)
        world.serve(own(worker.url))
        clock = asyncio.get_running_loop().time
        began = clock()
        with pytest.raises(WorkerLoading):
            await world.ask(chat())
        assert 0.3 <= clock() - began < 1.0
        world.serve(own("http://127.0.0.1:1"))
        with pytest.raises(WorkerUnreachable):
            await world.ask(chat())
        world.serve()
        world.offer(FAR, Service("p", MODEL))
        world.presence[FAR] = Presence.LOST
        with pytest.raises(NobodyServes):
            await world.ask(chat())
    assert world.router.events["held_in_vain"] == 3


async def test_a_held_request_is_answered_at_once_when_a_worker_appears() -> None:
    async with router() as world, running() as worker:
        world.offer(FAR, Service("p", MODEL))
        world.presence[FAR] = Presence.LOST
        asking = asyncio.ensure_future(world.ask(chat()))
        await until(lambda: world.router.events["held"] == 1)
        world.serve(own(worker.url))
        assert b'"llama"' in (await asyncio.wait_for(asking, NOTICED))[0]


async def test_a_held_request_fails_when_its_model_becomes_unknown() -> None:
    async with router() as world:
        world.serve(own("http://127.0.0.1:1"))
        asking = asyncio.ensure_future(world.ask(chat()))
        await until(lambda: world.router.events["held"] == 1)
        world.serve()
        with pytest.raises(UnknownModel):
            await asyncio.wait_for(asking, NOTICED)


async def test_a_request_that_a_worker_failed_is_not_held() -> None:
    async with router() as world, several(1) as (bad,):
        bad.fail(status=500)
        world.serve(own("http://127.0.0.1:1", cid="1"), own(bad.url, cid="2"))
        with pytest.raises(WorkerFailed):
            await world.ask(chat())
        world.serve(own(bad.url, cid="1"), own("http://127.0.0.1:1", cid="2"))
        with pytest.raises(WorkerFailed):
            await world.ask(chat())
    assert world.router.events["held"] == 0


async def test_a_caller_that_leaves_gives_up_its_place_and_the_others_wait_on() -> None:
    async with router() as world, running() as worker:
        loading(worker)
        world.serve(own(worker.url))
        asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(4)]
        await until(lambda: world.router.events["held"] == 4)
        [queue] = world.router._held_requests._queues.values()
        for leaving in asking[:3]:
            leaving.cancel()
        await asyncio.wait(asking[:3])
        assert len(queue.requests) == 1
        worker.fail()
        await asyncio.wait_for(asking[3], NOTICED)


@pytest.mark.parametrize("draining", [True, False])
async def test_a_request_that_may_not_be_held_fails_at_once(draining: bool) -> None:
    async with router() as world:
        world.serve(own("http://127.0.0.1:1"))
        world.draining = draining
        request = chat() if draining else replace(chat(), holds=False)
        with pytest.raises((NobodyServes, WorkerUnreachable)):
            await world.ask(request)
    assert world.router.events["held"] == 0


async def test_the_number_of_held_requests_is_limited() -> None:
    async with router() as world, running() as worker:
        loading(worker)
        world.serve(own(worker.url))
        asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(PATIENT.queue + 5)]
        await until(lambda: world.router.events["holds_refused"] == 5)
        assert world.router.events["held"] == PATIENT.queue < MAX_HELD
        refused = [task for task in asking if task.done()]
        assert [type(task.exception()) for task in refused] == [WorkerLoading] * 5
        worker.fail()
        await asyncio.gather(*(set(asking) - set(refused)))


async def test_a_node_that_begins_to_drain_releases_held_requests() -> None:
    async with router() as world, running() as worker:
        loading(worker)
        world.serve(own(worker.url))
        asking = [asyncio.ensure_future(world.ask(chat())) for _ in range(5)]
        await until(lambda: world.router.held_count == 5)
        world.draining = True
        await asyncio.wait(asking, timeout=NOTICED)
        assert [type(task.exception()) for task in asking] == [NobodyServes] * 5


async def test_the_total_size_of_held_bodies_is_limited() -> None:
    async with router() as world, running() as worker:
        loading(worker)
        world.serve(own(worker.url))
        # As if other requests held nearly all of the budget.
        world.router._held_requests._held_bytes += MAX_HELD_BYTES - 1000
        with pytest.raises(WorkerLoading):
            await world.ask(chat(body=b'{"model":"llama","x":"%b"}' % (b"x" * 2000)))
        assert world.router.events["holds_refused"] == 1
        asking = asyncio.ensure_future(world.ask(chat()))
        await until(lambda: world.router.held_count == 1)
        worker.fail()
        await asking
        world.router._held_requests._held_bytes -= MAX_HELD_BYTES - 1000
        assert world.router._held_requests._held_bytes == 0


async def test_a_worker_that_is_away_for_long_is_not_waited_for() -> None:
    settings = PATIENT.model_copy(update={"ready_timeout": 0.2})
    async with router(settings) as world:
        world.serve(own("http://127.0.0.1:1"))
        for now in (0.0, RESTART / 2, RESTART):
            world.now = now
            with pytest.raises(WorkerUnreachable) as failed:
                await world.ask(chat())
            assert failed.value.hopeful is (now < RESTART)
    assert world.router.events["held"] == 2


async def test_a_worker_that_never_answered_a_probe_is_not_waited_for() -> None:
    port = free_port()
    async with router() as world:
        world.serve(worker := own(f"http://127.0.0.1:{port}"))
        assert worker.worker is not None
        assert not await world.router.check_alive(worker.worker)
        assert world.router.health_of(worker.worker) == "never answered"
        with pytest.raises(WorkerUnreachable):
            await world.ask(chat())
        assert world.router.events["held"] == 0
        async with running(port=port):
            assert await world.router.check_alive(worker.worker)
            assert world.router.health_of(worker.worker) == "ok"
        # From now on the worker counts as one that restarts.
        asking = asyncio.ensure_future(world.ask(chat()))
        await until(lambda: world.router.events["held"] == 1)
        async with running(port=port):
            assert b'"llama"' in (await asking)[0]


async def test_while_one_request_tries_a_worker_long_away_the_others_fail_at_once() -> None:
    opened, closed = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.set()
        with suppress(ConnectionError):
            while await reader.read(1000):
                pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        closed.set()

    port = free_port()
    async with router() as world:
        world.serve(worker := own(f"http://127.0.0.1:{port}"))
        assert worker.worker is not None
        await world.router.check_alive(worker.worker)
        for _ in range(TRIP):
            with pytest.raises(WorkerUnreachable):
                await world.ask(chat())
        before = len(world.outcomes)
        for _ in range(10):
            with pytest.raises(NobodyServes) as raised:
                await world.ask(chat())
            assert raised.value.retry_after >= 1
        assert len(world.outcomes) == before
        world.now += 10
        server = await asyncio.start_server(silent, "127.0.0.1", port)
        trial = asyncio.ensure_future(world.ask(chat()))
        await opened.wait()
        with pytest.raises(NobodyServes):
            await world.ask(chat())
        trial.cancel()
        await asyncio.wait([trial])
        await closed.wait()
        server.close()
        await server.wait_closed()
        world.now += 10
        async with running(port=port):
            for _ in range(2):
                assert b'"llama"' in (await world.ask(chat()))[0]
    assert world.router.events["held"] == 0


@pytest.mark.parametrize("presence", [Presence.LOST, Presence.LEFT])
async def test_a_node_that_has_been_away_for_long_is_not_waited_for(presence: Presence) -> None:
    settings = PATIENT.model_copy(update={"ready_timeout": 0.2})
    async with router(settings) as world:
        world.offer(FAR, Service("p", MODEL))
        world.presence[FAR] = presence
        for world.absent in (1.0, RESTART):
            with pytest.raises(NobodyServes):
                await world.ask(chat())
    assert world.router.events["held"] == 1
