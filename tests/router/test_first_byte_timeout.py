"""Waiting for a first byte: the wait makes the node probe, and ends if the peer is silent and another may answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from registry.members.liveness import Presence
from registry.records import PeerId, Service
from router.answer import NOTHING, Answer, Route
from router.errors import WorkerUnreachable
from router.first_byte_timeout import CUT_OFF_CHECKS, PROBE_AFTER, FirstByteWaits
from router.select.candidates import Candidate
from router.state.readiness import is_not_ready
from tests.router.peer_node import peer_node, way_to
from tests.router.test_dispatch import World
from tests.router.world import MODEL, chat, own, until
from tests.workers.openai_worker import running

FAR, OTHER = (Candidate(PeerId(name), Service("p", MODEL)) for name in ("far", "other"))
ANSWER = Answer(200, "text/plain", b"x", NOTHING, Route.DIRECT)


class Party:
    """Waits for an answer that comes when `answered` is set."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.looked: list[Candidate] = []
        self.silent: set[Candidate] = set()
        self.trusted = {OTHER}
        self.cut_off: set[Candidate] = set()
        self.waits = FirstByteWaits(self)

    def request_probe(self, candidate: Candidate) -> None:
        self.looked.append(candidate)

    def is_silent(self, candidate: Candidate) -> bool:
        return candidate in self.silent

    def is_trusted(self, candidate: Candidate) -> bool:
        return candidate in self.trusted

    def is_cut_off(self, candidate: Candidate) -> bool:
        return candidate in self.cut_off

    async def wait(
        self, *others: Candidate, candidate: Candidate = FAR, elsewhere: bool = False
    ) -> Answer:
        @asynccontextmanager
        async def answering() -> AsyncIterator[Answer]:
            await self.answered.wait()
            yield ANSWER

        watched = self.waits.watch(candidate, others, answering(), elsewhere=elsewhere)
        async with watched as answer:
            return answer

    def look(self, *, times: int = 2) -> None:
        for _ in range(times):
            self.waits.check_waits(asyncio.get_running_loop().time() + PROBE_AFTER)


@pytest.fixture
async def party() -> Party:
    return Party()


async def begun(waiting: "asyncio.Task[Answer]") -> "asyncio.Task[Answer]":
    await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


async def test_only_a_request_that_has_waited_for_some_time_causes_a_probe(
    party: Party,
) -> None:
    waiting = await begun(asyncio.ensure_future(party.wait(OTHER)))
    party.waits.check_waits(asyncio.get_running_loop().time())
    assert party.looked == []
    party.look(times=1)
    assert party.looked == [FAR]
    party.answered.set()
    assert await waiting is ANSWER
    party.look()
    assert len(party.looked) == 1


async def test_a_peer_silent_at_two_looks_is_given_up_if_another_is_trusted(
    party: Party,
) -> None:
    waiting = await begun(asyncio.ensure_future(party.wait(OTHER)))
    party.silent.add(FAR)
    party.look(times=1)
    await begun(waiting)
    party.look(times=1)
    with pytest.raises(WorkerUnreachable, match="stopped answering"):
        await waiting


@pytest.mark.parametrize("others", [(), (FAR,)])
async def test_a_silent_peer_is_waited_for_if_no_other_is_trusted(
    party: Party, others: tuple[Candidate, ...]
) -> None:
    waiting = await begun(asyncio.ensure_future(party.wait(*others)))
    party.silent.add(FAR)
    party.look(times=5)
    await begun(waiting)
    party.answered.set()
    assert await waiting is ANSWER


async def test_a_peer_that_is_alive_but_cut_off_is_given_up_to_be_reached_another_way(
    party: Party,
) -> None:
    waiting = await begun(asyncio.ensure_future(party.wait()))
    party.silent.add(FAR)
    party.cut_off.add(FAR)
    party.look(times=CUT_OFF_CHECKS - 1)
    await begun(waiting)
    party.look(times=1)
    with pytest.raises(WorkerUnreachable) as caught:
        await waiting
    assert is_not_ready(caught.value)


async def test_a_long_wait_for_a_node_that_answers_some_probes_goes_on(party: Party) -> None:
    waiting = await begun(asyncio.ensure_future(party.wait(OTHER)))
    for lost in (True, False) * 20:
        (party.silent.add if lost else party.silent.discard)(FAR)
        party.look(times=1)
    await begun(waiting)
    party.answered.set()
    assert await waiting is ANSWER


async def test_a_caller_that_leaves_is_not_mistaken_for_silence(party: Party) -> None:
    waiting = await begun(asyncio.ensure_future(party.wait(OTHER)))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    party.silent.add(FAR)
    party.look()


async def test_a_stopped_own_worker_is_given_up_only_by_requests_that_may_go_elsewhere(
    party: Party,
) -> None:
    candidate = own("http://127.0.0.1:1")
    waiting = await begun(asyncio.ensure_future(party.wait(candidate=candidate)))
    party.silent.add(candidate)
    party.look(times=3)
    await begun(waiting)
    elsewhere = asyncio.ensure_future(party.wait(candidate=candidate, elsewhere=True))
    await asyncio.sleep(0)
    party.look(times=2)
    with pytest.raises(WorkerUnreachable):
        await elsewhere
    party.answered.set()
    assert await waiting is ANSWER


async def test_a_request_to_a_node_that_falls_silent_is_answered_by_another() -> None:
    async with (
        running() as slow,
        running() as quick,
        peer_node(own(slow.url, cid="1")) as node,
        way_to(node) as links,
    ):
        slow.fail(delay_first=60.0)
        world = World(links)
        far = node.identity.peer
        world.offer(far, Service("p", MODEL, "1"))
        world.serve(own(quick.url, cid="2"))
        clock = asyncio.get_running_loop().time
        began = clock()
        asking = asyncio.ensure_future(world.ask(chat()))
        await until(lambda: len(slow.received) == 1)
        # The node is probed because the request waits.
        await until(lambda: far in world.looked)
        assert len(quick.received) == 0
        world.silent.add(far)
        world.presence[far] = Presence.SUSPECT
        body, attempts = await asking
        assert b'"llama"' in body
        assert attempts == 2
        assert len(quick.received) == 1
        assert PROBE_AFTER < clock() - began < 3.0
        await until(lambda: slow.hung_up == 1)


async def test_giving_up_a_wait_leaves_no_trace_of_a_cancellation(party: Party) -> None:
    async def asking() -> int:
        with pytest.raises(WorkerUnreachable):
            await party.wait(OTHER)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    waiting = asyncio.ensure_future(asking())
    await asyncio.sleep(0)
    party.silent.add(FAR)
    party.look(times=3)
    assert await waiting == 0


async def test_a_caller_that_leaves_as_its_wait_is_given_up_is_cancelled(party: Party) -> None:
    waiting = await begun(asyncio.ensure_future(party.wait(OTHER)))
    party.silent.add(FAR)
    party.look()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
