"""Followers of node changes: log lines, links, loads, revoked grants, and the events that people see."""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from node.peers.followers import NodeEvents, follow_links, follow_loads, log_changes
from registry import wire
from registry.catalog import Catalog
from registry.members.liveness import MemberHealth, Presence
from registry.mesh.memory import MemoryMesh, MemoryNet
from registry.records import Load, PeerId, Record, Service, Standing, Version
from registry.service import Registry
from registry.settings import RegistrySettings
from registry.signing import Identity
from registry.store.memory import MemoryStore
from router.peers.paths import Link
from tests.router.peer_node import peer_node, way_to
from tests.router.test_dispatch import World
from tests.router.world import links, own, until
from tests.strategies import IDENTITIES
from tests.workers.openai_worker import running

OWNER = IDENTITIES[0]
SIGNER = OWNER.peer


def catalog() -> Catalog:
    record = Record(node=SIGNER, version=Version(1, 1), name="them")
    return Catalog().merge([wire.encode_record(record, OWNER)])


@dataclass
class WatchedOthers:
    """Other nodes; a test may change what is known of them."""

    now: Presence = Presence.ALIVE
    catalog: Catalog = field(default_factory=catalog)

    def presence(self, node: PeerId) -> Presence:
        return self.now

    def health_of(self, node: PeerId) -> MemberHealth | None:
        return None


def test_each_change_of_a_nodes_presence_is_one_event() -> None:
    others = WatchedOthers()
    events = NodeEvents(others, lambda: 7.0)
    story = [Presence.ALIVE, Presence.ALIVE, Presence.SUSPECT, Presence.LOST, Presence.LOST]
    for others.now in story:
        events.note_changed([SIGNER])
    assert [(event.was, event.now) for event in events.events] == [
        ("", "alive"), ("alive", "suspect"), ("suspect", "lost"),
    ]  # fmt: skip
    assert {(event.node, event.name, event.at) for event in events.events} == {
        (SIGNER, "them", 7.0)
    }
    assert (events.count, events.changes) == (3, 5)


def test_a_node_that_was_forgotten_is_new_when_it_comes_back() -> None:
    others = WatchedOthers()
    events = NodeEvents(others, lambda: 7.0)
    events.note_changed([SIGNER])
    others.catalog = Catalog()
    events.note_changed([SIGNER])
    others.catalog = catalog()
    events.note_changed([SIGNER])
    assert [event.was for event in events.events] == ["", ""]


def test_only_the_last_events_are_remembered() -> None:
    others = WatchedOthers()
    events = NodeEvents(others, lambda: 7.0, limit=2)
    for others.now in [Presence.ALIVE, Presence.SUSPECT] * 3:
        events.note_changed([SIGNER])
    assert len(events.events) == 2
    assert events.count == 6


THEM = PeerId("them")
SERVICE = Service("p", "m")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with links() as peer_links:
        yield World(peer_links)


@dataclass
class Others:
    """Other nodes; a test may change what is known of them."""

    now: Presence = Presence.ALIVE
    catalog: Catalog = field(default_factory=Catalog)

    def presence(self, node: PeerId) -> Presence:
        return self.now


@pytest.mark.parametrize("away", [Presence.LOST, Presence.UNREACHABLE])
async def test_a_node_that_was_away_and_is_alive_again_is_tried_anew_once(
    world: World, away: Presence
) -> None:
    story = [Presence.ALIVE, away, Presence.SUSPECT, Presence.ALIVE, Presence.ALIVE]
    forgiven: list[PeerId] = []
    others = Others()
    changed = follow_links(world.links, others, forgive=forgiven.append)
    for others.now in story:
        changed([THEM])
    assert forgiven == [THEM]


async def test_connections_to_a_node_that_is_alive_again_are_checked_once() -> None:
    checked: list[PeerId] = []
    links = SimpleNamespace(follow=lambda _: None, cut_silent=checked.append)
    others = Others()
    changed = follow_links(links, others, forgive=lambda _: None)
    for others.now in (Presence.ALIVE, Presence.SUSPECT, Presence.ALIVE, Presence.ALIVE):
        changed([THEM])
    assert checked == [THEM]


async def test_an_address_of_an_unreachable_node_has_to_be_proven_anew() -> None:
    doubted: list[PeerId] = []
    links = SimpleNamespace(recheck_address=doubted.append, follow=lambda _: None)
    follow_links(links, Others(Presence.UNREACHABLE), forgive=lambda _: None)([THEM])
    assert doubted == [THEM]


async def test_idle_connections_to_a_node_are_let_go_of_when_it_was_started_anew() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as peer_links:
        others = Others()
        changed = follow_links(peer_links, others, forgive=lambda _: None)

        def learn(epoch: int, sequence: int) -> None:
            record = Record(node.identity.peer, Version(epoch, sequence), reach=node.reach)
            others.catalog = others.catalog.merge([wire.encode_record(record, node.identity)])
            changed([node.identity.peer])

        async def connected() -> Link:
            async with peer_links.visit(node.identity.peer) as link:
                return link

        learn(1, 1)
        pool = (await connected()).pool
        learn(1, 2)
        assert not pool.is_unused
        learn(2, 1)
        await until(lambda: pool.is_unused)


@pytest.mark.parametrize("gone", [Presence.LOST, Presence.LEFT])
async def test_the_reported_load_of_a_node_is_forgotten_when_it_is_gone(
    world: World, gone: Presence
) -> None:
    presence = Presence.SUSPECT
    changed = follow_loads(world.router, lambda _: presence)
    world.router.record_loads(THEM, {SERVICE: Load(3)})
    changed([THEM])
    assert list(world.router.reports.of_node(THEM, 0.0))
    presence = gone
    changed([THEM])
    assert not list(world.router.reports.of_node(THEM, 0.0))


async def test_a_flood_of_new_nodes_makes_few_lines_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 100.0
    registry = Registry(
        Identity(bytes(32)),
        RegistrySettings(strangers_per_second=100),
        store=MemoryStore(),
        mesh=MemoryMesh(Identity(bytes(32)).peer, MemoryNet()),
        epoch=1,
        now=lambda: now,
        random=lambda: 0.5,
    )
    registry.on_change(log_changes(registry, lambda: now))

    async def meet(number: int, standing: Standing = Standing.SERVING) -> None:
        other = Identity(number.to_bytes(32, "big"))
        record = Record(
            other.peer, Version(1, int(standing is Standing.LEFT)), standing, name=f"n{number}"
        )
        frame = wire.encode_record(record, other).frame
        await registry.perform(registry.replica.receive(frame, now, via=other.peer))

    with caplog.at_level(logging.INFO, "modelvine.node"):
        for number in range(1, 61):
            await meet(number)
        assert len(caplog.messages) == 20
        now += 1
        await meet(1, Standing.LEFT)
    peer = Identity((1).to_bytes(32, "big")).peer
    assert caplog.messages[0] == f"node {peer} (n1) joined, with 0 models"
    assert caplog.messages[20] == f"node {peer} (n1) has left (before that 40 more came or went)"
