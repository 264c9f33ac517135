"""Laws of sending a request to the first candidate that answers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest

from registry.catalog import Catalog, Signed
from registry.clock import RandomSource
from registry.members.liveness import Presence
from registry.records import Load, PeerId, Record, Service, Version
from router import dialects
from router.dispatch import Router
from router.errors import (
    AnswerBroken,
    NobodyServes,
    NoCapacity,
    RouterError,
    UnknownModel,
    WorkerBusy,
    WorkerFailed,
    WorkerRejected,
    WorkerTooSmall,
    WorkerUnreachable,
)
from router.first_byte_timeout import GRAIN
from router.outcome import Outcome
from router.peers.links import Links
from router.requests import Pin, Request
from router.select.attempts import RESERVE
from router.select.candidates import Candidate, Reason
from router.select.policy import Policy
from router.settings import RouterSettings
from router.shared_slots import Lender
from router.state.circuit import FIRST_PAUSE, TRIP, Circuit
from router.state.remote_load import HALF_LIFE, Reported
from router.state.slow_start import ENOUGH, RISE
from router.workers import Workers
from tests.router.world import MODEL, OWN, QUICK, chat, links, own, until, whole
from tests.workers.openai_worker import OpenAIWorker, running
from tests.workers.raw import raw

NOBODY = "http://127.0.0.1:1"
FAR = PeerId("far")


class AsListed(Policy):
    """Policy that tries workers in the order of their ids."""

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: RandomSource
    ) -> Sequence[Candidate]:
        return sorted(candidates, key=lambda candidate: candidate.service.cid)

    def why(self, request: Request, candidate: Candidate, among: Sequence[Candidate]) -> str:
        return "listed"


@dataclass
class World:
    """A router, and the world that it reads."""

    links: Links
    own: PeerId = OWN.peer
    outcomes: list[Outcome] = field(default_factory=list)
    workers: Workers = field(default_factory=Workers)
    catalog: Catalog = field(default_factory=Catalog)
    presence: dict[PeerId, Presence] = field(default_factory=dict)
    draining: bool = False
    looked: list[PeerId] = field(default_factory=list)
    silent: set[PeerId] = field(default_factory=set)
    now: float = 0.0
    lender: Lender | None = None
    absent: float = 0.0

    def __post_init__(self) -> None:
        self.router = Router(
            self,
            {name: dialects.load(name)(self.links) for name in dialects.NAMES},
            AsListed(),
            self.links.settings,
            lambda: self.now,
            random=lambda: 0.5,
            tasks=self.links.tasks,
            lender=self.lender,
        )

    def presence_of(self, node: PeerId) -> Presence:
        return self.presence.get(node, Presence.ALIVE)

    def absence_of(self, _: PeerId) -> float:
        return self.absent

    def is_silent(self, node: PeerId) -> bool:
        return node in self.silent

    def request_probe(self, node: PeerId) -> None:
        self.looked.append(node)

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def serve(self, *candidates: Candidate) -> None:
        self.workers = Workers.of(c.worker for c in candidates if c.worker is not None)

    def offer(self, node: PeerId, *services: Service) -> None:
        record = Record(node, Version(1, len(self.catalog.held)), services=services)
        self.catalog = self.catalog.merge([Signed(record, repr(record).encode())])

    async def settle(self) -> None:
        """Have every worker answer once, and advance the clock until none counts as new."""
        for worker in self.workers:
            await self.ask(replace(chat(), pin=Pin(cid=worker.service.cid)))
        self.now += ENOUGH * RISE

    async def ask(self, request: Request) -> tuple[bytes, int]:
        async with self.router.answer(request) as routed:
            return await whole(routed.answer), routed.attempts


@pytest.fixture
def settings() -> RouterSettings:
    return QUICK


@pytest.fixture
async def world(settings: RouterSettings) -> AsyncIterator[World]:
    async with links(settings) as own_links:
        made = World(own_links)
        yield made
        assert not made.router.in_flight


@asynccontextmanager
async def several(count: int) -> AsyncIterator[list[OpenAIWorker]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running()) for _ in range(count)]


async def test_the_first_candidate_that_answers_is_used_and_every_attempt_is_reported(
    world: World,
) -> None:
    async with several(2) as (bad, good):
        bad.fail(status=500)
        world.serve(own(NOBODY, cid="1"), own(bad.url, cid="2"), own(good.url, cid="3"))
        body, attempts = await world.ask(chat())
    assert b'"llama"' in body
    assert attempts == 3
    assert [type(outcome.error) for outcome in world.outcomes] == [
        WorkerUnreachable,
        WorkerFailed,
        type(None),
    ]


async def test_the_load_of_a_worker_counts_forwarded_requests_too(world: World) -> None:
    async with running() as worker:
        world.serve(candidate := own(worker.url, capacity=8))
        assert world.router.busy_loads() == {}
        for _ in range(2):
            async with world.router.answer(replace(chat(), own_only=True)) as routed:
                assert routed.tally is not None
                assert world.router.busy_loads() == {candidate.service: Load(1, slots=8, first=0.0)}
                await whole(routed.answer)
        assert world.router.busy_loads() == {}


async def test_the_nodes_own_share_of_a_report_is_what_it_had_in_flight_on_arrival(
    world: World,
) -> None:
    service = own("").service
    world.offer(FAR, service)
    world.router.in_flight.occupancies[FAR, service].change(2, now=0.0)
    world.router.record_loads(FAR, {service: Load(5)})
    world.router.in_flight.occupancies[FAR, service].change(-2, now=0.0)
    world.now += HALF_LIFE
    [candidate] = world.router.explain(chat()).ordered
    assert candidate.report == Reported(Load(5), ours=2, age=HALF_LIFE)
    assert candidate.expected_requests == 1.5


async def test_the_last_error_carries_the_number_of_attempts(world: World) -> None:
    world.serve(*(own(NOBODY, cid=str(number)) for number in range(5)))
    with pytest.raises(WorkerUnreachable) as failed:
        await world.ask(chat())
    assert failed.value.attempts == QUICK.attempts == len(world.outcomes)


async def test_a_rejected_request_is_not_retried(world: World) -> None:
    async with several(2) as (first, second):
        first.fail(status=400)
        world.serve(own(first.url, cid="1"), own(second.url, cid="2"))
        with pytest.raises(WorkerRejected) as refused:
            await world.ask(chat())
        assert refused.value.attempts == 1
        assert second.received == []


async def test_a_request_too_large_for_one_worker_goes_to_another(world: World) -> None:
    async with several(2) as (first, second):
        first.fail(status=413, refusal=b"<html>413 Request Entity Too Large</html>")
        world.serve(own(first.url, cid="1"), own(second.url, cid="2"))
        assert (await world.ask(chat()))[1] == 2
        second.fail(status=413)
        with pytest.raises(WorkerTooSmall) as refused:
            await world.ask(chat())
        assert refused.value.attempts == 2


async def test_an_answer_that_broke_after_its_first_byte_is_not_retried_and_is_reported(
    world: World,
) -> None:
    async with several(2) as (first, second):
        first.fail(die_after=3, delay_between=0.01)
        world.serve(own(first.url, cid="1"), own(second.url, cid="2"))
        with pytest.raises(AnswerBroken) as broken:
            await world.ask(chat(stream=True))
        assert broken.value.attempts == 1
        assert second.received == []
    assert [type(outcome.error) for outcome in world.outcomes] == [AnswerBroken]


async def test_a_break_that_the_face_handled_itself_is_reported_too(world: World) -> None:
    async with running() as worker:
        worker.fail(die_after=3, delay_between=0.01)
        world.serve(own(worker.url))
        async with world.router.answer(chat(stream=True)) as routed:
            with pytest.raises(AnswerBroken):
                await whole(routed.answer)
    assert [type(outcome.error) for outcome in world.outcomes] == [AnswerBroken]


async def test_a_request_is_in_flight_from_the_first_attempt_to_the_last_byte(world: World) -> None:
    async with running() as worker:
        candidate = own(worker.url)
        world.serve(candidate)
        async with world.router.answer(chat()):
            assert world.router.in_flight == {candidate.key: 1}
        assert not world.router.in_flight
    assert world.outcomes == [Outcome(candidate, None, 0.0, request=chat().id)]


@pytest.mark.parametrize("faults", [{"hang": True}, {"delay_between": 60}])
async def test_the_in_flight_count_is_right_when_callers_leave(
    world: World, faults: dict[str, object]
) -> None:
    async with running() as worker:
        worker.fail(**faults)
        world.serve(own(worker.url))
        callers = [asyncio.ensure_future(world.ask(chat(stream=True))) for _ in range(3)]
        await until(lambda: len(worker.received) == 3)
        assert world.router.in_flight.total() == 3
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        assert not world.router.in_flight
        await until(lambda: worker.hung_up == 3, within=0.5)
    # A caller that left before the first byte has shown nothing about the worker.
    assert all(outcome.error is None for outcome in world.outcomes)


async def test_a_dialect_that_this_node_lacks_is_a_failed_attempt(world: World) -> None:
    async with running() as worker:
        world.serve(own(worker.url, cid="1", dialect="smoke_signals"), own(worker.url, cid="2"))
        assert (await world.ask(chat()))[1] == 2
    assert "smoke_signals" in str(world.outcomes[0].error)


async def test_the_error_for_an_unknown_model_suggests_similar_names(world: World) -> None:
    world.serve(own(NOBODY))
    world.offer(FAR, Service("p", "llama-2"), Service("p", "qwen"))
    with pytest.raises(UnknownModel) as unknown:
        await world.ask(chat("llamma"))
    assert set(unknown.value.nearest) == {"llama", "llama-2"}
    assert unknown.value.attempts == 0


@pytest.mark.parametrize("presence", [Presence.LOST, Presence.LEFT, Presence.DRAINING])
async def test_a_model_of_absent_nodes_is_known_but_not_served(
    world: World, presence: Presence
) -> None:
    world.offer(FAR, Service("p", MODEL))
    world.presence[FAR] = presence
    with pytest.raises(NobodyServes, match="node"):
        await world.ask(chat())


async def test_a_full_worker_raises_no_capacity_unless_the_request_waits(world: World) -> None:
    async with running() as worker:
        world.serve(own(worker.url, capacity=1))
        async with world.router.answer(chat()):
            with pytest.raises(NoCapacity):
                await world.ask(replace(chat(), waits=False))
        await world.ask(chat())


async def test_a_forwarded_request_is_answered_by_this_node_or_not_at_all(world: World) -> None:
    world.offer(FAR, Service("p", MODEL))
    sent_on = Request("r", chat().kind, MODEL, chat().body, "application/json", own_only=True)
    with pytest.raises(UnknownModel):
        await world.ask(sent_on)
    world.serve(own(NOBODY))
    world.draining = True
    with pytest.raises(NobodyServes):
        await world.ask(sent_on)


async def test_a_pin_that_no_replica_matches_makes_the_model_unknown(world: World) -> None:
    world.serve(own(NOBODY))
    pinned = Request("r", chat().kind, MODEL, b"", "application/json", pin=Pin(project="other"))
    with pytest.raises(UnknownModel):
        await world.ask(pinned)


async def test_an_explanation_lists_candidates_and_exclusions_and_sends_nothing(
    world: World,
) -> None:
    async with running() as worker:
        world.serve(own(worker.url))
        world.offer(FAR, Service("p", MODEL))
        world.presence[FAR] = Presence.LOST
        explained = world.router.explain(chat())
        assert [candidate.node for candidate in explained.ordered] == [OWN.peer]
        assert [(e.candidate.node, e.reason) for e in explained.excluded] == [(FAR, Reason.LOST)]
        assert worker.received == []


async def test_an_address_that_fails_repeatedly_is_tried_last_and_gets_a_trial_later(
    world: World,
) -> None:
    async with several(2) as (bad, good):
        bad.fail(status=500)
        world.serve(own(bad.url, cid="1"), own(good.url, cid="2"))
        attempts = [(await world.ask(chat()))[1] for _ in range(TRIP + 3)]
        assert attempts == [2] * TRIP + [1] * 3
        ejected = world.router.explain(chat()).ordered[-1]
        assert world.router.condition(ejected).circuit is Circuit.OPEN
        world.now += 2 * FIRST_PAUSE
        bad.fail()
        assert (await world.ask(chat()))[1] == 1
        assert world.router.condition(ejected).circuit is Circuit.CLOSED


async def test_rejected_requests_and_full_workers_open_no_circuit(world: World) -> None:
    async with running() as worker:
        world.serve(own(worker.url))
        for status in (400, 413, 422, 429):
            worker.fail(status=status)
            for _ in range(2 * TRIP):
                with suppress(RouterError):
                    await world.ask(chat())
        assert not world.router.explain(chat()).ordered[0].ejected


async def test_a_request_is_tried_even_if_every_circuit_is_open(world: World) -> None:
    async with running() as worker:
        worker.fail(status=500)
        world.serve(own(worker.url))
        for _ in range(2 * TRIP):
            with pytest.raises(WorkerFailed):
                await world.ask(chat())
        worker.fail()
        assert (await world.ask(chat()))[1] == 1


@pytest.mark.parametrize("settings", [QUICK.model_copy(update={"first_byte_timeout": 30.0})])
async def test_a_frozen_worker_is_left_and_gets_only_probes_until_it_answers_one(
    world: World,
) -> None:
    thawed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                methods.append(head.split(b" ")[0])
                await thawed.wait()
                writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")

    methods: list[bytes] = []
    clock = asyncio.get_running_loop().time
    world.now = clock()
    async with raw(serve) as url, running() as good:
        world.serve(own(url, cid="1"), own(good.url, cid="2"))
        asking = asyncio.ensure_future(world.ask(chat()))
        while not asking.done():
            world.now = clock()
            await asyncio.sleep(0.02)
        assert (await asking)[1] == 2
        last = world.router.explain(chat()).ordered[-1]
        assert world.router.is_stopped(last)
        assert last.ejected
        assert (await world.ask(chat()))[1] == 1
        thawed.set()
        while world.router.is_stopped(last):
            world.now = clock()
            await asyncio.sleep(0.02)
        # Only the first request reached the worker; everything else was probes.
        assert methods.count(b"POST") == 1


@pytest.mark.parametrize("settings", [QUICK.model_copy(update={"first_byte_timeout": 30.0})])
@pytest.mark.parametrize("alone", [True, False])
async def test_a_single_threaded_worker_is_waited_for_if_there_is_no_alternative(
    world: World, alone: bool
) -> None:
    """A single-threaded worker answers no probe while it writes; the asking node may or may not know alternatives."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            await done.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Connection: close\r\nContent-Length: 17\r\n\r\n" + b'{"model":"llama"}')

    async with raw(serve) as url:
        candidate = own(url)
        world.serve(candidate)
        sent_on = replace(chat(), own_only=True, waits=alone, holds=False)
        asking = asyncio.ensure_future(world.ask(sent_on))
        while not (world.router.is_stopped(candidate) or asking.done()):
            world.now += 0.5
            await asyncio.sleep(0.02)
        # The two looks after which the worker would be given up.
        await asyncio.wait([asking], timeout=4 * GRAIN)
        assert asking.done() is not alone
        done.set()
        if alone:
            assert (await asking)[1] == 1
        else:
            with pytest.raises(WorkerUnreachable, match="stopped answering"):
                await asking


async def test_retries_stay_within_the_budget_when_every_worker_fails(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with several(2) as (one, other):
        one.fail(status=500)
        other.fail(status=500)
        world.serve(own(one.url, cid="1"), own(other.url, cid="2"))
        # The first failure of a place in a while counts as a death: the one request in flight there is retried for free.
        for _ in range(RESERVE + 12):
            with pytest.raises(WorkerFailed) as failed:
                await world.ask(chat())
    assert failed.value.attempts == 1
    assert len(one.received) + len(other.received) == 2 * (RESERVE + 1) + 11
    assert world.router.events["retries_refused"] == 11
    assert "router.retry_share" in caplog.text


async def test_a_machine_that_dies_with_many_requests_in_flight_fails_none_of_them(
    world: World,
) -> None:
    async with AsyncExitStack() as dying, running() as good:
        worker = await dying.enter_async_context(running())
        world.serve(own(worker.url, cid="1"), own(good.url, cid="2"))
        await world.settle()
        worker.received.clear()
        worker.fail(hang=True)
        callers = [asyncio.ensure_future(world.ask(chat())) for _ in range(4 * RESERVE)]
        await until(lambda: len(worker.received) == len(callers))
        await dying.aclose()
        assert [attempts for _, attempts in await asyncio.gather(*callers)] == [2] * len(callers)
    assert world.router.events["retries_refused"] == 0


async def test_a_new_worker_gets_one_request_until_it_answers(
    world: World,
) -> None:
    async with several(2) as (new, known):
        for worker in (new, known):
            worker.fail(delay_headers=0.2)
        world.serve(own(known.url, cid="2"))
        await world.settle()
        world.serve(own(new.url, cid="1"), own(known.url, cid="2"))
        for expected in (1, 2):
            async with asyncio.TaskGroup() as group:
                for _ in range(6):
                    group.create_task(world.ask(chat()))
            assert len(new.received) == expected
            new.received.clear()
        # The worker answered three requests, so it may have four; three failures make it new again.
        assert world.router.allowance(own(new.url, cid="1")) == 4
        new.fail(status=500)
        for _ in range(TRIP):
            await world.ask(chat())
        new.fail(status=200)
        world.now += 2 * FIRST_PAUSE
        assert world.router.allowance(own(new.url, cid="1")) == 1


async def test_the_slots_of_a_worker_are_learnt_from_refusals_and_refused_requests_wait(
    world: World,
) -> None:
    async with running() as worker:
        worker.fail(slots=4, delay_headers=0.05)
        world.serve(candidate := own(worker.url))
        assert candidate.worker is not None
        assert world.router.load_of(candidate.worker).slots == 0
        callers = [asyncio.ensure_future(world.ask(chat())) for _ in range(20)]
        assert all(b'"llama"' in body for body, _ in await asyncio.gather(*callers))
        [bounded] = world.router.explain(chat()).ordered
        assert bounded.slots == 4
        assert world.router.has_learnt_limit(bounded.service)
        refused = worker.refused
        assert refused >= 16
        await asyncio.gather(*(world.ask(chat()) for _ in range(20)))
        assert worker.refused == refused


async def test_a_worker_is_asked_for_its_slots_once_it_has_several_requests(
    world: World,
) -> None:
    async with running() as worker:
        worker.fail(properties=b'{"total_slots":2}', delay_headers=0.05)
        world.serve(own(worker.url))
        await world.ask(chat())
        assert world.router.explain(chat()).ordered[0].slots == 0
        await asyncio.gather(*(world.ask(chat()) for _ in range(2)))
        await until(lambda: world.router.explain(chat()).ordered[0].slots == 2)
        await asyncio.gather(*(world.ask(chat()) for _ in range(8)))


async def test_a_worker_that_never_refuses_has_no_learnt_limit(world: World) -> None:
    async with running() as worker:
        world.serve(candidate := own(worker.url))
        await asyncio.gather(*(world.ask(chat()) for _ in range(50)))
        assert world.router.explain(chat()).ordered[0].slots == 0
        assert not world.router.has_learnt_limit(candidate.service)


async def test_attempts_at_unreachable_workers_cost_no_budget(world: World) -> None:
    async with running() as good:
        world.serve(own(NOBODY, cid="1"), own(good.url, cid="2"))
        for cid in range(2 * RESERVE):
            world.serve(own(NOBODY, cid=f"1{cid}"), own(good.url, cid="2"))
            assert b'"llama"' in (await world.ask(chat()))[0]
    assert world.router.events["retries_refused"] == 0


async def test_a_request_waits_for_a_full_worker_when_the_others_fail(
    world: World,
) -> None:
    async with running() as good:
        good.fail(delay_headers=0.3)
        world.serve(own(good.url, cid="1", capacity=1), own(NOBODY, cid="2"))
        answers = await asyncio.gather(*(world.ask(chat()) for _ in range(3)))
    assert all(b'"llama"' in body for body, _ in answers)
    assert good.served == 3


async def test_a_request_waits_for_a_healthy_worker_rather_than_go_to_an_ejected_one(
    world: World,
) -> None:
    async with several(2) as (good, bad):
        world.serve(own(bad.url, cid="1"))
        bad.fail(status=500)
        for _ in range(TRIP):
            with suppress(WorkerFailed):
                await world.ask(chat())
        bad.fail(hang=True)
        bad.received.clear()
        good.fail(delay_headers=0.2)
        world.serve(own(bad.url, cid="1"), own(good.url, cid="2", capacity=1))
        await asyncio.gather(*(world.ask(chat()) for _ in range(3)))
        assert good.served == 3
        assert not bad.received


async def test_a_worker_that_names_a_retry_time_is_paused_until_then_and_others_are_used(
    world: World,
) -> None:
    async with several(2) as (busy, good):
        busy.fail(status=429, retry_after="7")
        world.serve(own(busy.url, cid="1"), own(good.url, cid="2"))
        assert [(await world.ask(chat()))[1] for _ in range(5)] == [2, 1, 1, 1, 1]
        assert len(busy.received) == 1
        world.now += 6
        [excluded] = world.router.explain(chat()).excluded
        assert (excluded.reason, excluded.seconds) == (Reason.PAUSED, 1.0)
        world.now += 1
        busy.fail()
        await world.ask(chat())
        assert len(busy.received) == 2


async def test_if_all_workers_named_a_retry_time_the_shortest_is_raised_without_an_attempt(
    world: World,
) -> None:
    async with several(2) as (one, other):
        one.fail(status=503, retry_after="3")
        other.fail(status=429, retry_after="7")
        world.serve(own(one.url, cid="1"), own(other.url, cid="2"))
        for attempts in (2, 0):
            with pytest.raises(WorkerBusy) as busy:
                await world.ask(chat())
            assert (busy.value.retry_after, busy.value.attempts) == (3.0, attempts)
        assert len(one.received) == len(other.received) == 1


async def test_a_full_worker_that_names_no_retry_time_is_tried_again(world: World) -> None:
    async with running() as worker:
        worker.fail(status=429)
        world.serve(own(worker.url))
        for _ in range(2):
            with pytest.raises(WorkerBusy):
                await world.ask(chat())
        assert len(worker.received) == 2


async def test_a_retry_waits_for_a_worker_whose_slot_was_taken_meanwhile(
    world: World,
) -> None:
    async with several(2) as (bad, good):
        bad.fail(delay_headers=0.05, status=500)
        good.fail(delay_headers=0.1)
        world.serve(own(bad.url, cid="1"), own(good.url, cid="2", capacity=1))
        # A request that goes to the bad worker first finds the good one taken by a request that went there first.
        for _ in range(10):
            answers = await asyncio.gather(*(world.ask(chat()) for _ in range(4)))
            assert all(b'"llama"' in body for body, _ in answers)
            world.now += 100
    assert good.most == 1
    assert bad.received
