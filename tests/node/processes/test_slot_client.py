"""Slots lent over a channel: two routers and their messages, in a small world without processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

from node.processes import session as module
from node.processes.protocol import (
    Frames,
    Relayed,
    SlotAsked,
    SlotCancelled,
    SlotFreed,
    SlotGranted,
    SlotRefused,
    SlotUsed,
    ToFirst,
    ToHelper,
    encode_frame,
    read_by_first,
    read_by_helper,
)
from node.processes.session import HelperSlots
from node.processes.world import SlotClient
from registry.records import PeerId, Service
from registry.task_group import BackgroundTasks
from router.errors import NobodyServes, NoCapacity
from router.ledger import KEPT_FREE
from tests.router.test_dispatch import World
from tests.router.world import MODEL, QUICK, chat, links, own, until
from tests.workers.openai_worker import OpenAIWorker

SERVICE = Service("p", MODEL)


class Pair:
    """A lending and a borrowing process; their messages arrive at the loop's next turn."""

    def __init__(self, one, two) -> None:
        self.lending = World(one)
        self.client = SlotClient(SimpleNamespace(send=self._up))
        self.asking = World(two, lender=self.client)
        self.crew = BackgroundTasks()
        self.slots = HelperSlots(
            self.lending.router.lent_slots, self.crew, SimpleNamespace(send=self._down)
        )
        self.said: list[ToFirst] = []

    def serve(self, *candidates) -> None:
        for world in (self.lending, self.asking):
            world.serve(*candidates)

    def _up(self, message: ToFirst) -> None:
        (frame,) = Frames().split(encode_frame(message))
        message = read_by_first(frame)
        self.said.append(message)
        if isinstance(message, SlotAsked | SlotCancelled | SlotFreed | SlotUsed):
            asyncio.get_running_loop().call_soon(self.slots.handle, message)

    def _down(self, message: ToHelper) -> None:
        (frame,) = Frames().split(encode_frame(message))
        message = read_by_helper(frame)
        assert isinstance(message, SlotGranted | SlotRefused | Relayed)
        asyncio.get_running_loop().call_soon(self.client.handle, message)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as closing:
        one, two = [await closing.enter_async_context(links(QUICK.model_copy(update={"queue": 20}))) for _ in "ab"]  # fmt: skip
        made = Pair(one, two)
        yield made
        await made.crew.cancel_all()
        made.slots.end()
        assert not made.lending.router.in_flight
        assert not made.asking.router.in_flight


async def test_many_requests_of_both_processes_share_one_slot(
    pair: Pair, worker: OpenAIWorker
) -> None:
    pair.serve(own(worker.url, capacity=1))
    worlds = [pair.lending, pair.asking] * 8
    answers = await asyncio.gather(*(world.ask(chat()) for world in worlds))
    assert len(answers) == len(worker.received) == 16
    assert worker.most == 1


async def test_background_requests_leave_a_slot_free_after_a_foreground_answer_of_either_process(
    pair: Pair, worker: OpenAIWorker
) -> None:
    pair.serve(own(worker.url, capacity=3))
    worker.fail(delay_first=0.05)
    for answered in (pair.lending, pair.asking):
        await answered.ask(chat())
        worker.most = 0
        lines = [replace(chat(), background=True) for _ in range(6)]
        worlds = [pair.lending, pair.asking] * 3
        await asyncio.gather(*(w.ask(line) for w, line in zip(worlds, lines, strict=True)))
        assert worker.most == 2
        pair.lending.now += KEPT_FREE
        pair.asking.now += KEPT_FREE
    await asyncio.gather(*(w.ask(line) for w, line in zip(worlds, lines, strict=True)))
    assert worker.most == 3


async def test_a_slot_that_is_kept_free_is_lent_at_once_to_a_foreground_request(
    pair: Pair, worker: OpenAIWorker
) -> None:
    pair.serve(own(worker.url, capacity=2))
    await pair.asking.ask(chat())
    async with pair.asking.router.answer(replace(chat(), background=True)):
        line = asyncio.ensure_future(pair.asking.ask(replace(chat(), background=True)))
        await until(
            lambda: any(isinstance(message, SlotAsked) and message.waiting for message in pair.said)
        )
        assert (await pair.asking.ask(chat()))[1] == 1
        assert not line.done()
    await line


async def test_callers_that_leave_at_any_moment_leak_no_slot(
    pair: Pair, worker: OpenAIWorker
) -> None:
    pair.serve(own(worker.url, capacity=1))
    worker.fail(delay_first=0.01)
    for turns in range(12):
        asking = [asyncio.ensure_future(pair.asking.ask(chat())) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in asking[:2]:
            task.cancel()
        await asyncio.wait(asking)
        assert asking[2].result()
    await until(lambda: not pair.lending.router.in_flight)


async def test_a_full_queue_says_when_to_retry(pair: Pair, worker: OpenAIWorker) -> None:
    pair.serve(own(worker.url, capacity=1))
    worker.fail(hang=True)
    asking = [asyncio.ensure_future(pair.asking.ask(chat())) for _ in range(21)]
    await until(lambda: pair.lending.router.lent_slots and len(pair.said) >= 41)
    await until(lambda: len(worker.received) == 1)
    with pytest.raises(NoCapacity, match="20 requests wait") as refused:
        await pair.asking.ask(chat())
    assert refused.value.retry_after >= 1.0
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    await until(lambda: not pair.lending.router.in_flight)


async def test_slots_that_a_dead_helper_held_are_free_again(
    pair: Pair, worker: OpenAIWorker
) -> None:
    pair.serve(own(worker.url, capacity=2))
    pair.slots.handle(SlotAsked(1, (SERVICE,)))
    pair.slots.handle(SlotAsked(2, (SERVICE,)))
    pair.slots.handle(SlotAsked(3, (SERVICE,), waiting=True, model=MODEL))
    await asyncio.sleep(0)
    await pair.crew.cancel_all()
    pair.slots.end()
    assert not pair.lending.router.in_flight


async def test_giving_back_a_slot_that_was_never_lent_changes_nothing(
    pair: Pair, worker: OpenAIWorker
) -> None:
    pair.serve(own(worker.url, capacity=1))
    async with pair.lending.router.answer(chat()):
        pair.slots.handle(SlotFreed(SERVICE))
        assert pair.lending.router.in_flight.total() == 1


async def test_a_slot_of_an_unregistered_worker_is_refused_as_not_served(pair: Pair) -> None:
    pair.asking.serve(own("http://127.0.0.1:1", capacity=1))
    with pytest.raises(NobodyServes):
        await pair.asking.ask(chat())


async def test_more_waiting_requests_than_the_bound_allows_are_refused(
    pair: Pair, worker: OpenAIWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 0)
    pair.serve(own(worker.url, capacity=1))
    async with pair.lending.router.answer(chat()):
        with pytest.raises(NoCapacity, match="too many"):
            await pair.asking.ask(chat())


async def test_a_helper_asks_whether_a_peer_is_relayed(pair: Pair) -> None:
    task = asyncio.ensure_future(pair.client.connects_through_relay(PeerId("them")))
    await until(lambda: bool(pair.said))
    pair.client.handle(Relayed(pair.said[0].number, relayed=True))
    assert await task
