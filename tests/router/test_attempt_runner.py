"""Laws of requests that are started at once, before their task runs."""

import asyncio
from dataclasses import replace

import pytest

from registry.members.liveness import Presence
from router.answer import Route
from router.attempt import Attempt
from router.errors import WorkerUnreachable
from router.http.reply import Reply
from router.outcome import Outcome
from router.requests import Kind
from tests.router.peer_node import peer_node, way_to
from tests.router.test_dispatch import FAR, NOBODY, World, settings, several, world
from tests.router.world import QUICK, chat, links, own, until, whole
from tests.workers.openai_worker import running

__all__ = ["settings", "world"]


def reply_of(first: Attempt | None) -> Reply:
    assert first is not None
    assert first.reply is not None
    return first.reply


async def test_a_request_sent_at_once_is_answered_in_one_piece(world: World) -> None:
    async with running() as worker:
        world.serve(own(worker.url))
        await world.settle()
        first = world.router.start(chat())
        reply = reply_of(first)
        assert first is not None
        assert sum(world.router.in_flight.values()) == 1
        assert world.router.answer_if_complete(first) is None
        await until(lambda: reply.complete)
        answer = world.router.answer_if_complete(first)
        assert answer is not None
        first.record_answer(answer)
        first.end()
        assert b'"llama"' in answer.first
        assert answer.length == len(answer.first)
    assert [outcome.error for outcome in world.outcomes] == [None, None]


async def test_a_request_sent_at_once_is_retried_like_any_other(world: World) -> None:
    async with several(2) as (bad, good):
        world.serve(own(bad.url, cid="1"), own(good.url, cid="2"))
        await world.settle()
        bad.fail(status=500)
        first = world.router.start(chat())
        reply_of(first)
        before = len(bad.received), len(good.received)
        async with world.router.answer(chat(), first) as routed:
            assert routed.attempts == 2
            assert b'"llama"' in await whole(routed.answer)
        assert (len(bad.received), len(good.received)) == (before[0] + 1, before[1] + 1)
        assert world.router.answer_if_complete(first) is None


class SlowWorld(World):
    """A world in which each attempt takes more than half of the total timeout."""

    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome)
        self.now += 0.6 * self.links.settings.total_timeout


async def test_the_time_of_an_attempt_begun_at_once_counts_against_the_total_timeout() -> None:
    async with links(QUICK) as own_links:
        slow = SlowWorld(own_links)
        slow.serve(*(own(NOBODY, cid=str(number)) for number in range(3)))
        first = slow.router.start(chat())
        with pytest.raises(WorkerUnreachable) as failed:
            async with slow.router.answer(chat(), first):
                pass
    assert failed.value.attempts == len(slow.outcomes) == 2


async def test_closing_the_reply_cancels_a_request_sent_at_once(world: World) -> None:
    async with running() as worker:
        world.serve(own(worker.url))
        await world.settle()
        worker.fail(hang=True)
        first = world.router.start(chat())
        reply = reply_of(first)
        await until(lambda: len(worker.received) == 2)
        assert first is not None
        reply.close()
        first.end()
        await until(lambda: worker.hung_up == 1)


async def test_without_an_idle_connection_the_choice_holds_its_slot(world: World) -> None:
    async with running() as worker:
        world.serve(own(worker.url))
        first = world.router.start(chat())
        assert first is not None
        assert first.reply is None
        # No other request takes its slot before it is sent.
        assert sum(world.router.in_flight.values()) == 1
        async with world.router.answer(chat(), first) as routed:
            assert b'"llama"' in await whole(routed.answer)


async def test_a_request_to_a_node_without_a_proven_way_is_sent_later(world: World) -> None:
    world.offer(FAR, own("").service)
    first = world.router.start(chat())
    assert first is not None
    assert (first.candidate.node, first.reply) == (FAR, None)
    first.end()


async def test_a_request_to_a_node_with_a_proven_way_is_sent_at_once() -> None:
    async with running() as worker, peer_node(own(worker.url)) as far, way_to(far) as links:
        world = World(links)
        world.offer(far.identity.peer, own("").service)
        await world.ask(chat())
        first = world.router.start(chat())
        reply = reply_of(first)
        await until(lambda: reply.complete)
        assert first is not None
        answer = world.router.answer_if_complete(first)
        assert answer is not None
        assert (answer.route, b'"llama"' in answer.first) == (Route.DIRECT, True)
        first.end()


async def test_a_request_sent_to_a_node_that_is_lost_meanwhile_fails() -> None:
    async with running() as worker, peer_node(own(worker.url)) as far, way_to(far) as links:
        world = World(links)
        world.offer(far.identity.peer, own("").service)
        await world.ask(chat())
        worker.fail(hang=True)
        first = world.router.start(chat())
        reply_of(first)
        # A request that is given up before the other node has sent it reaches no worker.
        await until(lambda: len(worker.received) == 2)
        world.presence[far.identity.peer] = Presence.LOST
        with pytest.raises(WorkerUnreachable):
            async with world.router.answer(chat(), first):
                pass
        await until(lambda: worker.hung_up == 1)
        assert not world.router.in_flight


async def test_no_request_is_begun_at_once_that_has_to_wait(world: World) -> None:
    assert world.router.start(chat()) is None
    async with running() as worker:
        world.serve(own(worker.url, capacity=1))
        await world.settle()
        first = world.router.start(chat())
        reply = reply_of(first)
        # The worker's only slot is taken.
        assert world.router.start(chat()) is None
        assert world.router.start(replace(chat(), fallbacks=("other",))) is None
        await until(lambda: reply.complete)
        assert first is not None
        first.end()


async def test_streams_and_other_kinds_are_chosen_and_sent_later(world: World) -> None:
    async with running() as worker:
        world.serve(own(worker.url))
        await world.settle()
        for request in (chat(stream=True), chat(kind=Kind.RERANK)):
            first = world.router.start(request)
            assert first is not None
            assert first.reply is None
            first.end()


async def test_a_slot_held_by_a_begun_request_is_not_given_twice(world: World) -> None:
    async with running() as worker:
        world.serve(own(worker.url, capacity=1))
        first = world.router.start(chat())
        assert first is not None
        assert first.reply is None
        assert world.router.start(chat()) is None
        first.end()


async def test_a_listener_is_called_in_place_of_a_reader(world: World) -> None:
    async with running() as worker:
        world.serve(own(worker.url))
        await world.settle()
        first = world.router.start(chat())
        reply, called = reply_of(first), asyncio.Event()
        reply.listener = called.set
        async with asyncio.timeout(5):
            await called.wait()
        reply.listener = None
        assert first is not None
        async with world.router.answer(chat(), first) as routed:
            assert b'"llama"' in await whole(routed.answer)
