"""Laws of the choice of a replica for a request, and of the slot that the request then holds."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import orjson
import pytest

from registry.catalog import Catalog, Signed
from registry.members.liveness import Presence
from registry.records import Ability, Load, PeerId, Record, Service, Version
from router import policies
from router.choice import (
    MAX_EXCLUDED,
    MAX_TABLES,
    SAMPLE_SIZE,
    Chooser,
    Exclusions,
    NameOffersCache,
    ReplicaTables,
)
from router.errors import NobodyServes, NoCapacity, UnknownModel, WorkerFailed
from router.ledger import Ledger
from router.openai.prefixes import prefixes_of
from router.requests import Kind, Pin, Request
from router.select.candidates import Candidate, Excluded, Reason
from router.state.circuit import TRIP, Sign
from router.state.concurrency import BoundedWorkers, Limits
from router.state.prefix_index import Read, ReplicaAnswer
from router.state.remote_load import Report
from router.state.service_time import ServiceTime
from router.workers import Worker, Workers
from router.world import LoneWorld
from tests.router.world import MODEL, OWN, QUICK, Books, chat, own

NARROW = own("http://127.0.0.1:1", cid="1", capacity=1)
OTHER = own("http://127.0.0.1:2", cid="2")


@dataclass
class Scene:
    """Choosing among this machine's workers."""

    world: LoneWorld = field(
        default_factory=lambda: LoneWorld(OWN.peer, Workers.of([NARROW.worker]))  # type: ignore[list-item]
    )

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.world, QUICK, now=lambda: 0.0, random=lambda: 0.5)
        self.books = Books(self.ledger, now=lambda: 0.0)
        self.chooser = Chooser(
            self.ledger, world=self.world, policy=policies.load("p2c"), random=lambda: 0.5
        )

    def serve(self, *candidates: Candidate) -> None:
        self.world.workers = Workers.of(c.worker for c in candidates if c.worker is not None)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    assert not made.ledger.in_flight


async def test_a_worker_with_a_free_slot_is_chosen_and_the_slot_not_yet_taken(scene: Scene) -> None:
    [chosen], holds_slot = await scene.chooser.choose(chat())
    assert (chosen.service, holds_slot) == (NARROW.service, False)
    assert scene.chooser.explain(chat()).ordered == (chosen,)


async def test_a_request_that_waited_for_a_slot_holds_it(scene: Scene) -> None:
    scene.ledger.count_slot(NARROW.service)
    waiting = asyncio.ensure_future(scene.chooser.choose(chat()))
    await asyncio.sleep(0)
    assert [e.reason for e in scene.chooser.explain(chat()).excluded] == [Reason.FULL]
    scene.ledger.release(NARROW.service)
    [chosen], holds_slot = await waiting
    assert (chosen.service, holds_slot) == (NARROW.service, True)
    assert scene.ledger.in_flight == {NARROW.key: 1}
    scene.ledger.release(NARROW.service)


async def test_a_worker_unregistered_during_the_wait_is_not_chosen(scene: Scene) -> None:
    scene.ledger.count_slot(NARROW.service)
    waiting = asyncio.ensure_future(scene.chooser.choose(chat()))
    await asyncio.sleep(0)
    scene.serve()
    scene.ledger.release(NARROW.service)
    with pytest.raises(NobodyServes, match="unregistered"):
        await waiting


async def test_a_request_waits_for_a_healthy_worker_rather_than_go_to_an_ejected_one(
    scene: Scene,
) -> None:
    scene.serve(NARROW, OTHER)
    for _ in range(TRIP):
        scene.books.begin(OTHER).end(WorkerFailed("no"))
    scene.ledger.count_slot(NARROW.service)
    with pytest.raises(NoCapacity):
        await scene.chooser.choose(replace(chat(), waits=False))
    scene.ledger.release(NARROW.service)


async def test_a_name_that_no_replica_offers_is_unknown(scene: Scene) -> None:
    with pytest.raises(UnknownModel):
        await scene.chooser.choose(chat("llamma"))


async def test_a_request_waits_for_a_quick_worker_rather_than_go_to_a_slow_one(
    scene: Scene,
) -> None:
    scene.serve(NARROW, OTHER)
    for candidate, seconds in ((NARROW, 0.5), (OTHER, 8.0)):
        assert candidate.worker is not None
        times = scene.ledger.times.estimator(candidate.worker, Kind.CHAT)
        times.record_answer(seconds, kilobytes=0, tokens=0, concurrency=1)
    scene.ledger.waiting.record_slot_time(chat().model, 0.5)
    scene.ledger.count_slot(NARROW.service)
    waiting = asyncio.ensure_future(scene.chooser.choose(chat()))
    await asyncio.sleep(0)
    scene.ledger.release(NARROW.service)
    [chosen], holds_slot = await waiting
    assert (chosen.service, holds_slot) == (NARROW.service, True)
    # With a long queue at the quick worker, the slow one would finish sooner.
    scene.ledger.waiting.record_slot_time(chat().model, 500.0)
    [chosen], holds_slot = await scene.chooser.choose(chat())
    assert (chosen.service, holds_slot) == (OTHER.service, False)
    scene.ledger.release(NARROW.service)


class Counting(LoneWorld):
    """A world that counts how often the presence of a node is looked up."""

    looked_at = 0
    lost: frozenset[PeerId] = frozenset()

    def presence_of(self, node: PeerId) -> Presence:
        self.looked_at += 1
        return Presence.LOST if node in self.lost else Presence.ALIVE


def many(count: int = 200) -> Counting:
    service = Service("p", MODEL)
    nodes = [PeerId(f"n{number}") for number in range(count)]
    records = [Record(node, Version(1, 0), services=(service,)) for node in nodes]
    offered = Catalog().merge(Signed(record, record.node.encode()) for record in records)
    return Counting(OWN.peer, Workers(), offered)


def chooser(world: LoneWorld, policy: str = "p2c") -> Chooser:
    ledger = Ledger(world, QUICK, now=lambda: 0.0, random=lambda: 0.5)
    draw = Random(1).random
    return Chooser(ledger, world=world, policy=policies.load(policy), random=draw)


async def test_of_many_replicas_a_few_are_inspected_and_all_get_their_turn() -> None:
    world = many()
    choice = chooser(world)
    firsts = {(await choice.choose(chat()))[0][0].node for _ in range(1_500)}
    assert world.looked_at == 1_500 * SAMPLE_SIZE
    assert len(firsts) > 190


@pytest.mark.parametrize("policy", ["session", "round_robin"])
async def test_a_policy_that_needs_all_replicas_gets_all(policy: str) -> None:
    world = many()
    assert len((await chooser(world, policy).choose(chat()))[0]) == 200


async def test_all_replicas_are_inspected_if_few_of_those_drawn_are_healthy() -> None:
    world = many()
    alive = PeerId("n7")
    world.lost = frozenset(offer.node for offer in world.catalog.offers[MODEL]) - {alive}
    [chosen], _ = await chooser(world).choose(chat())
    assert chosen.node == alive


async def test_a_pinned_replica_is_found_among_many() -> None:
    pinned = replace(chat(), pin=Pin(node=PeerId("n42")))
    [chosen], _ = await chooser(many()).choose(pinned)
    assert chosen.node == PeerId("n42")
    assert len(chooser(many()).explain(chat()).ordered) == 200


def test_a_table_is_rebuilt_when_its_replicas_have_changed() -> None:
    tables, draw = ReplicaTables(), Random(1).random
    before, after = (many(count).catalog.offers[MODEL] for count in (100, 30))
    for _ in range(20):
        assert len(set(tables.draw(MODEL, before, draw))) == SAMPLE_SIZE
    assert {*tables.draw(MODEL, after, draw)} <= {*after}
    for number in range(MAX_TABLES + 1):
        tables.draw(f"m{number}", after, draw)
    assert len(tables._tables) == MAX_TABLES


def test_the_offers_of_a_name_are_rebuilt_when_its_workers_or_records_have_changed() -> None:
    world = many(3)
    world.workers = Workers.of([NARROW.worker])  # type: ignore[list-item]
    names = NameOffersCache(world, BoundedWorkers(world, Limits()))
    offers = names.offers_for(chat())
    assert [r.key[0] for r in offers.all_replicas] == [OWN.peer, "n0", "n1", "n2"]
    assert names.offers_for(chat()) is offers
    # A record that does not offer this name has changed.
    record = Record(PeerId("far"), Version(1, 0), services=(Service("p", "other"),))
    world.catalog = world.catalog.merge([Signed(record, b"far")])
    assert names.offers_for(chat()) is offers
    world.catalog = many(4).catalog
    assert len(names.offers_for(chat()).all_replicas) == 5
    others = names.offers_for(chat(kind=Kind.BATCH)).all_replicas
    assert {r.unfit for r in others} == {Reason.OTHER_TYPE}
    world.workers = Workers()
    assert len(names.offers_for(chat()).all_replicas) == 4


def test_names_without_offers_take_no_room_in_the_cache() -> None:
    services = [Service("p", f"m{number}") for number in range(MAX_TABLES + 1)]
    workers = Workers.of(Worker(service, "http://127.0.0.1:1") for service in services)
    world = LoneWorld(OWN.peer, workers)
    names = NameOffersCache(world, BoundedWorkers(world, Limits()))
    for service in services:
        assert len(names.offers_for(chat(service.model)).all_replicas) == 1
        assert names.offers_for(chat(f"no-{service.model}")).all_replicas == []
    assert len(names._cached) == MAX_TABLES
    assert names._valid == names._cached


def test_the_total_number_of_cached_offers_is_bounded() -> None:
    world = many(5)
    names = NameOffersCache(world, BoundedWorkers(world, Limits()), max_offers=12)
    for kind in (Kind.CHAT, Kind.COMPLETION, Kind.EMBEDDING):
        offers = names.offers_for(chat(kind=kind))
        assert names.offers_for(chat(kind=kind)) is offers
    assert [kind for _, kind in names._cached] == [Kind.COMPLETION, Kind.EMBEDDING]
    # The same name with other offers counts once.
    world.catalog = many(7).catalog
    assert len(names.offers_for(chat(kind=Kind.EMBEDDING)).all_replicas) == 7
    assert [kind for _, kind in names._cached] == [Kind.COMPLETION, Kind.EMBEDDING]
    world.catalog = many(13).catalog
    assert names.offers_for(chat()) is names.offers_for(chat())
    assert [*names._cached] == [*names._valid] == [(MODEL, Kind.CHAT)]
    assert names._offer_count == 13


class Knowing:
    """Nodes of which one has cached every conversation that it is asked about."""

    def __init__(self, reader: PeerId) -> None:
        self.reader = reader
        self.asked: list[PeerId] = []

    async def ask(self, request: Request, candidate: Candidate) -> ReplicaAnswer | None:
        self.asked.append(candidate.node)
        if candidate.node != self.reader:
            return None
        return ReplicaAnswer(Read(request.prefixes.size, 1.0), Load(1, slots=4), READER)


READER = ServiceTime(fixed=0.5, kilobyte=0.1)


def talk(*, goes_on: bool = True) -> Request:
    messages = [
        {"role": "assistant" if n % 2 else "user", "content": str(n) * 9_000} for n in range(3)
    ]
    fields = {"messages": messages if goes_on else messages[:1]}
    body = orjson.dumps(fields)
    return replace(chat(body=body), prefixes=prefixes_of(fields, len(body)))


async def test_possible_holders_of_a_conversation_are_asked_once_and_the_holder_is_chosen() -> None:
    world = many(5)
    choice = chooser(world)
    nodes = [offer.node for offer in world.catalog.offers[MODEL]]
    for node in nodes:
        choice._ledger.times.reported_times.record(node, (Service("p", MODEL), Kind.CHAT), READER)
    choice._replica_asker = knowing = Knowing(nodes[3])
    for _ in range(3):
        ordered, _ = await choice.choose(talk())
        assert ordered[0].node == nodes[3]
        assert ordered[0].report is not None
    assert sorted(knowing.asked) == sorted(nodes)
    await choice.choose(talk(goes_on=False))
    await choice.choose(chat())
    events = choice._ledger.events
    assert (events["replica_questions"], events["cache_found"]) == (len(nodes), 1)


async def test_a_request_proceeds_if_no_node_answers_the_question() -> None:
    world = many(5)
    choice = chooser(world)
    for offer in world.catalog.offers[MODEL]:
        choice._ledger.times.reported_times.record(offer.node, (offer.service, Kind.CHAT), READER)
    choice._replica_asker = Knowing(OWN.peer)
    assert len((await choice.choose(talk()))[0]) == 5


async def test_a_conversation_is_looked_for_at_the_same_few_replicas_and_its_last_reader() -> None:
    world = many()
    looked_at = [{c.node for c in (await chooser(world).choose(talk()))[0]} for _ in range(2)]
    assert len(looked_at[0] & looked_at[1]) >= SAMPLE_SIZE // 2
    choice = chooser(world)
    reader = PeerId("n77")
    choice._ledger.times.prefix_index.record_read(
        (reader, Service("p", MODEL)), talk().prefixes, 0.0
    )
    for _ in range(20):
        assert reader in {c.node for c in (await choice.choose(talk()))[0]}


async def test_the_choice_is_among_the_replicas_that_were_asked() -> None:
    world = many()
    choice = chooser(world)
    stale, service = Report(Load(0, slots=4), ours=0, at=-60.0), Service("p", MODEL)
    for offer in world.catalog.offers[MODEL]:
        choice._ledger.times.reported_times.record(
            offer.node, (service, Kind.CHAT), ServiceTime(fixed=5.0)
        )
        choice._ledger.reports.record(offer.node, service, stale)
    choice._replica_asker = knowing = Knowing(OWN.peer)
    ordered, _ = await choice.choose(chat())
    assert knowing.asked
    assert {*knowing.asked} <= {candidate.node for candidate in ordered}


async def test_the_only_replica_is_chosen_at_once_unless_something_speaks_against_it() -> None:
    here = LoneWorld(OWN.peer, Workers.of([OTHER.worker]))  # type: ignore[list-item]
    for world, request in (
        (here, chat()),
        (many(1), chat()),
        (here, replace(chat(), own_only=True)),
    ):
        choice = chooser(world)
        assert choice.choose_now(request) == choice.explain(request).ordered
        [only] = choice.explain(request).ordered
        assert choice.choose_now(replace(request, pin=Pin(node=only.node))) == (only,)
        assert choice.choose_now(replace(request, pin=Pin(cid="nobody's"))) is None
        choice._ledger.retry_after.record(only.address, 1.0, 0.0)
        assert choice.choose_now(request) is None
        choice._ledger.retry_after.record(only.address, 0.0, 0.0)
        assert choice.choose_now(request) == (only,)
        for _ in range(TRIP):
            choice._ledger.circuits.record_sign(only.address, Sign.FAILED, 0.0)
        assert choice.choose_now(request) is None
    remote = many(1)
    assert chooser(remote).choose_now(replace(chat(), own_only=True)) is None
    remote.lost = frozenset({PeerId("n0")})
    assert chooser(remote).choose_now(chat()) is None
    here.draining = True
    assert chooser(here).choose_now(chat()) is None


async def test_the_only_replica_is_not_chosen_at_once_without_a_slot_or_image_input(
    scene: Scene,
) -> None:
    assert scene.chooser.choose_now(chat()) == scene.chooser.explain(chat()).ordered
    attempt = scene.books.begin(NARROW)
    assert scene.chooser.choose_now(chat()) is None
    attempt.end()
    text_only = replace(NARROW.service, abilities=int(Ability.TEXT_IN))
    scene.world.workers = Workers.of([Worker(text_only, "http://127.0.0.1:1")])
    with_image = b'{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}'
    assert scene.chooser.choose_now(chat()) == scene.chooser.explain(chat()).ordered
    assert scene.chooser.choose_now(chat(body=with_image)) is None


async def test_excluded_replicas_are_remembered_with_their_reasons(scene: Scene) -> None:
    scene.serve(NARROW, OTHER)
    scene.ledger.count_slot(NARROW.service)
    request = chat()
    assert scene.chooser.choose_now(request) is None
    await scene.chooser.choose(request)
    scene.ledger.release(NARROW.service)
    [excluded] = scene.chooser.exclusions.excluded_for(request.id)
    assert (excluded.candidate.service, excluded.reason) == (NARROW.service, Reason.FULL)
    # The worker has room again: the next choice excludes no replica, also for the same request.
    await scene.chooser.choose(replace(request, id="another"))
    assert scene.chooser.exclusions.excluded_for("another") == []
    await scene.chooser.choose(request)
    assert scene.chooser.exclusions.excluded_for(request.id) == []


def test_exclusions_are_kept_for_the_newest_requests_and_a_few_replicas_each() -> None:
    exclusions = Exclusions(limit=2)
    excluded = tuple(Excluded(NARROW, Reason.LOST) for _ in range(MAX_EXCLUDED + 1))
    for number in range(3):
        exclusions.record(replace(chat(), id=str(number)), excluded)
    # Another name of the same request is kept beside the first.
    exclusions.record(replace(chat("second"), id="2"), excluded[:1])
    assert [len(exclusions.excluded_for(str(number))) for number in range(3)] == [
        0,
        MAX_EXCLUDED,
        MAX_EXCLUDED + 1,
    ]
