"""Registries on a real event loop: they find each other, agree, and survive a bad store, a bad peer and a bad net."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from registry import sync, wire
from registry.errors import PeerUnreachable, StoreUnavailable
from registry.members.liveness import Presence
from registry.mesh import Answerer, Pipe, PipeHandler
from registry.mesh.memory import Faults, MemoryMesh, MemoryNet, address_of
from registry.persistence import EPOCH_KEY, next_epoch
from registry.prober import PROVE, VOUCH
from registry.records import PeerId, Reach, Record, Revocation, Service, Standing, Version
from registry.replica import Replica
from registry.service import Registry
from registry.settings import RegistrySettings
from registry.signing import Identity
from registry.store import Put, Space
from registry.store.memory import MemoryStore
from tests.failing_store import FailingStore
from tests.strategies import IDENTITIES

A, B, C, D, E = IDENTITIES[:5]
LLAMA, QWEN = Service("p", "llama"), Service("p", "qwen")
SETTINGS = RegistrySettings(
    heartbeat=0.1, lease=0.5, suspicion=0.3, sync=0.1, coalesce=0.01, ask_timeout=0.5
)

# Heartbeats are too rare to be heard in a test: whatever is seen in time is seen by other means.
PATIENT = SETTINGS.model_copy(
    update={"heartbeat": 600.0, "lease": 2_400.0, "probe": 0.1, "probe_timeout": 0.1}
)


async def until(condition: Callable[[], object], *, within: float = 45.0) -> None:
    """Return as soon as `condition` holds; fail when it does not in time."""
    try:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 (what is waited for happens on other nodes)
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"not within {within} s")


async def no_pipes(pipe: Pipe) -> None:
    await pipe.reset()


@asynccontextmanager
async def node(
    net: MemoryNet,
    owner: Identity,
    *services: Service,
    bootstrap: tuple[Identity, ...] = (),
    store: MemoryStore | None = None,
    epoch: int = 0,
    settings: RegistrySettings = SETTINGS,
    serve: PipeHandler = no_pipes,
) -> AsyncIterator[Registry]:
    store = store or MemoryStore()
    mesh = MemoryMesh(owner.peer, net, bootstrap=tuple(address_of(i.peer) for i in bootstrap))
    registry = Registry(
        owner,
        settings,
        store=store,
        mesh=mesh,
        epoch=epoch or await next_epoch(store, 0.0),
        now=asyncio.get_running_loop().time,
        random=random.Random(owner.peer).random,
    )
    await registry.restore()
    reach = Reach(mesh=(address_of(owner.peer),))
    await registry.publish_first_record(services=services, reach=reach, agent="test")
    await registry.start(serve)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(registry.run())
        try:
            yield registry
        finally:
            running.cancel()
    await registry.stop()


@asynccontextmanager
async def stranger(net: MemoryNet, owner: Identity, answer: Answerer) -> AsyncIterator[MemoryMesh]:
    """A peer that speaks the mesh's language but answers as it likes."""
    mesh = MemoryMesh(owner.peer, net, bootstrap=(address_of(A.peer),))
    await mesh.start(answer, no_pipes)
    try:
        yield mesh
    finally:
        await mesh.stop()


def agree(*registries: Registry) -> bool:
    return len({registry.catalog.digest for registry in registries}) == 1


def offers(registry: Registry, name: str) -> set[PeerId]:
    return {offer.node for offer in registry.catalog.offers.get(name, ())}


async def test_two_nodes_see_each_others_models() -> None:
    net = MemoryNet()
    async with node(net, A, LLAMA) as a, node(net, B, QWEN, bootstrap=(A,)) as b:
        await until(lambda: agree(a, b) and offers(a, "qwen") == {B.peer})
        assert offers(b, "p/llama") == {A.peer}
        assert a.presence(B.peer) is b.presence(A.peer) is Presence.ALIVE


async def test_five_nodes_converge_though_a_third_of_the_frames_is_lost_or_late() -> None:
    net = MemoryNet(random.Random(7), Faults(lost=0.3, doubled=0.2, delayed=0.2))
    async with (
        node(net, A, LLAMA) as a,
        node(net, B, LLAMA, bootstrap=(A,)) as b,
        node(net, C, QWEN, bootstrap=(A,)) as c,
        node(net, D, bootstrap=(B,)) as d,
        node(net, E, LLAMA, bootstrap=(C,)) as e,
    ):
        everyone = (a, b, c, d, e)
        await until(lambda: agree(*everyone) and len(a.catalog.held) == 5)
        await d.announce([LLAMA])
        await b.announce([])
        await until(
            lambda: all(offers(one, "llama") == {A.peer, D.peer, E.peer} for one in everyone)
        )
        await until(lambda: agree(*everyone))


async def test_a_node_that_joins_late_sees_everything() -> None:
    net = MemoryNet()
    async with node(net, A, LLAMA) as a, node(net, B, QWEN, bootstrap=(A,)) as b:
        await until(lambda: agree(a, b) and len(a.catalog.held) == 2)
        async with node(net, C, bootstrap=(A,)) as c:
            await until(lambda: offers(c, "llama") == {A.peer} and offers(c, "qwen") == {B.peer})
            await until(lambda: agree(a, b, c))
            assert c.presence(B.peer) is Presence.ALIVE


async def test_an_unregistered_model_is_gone_everywhere() -> None:
    net = MemoryNet()
    async with node(net, A, LLAMA, QWEN) as a, node(net, B, bootstrap=(A,)) as b:
        await until(lambda: offers(b, "llama") == {A.peer})
        await a.announce([QWEN])
        await until(lambda: not offers(b, "llama"))
        assert offers(b, "qwen") == {A.peer}


async def test_200_registrations_in_one_burst_are_visible_everywhere_for_a_few_frames() -> None:
    net = MemoryNet()
    async with (
        node(net, A) as a,
        node(net, B, bootstrap=(A,)) as b,
        node(net, C, bootstrap=(A,)) as c,
    ):
        await until(lambda: agree(a, b, c) and len(a.catalog.held) == 3)
        before = a.counters["frames_out"]
        started = asyncio.get_running_loop().time()
        for n in range(200):
            await a.announce([Service("p", f"model-{k}") for k in range(n + 1)])
        await until(lambda: all(offers(one, "model-199") for one in (b, c)))
        took = asyncio.get_running_loop().time() - started
        assert all(offers(one, f"model-{n}") for one in (b, c) for n in range(200))
        assert a.counters["frames_out"] - before <= 4 + took / SETTINGS.heartbeat * 2


async def test_draining_and_leaving_are_seen_at_once() -> None:
    net = MemoryNet()
    async with node(net, A, LLAMA) as a, node(net, B, bootstrap=(A,)) as b:
        await until(lambda: offers(b, "llama"))
        await a.set_standing(Standing.DRAINING)
        await until(lambda: b.presence(A.peer) is Presence.DRAINING)
        await a.set_standing(Standing.LEFT)
        await until(lambda: b.presence(A.peer) is Presence.LEFT)
        assert offers(b, "llama")


async def test_a_revocation_by_a_node_is_known_elsewhere_at_once() -> None:
    net, taken_back = MemoryNet(), (Revocation("0f" * 16, 1_800_000_000),)
    async with node(net, A, LLAMA) as a, node(net, B, bootstrap=(A,)) as b:
        await until(lambda: offers(b, "llama"))
        await a.publish_revocations(taken_back)
        await until(lambda: b.catalog.held[A.peer].record.revoked == taken_back)
        await a.set_standing(Standing.DRAINING)
        await until(lambda: b.presence(A.peer) is Presence.DRAINING)
        assert b.catalog.held[A.peer].record.revoked == taken_back


async def test_a_node_that_falls_silent_is_lost_and_comes_back_when_heard() -> None:
    net = MemoryNet()
    async with node(net, A, LLAMA) as a, node(net, B, bootstrap=(A,)) as b:
        presences: list[Presence] = []
        b.on_change(lambda nodes: presences.append(b.presence(A.peer)) if A.peer in nodes else None)
        await until(lambda: b.presence(A.peer) is Presence.ALIVE)
        assert isinstance(a.mesh, MemoryMesh)
        a.mesh.fail()
        assert "mesh" in a.degraded_parts()
        await until(lambda: b.presence(A.peer) is Presence.LOST)
        assert Presence.SUSPECT in presences
        a.mesh.recover()
        await until(lambda: b.presence(A.peer) is Presence.ALIVE)
        assert not a.degraded_parts()


async def test_after_a_partition_both_sides_agree_again() -> None:
    net = MemoryNet()
    async with node(net, A) as a, node(net, B, bootstrap=(A,)) as b:
        await until(lambda: agree(a, b) and len(a.catalog.held) == 2)
        net.partition([A.peer], [B.peer])
        await a.announce([LLAMA])
        await b.announce([QWEN])
        net.heal()
        await until(lambda: agree(a, b) and offers(a, "qwen") and offers(b, "llama"))


# The store.


async def test_a_store_that_fails_degrades_and_serving_goes_on_and_all_is_saved_later() -> None:
    net, store = MemoryNet(), FailingStore()
    async with node(net, A, store=store) as a, node(net, B, bootstrap=(A,)) as b:
        await until(lambda: agree(a, b) and not a.degraded_parts())
        store.broken = True
        await a.announce([LLAMA])
        await b.announce([QWEN])
        await until(lambda: "store" in a.degraded_parts())
        await until(lambda: offers(b, "llama") and offers(a, "qwen"))
        store.broken = False
        await until(lambda: not a.degraded_parts())
        stored = (await store.read(Space.RECORDS)).values()
        assert set(stored) == {signed.frame for signed in a.catalog.held.values()}


async def test_a_store_that_cannot_be_read_does_not_keep_a_node_from_serving() -> None:
    net, store = MemoryNet(), FailingStore()
    store.broken = True
    async with node(net, A, LLAMA, store=store, epoch=1) as a, node(net, B, bootstrap=(A,)) as b:
        assert "store" in a.degraded_parts()
        await until(lambda: offers(b, "llama") == {A.peer})


async def test_the_last_record_of_a_node_is_saved_when_it_stops() -> None:
    store = MemoryStore()
    async with node(MemoryNet(), A, store=store) as a:
        await a.announce([LLAMA])
        await a.set_standing(Standing.LEFT)
    stored = await store.read(Space.RECORDS)
    assert stored[A.peer] == a.catalog.held[A.peer].frame


async def test_a_restarted_node_remembers_the_others_and_takes_none_for_living() -> None:
    net, store = MemoryNet(), MemoryStore()
    async with node(net, A, store=store) as a, node(net, B, QWEN, bootstrap=(A,)):
        await until(lambda: offers(a, "qwen"))
    async with node(net, A, store=store) as again:
        assert offers(again, "qwen") == {B.peer}
        assert again.presence(B.peer) is Presence.LOST
        assert again.own_record.version.epoch > a.own_record.version.epoch


async def test_epochs_rise_and_are_durable_before_they_are_used() -> None:
    store = MemoryStore()
    assert [await next_epoch(store, 50.7) for _ in range(3)] == [50, 51, 52]
    assert await next_epoch(store, 10.0) == 53
    assert await next_epoch(store, 1_000.0) == 1_000
    assert (await store.read(Space.SELF))[EPOCH_KEY] == b"1000"


@pytest.mark.parametrize("junk", [b"", b"-5", b"x", b"9" * 4_000, "٣".encode()])
async def test_an_unreadable_epoch_is_replaced_by_the_wall_clock(junk: bytes) -> None:
    store = MemoryStore()
    await store.write(Put(Space.SELF, EPOCH_KEY, junk))
    assert await next_epoch(store, 1_700_000_000.0) == 1_700_000_000


async def test_no_epoch_is_used_that_could_not_be_written() -> None:
    store = FailingStore()
    store.broken = True
    with pytest.raises(StoreUnavailable):
        await next_epoch(store, 1.0)


# Hostile peers.


@pytest.mark.parametrize("question", [b"", b"x" * 1_000, b"P\xff", b"l" + b"[" * 100_000])
async def test_a_peer_that_asks_nonsense_loses_its_answer_and_harms_no_node(
    question: bytes,
) -> None:
    net = MemoryNet()

    async def answer(peer: PeerId, question: bytes) -> bytes:
        return b"="

    async with node(net, A, LLAMA) as a, stranger(net, E, answer) as bad:
        with pytest.raises(PeerUnreachable):
            await bad.ask(A.peer, question, timeout=1.0)
        async with node(net, B, bootstrap=(A,)) as b:
            await until(lambda: agree(a, b) and offers(b, "llama"))


@pytest.mark.parametrize("question", [b"l" + b"[" * 100, PROVE, VOUCH + b"x"])
async def test_a_malformed_question_is_an_offence(question: bytes) -> None:
    net = MemoryNet()

    async def answer(peer: PeerId, question: bytes) -> bytes:
        return b"="

    async with node(net, A, LLAMA) as a, stranger(net, E, answer) as bad:
        with pytest.raises(PeerUnreachable):
            await bad.ask(A.peer, question, timeout=1.0)
        assert a.counters["offences"] == 1


async def test_a_peer_that_asks_without_end_is_refused_and_others_are_answered() -> None:
    net = MemoryNet()

    async def answer(peer: PeerId, question: bytes) -> bytes:
        return b"="

    async with node(net, A, LLAMA) as a, stranger(net, E, answer) as bad:
        answered = 0
        for _ in range(300):
            with suppress(PeerUnreachable):
                answered += bool(await bad.ask(A.peer, b"c", timeout=1.0))
        assert 100 <= answered < 200
        assert a.counters["questions_refused"] == 300 - answered
        async with node(net, B, bootstrap=(A,)) as b:
            await until(lambda: agree(a, b) and offers(b, "llama"))


@pytest.mark.parametrize("reply", [b"", b"x" * 512, b"\xff" * 100_000])
async def test_a_peer_that_answers_nonsense_is_counted_and_nothing_else(reply: bytes) -> None:
    net = MemoryNet()

    async def answer(peer: PeerId, question: bytes) -> bytes:
        return reply

    async with node(net, A, LLAMA) as a, stranger(net, E, answer):
        await until(lambda: a.counters["syncs_failed"] > 1)
        async with node(net, B, QWEN, bootstrap=(A,)) as b:
            await until(lambda: agree(a, b) and offers(a, "qwen"))


async def test_frames_of_noise_are_counted_and_nothing_else() -> None:
    net = MemoryNet()

    async def answer(peer: PeerId, question: bytes) -> bytes:
        return b"="

    async with node(net, A, LLAMA) as a, stranger(net, E, answer) as bad:
        for frame in (b"", b"noise", b"\x01\x01" + bytes(200), b"\x01\x02" + bytes(120)):
            await bad.publish(frame)
        await until(lambda: a.counters["frames_bad"] == 4)
        async with node(net, B, bootstrap=(A,)) as b:
            await until(lambda: agree(a, b) and offers(b, "llama"))


@pytest.mark.parametrize(
    "address",
    ["nonsense", "/p2p/", f"/p2p/{E.peer}", "/memory/0/p2p/nobody", f"/ip4/999/tcp/x/p2p/{E.peer}"],
)
async def test_a_record_with_an_address_that_leads_nowhere_harms_no_node(address: str) -> None:
    net = MemoryNet()

    async def answer(peer: PeerId, question: bytes) -> bytes:
        return b"="

    record = Record(E.peer, Version(1, 1), reach=Reach(mesh=(address,), links=(address,)))
    async with node(net, A, LLAMA) as a, stranger(net, E, answer) as bad:
        await bad.publish(wire.encode_record(record, E).frame)
        await until(lambda: E.peer in a.catalog.held)
        async with node(net, B, QWEN, bootstrap=(A,)) as b:
            await until(lambda: agree(a, b) and offers(a, "qwen"))


async def test_a_record_cannot_make_us_dial_another_node() -> None:
    net = MemoryNet()

    async def answer(peer: PeerId, question: bytes) -> bytes:
        return b"="

    record = Record(E.peer, Version(1, 1), reach=Reach(mesh=(address_of(C.peer),)))
    async with node(net, A, LLAMA) as a, stranger(net, E, answer) as bad, node(net, C) as victim:
        await bad.publish(wire.encode_record(record, E).frame)
        await until(lambda: E.peer in a.catalog.held)
        assert victim.mesh.connections() == ()


async def test_records_that_a_peer_gave_before_it_fell_silent_are_told_and_saved() -> None:
    net, store = MemoryNet(), MemoryStore()
    peer = Replica(E, SETTINGS, epoch=1, jitter=lambda: 0.5)
    peer.announce(0.0, services=[QWEN])

    async def answer(asker: PeerId, question: bytes) -> bytes:
        if question[:1] == b"P":
            raise PeerUnreachable("not today")
        return sync.answer(peer, question, 0.0)[0]

    async with node(net, A, LLAMA, store=store) as a:
        reported: set[PeerId] = set()
        a.on_change(reported.update)
        async with stranger(net, E, answer):
            await until(lambda: a.counters["syncs_failed"] > 0 and E.peer in a.catalog.held)
            await until(lambda: E.peer in reported)
    assert E.peer in await store.read(Space.RECORDS)


# Membership.


async def test_draining_and_leaving_are_seen_at_once_by_a_node_connected_only_via_others() -> None:
    net = MemoryNet()
    async with (
        node(net, A, LLAMA, settings=PATIENT) as a,
        node(net, B, bootstrap=(A,), settings=PATIENT) as b,
        node(net, C, bootstrap=(B,), settings=PATIENT) as c,
    ):
        await until(lambda: agree(a, b, c) and c.presence(A.peer) is Presence.ALIVE)
        for standing, seen in (
            (Standing.DRAINING, Presence.DRAINING),
            (Standing.LEFT, Presence.LEFT),
        ):
            net.cut(A.peer, C.peer)
            await a.set_standing(standing)
            await until(lambda seen=seen: c.presence(A.peer) is seen, within=1.0)


async def test_a_node_that_dies_is_lost_to_all_long_before_its_lease_is_over() -> None:
    net = MemoryNet()
    async with (
        node(net, A, settings=PATIENT) as a,
        node(net, B, bootstrap=(A,), settings=PATIENT) as b,
        node(net, C, bootstrap=(B,), settings=PATIENT) as c,
    ):
        await until(lambda: agree(a, b, c) and len(c.catalog.held) == 3)
        a.mesh.fail()
        await until(lambda: {b.presence(A.peer), c.presence(A.peer)} == {Presence.LOST})
        a.mesh.recover()
        await until(lambda: {b.presence(A.peer), c.presence(A.peer)} == {Presence.ALIVE})
        assert c.health_of(A.peer) is not None


async def test_after_a_restart_nodes_that_live_are_alive_again_though_no_heartbeat_comes() -> None:
    net, store = MemoryNet(), MemoryStore()
    async with (
        node(net, A, LLAMA, settings=PATIENT) as a,
        node(net, B, QWEN, bootstrap=(A,), settings=PATIENT) as b,
    ):
        async with node(net, C, bootstrap=(B,), store=store, settings=PATIENT) as c:
            await until(lambda: agree(a, b, c) and len(c.catalog.held) == 3)
        async with node(net, C, bootstrap=(B,), store=store, settings=PATIENT) as again:
            net.partition([A.peer], [B.peer, C.peer])
            await until(lambda: again.presence(B.peer) is Presence.ALIVE)


async def test_heartbeats_that_counted_are_remembered_over_a_restart() -> None:
    net, store = MemoryNet(), MemoryStore()
    async with node(net, A, store=store) as a, node(net, B, bootstrap=(A,)):
        await until(lambda: (health := a.health_of(B.peer)) is not None and health.beat > 2)
        last = a.health_of(B.peer)
    async with node(net, A, store=store) as again:
        health = again.health_of(B.peer)
        assert health is not None
        assert last is not None
        assert (health.version, health.beat) >= (last.version, last.beat)


async def test_a_denied_peer_is_not_heard_not_answered_and_not_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = MemoryNet()
    closed = SETTINGS.model_copy(update={"deny": (E.peer,)})

    async def answer(peer: PeerId, question: bytes) -> bytes:
        return b"="

    async with node(net, A, LLAMA, settings=closed) as a, stranger(net, E, answer) as bad:
        await bad.publish(wire.encode_record(Record(E.peer, Version(1, 1)), E).frame)
        with pytest.raises(PeerUnreachable):
            await bad.ask(A.peer, b"c" + bytes(32), timeout=1.0)
        pipe = await bad.open_pipe(A.peer, timeout=1.0)
        with pytest.raises(PeerUnreachable):
            await pipe.read()
        async with node(net, B, QWEN, bootstrap=(A,)) as b:
            await until(lambda: offers(a, "qwen") and offers(b, "llama"))
        assert E.peer not in a.catalog.held
        assert a.counters["kept_out"] >= 3
    # They are counted, and the count is logged: `node.observe.refusals`.
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_pipes_of_peers_without_a_record_are_not_served() -> None:
    net, served = MemoryNet(), list[PeerId]()

    async def serve(pipe: Pipe) -> None:
        served.append(pipe.peer)
        await pipe.reset()

    async def answer(_: PeerId, question: bytes) -> bytes:
        return b"=" if question.startswith(b"c") else b""

    async with node(net, A, LLAMA, serve=serve) as a, stranger(net, E, answer) as peer:
        with pytest.raises(PeerUnreachable):
            await (await peer.open_pipe(A.peer, timeout=1.0)).read()
        assert not served
        await peer.publish(wire.encode_record(Record(E.peer, Version(1, 1)), E).frame)
        await until(lambda: E.peer in a.catalog.held)
        with pytest.raises(PeerUnreachable):
            await (await peer.open_pipe(A.peer, timeout=1.0)).read()
        assert served == [E.peer]


async def test_a_second_machine_with_our_key_is_reported_once_and_readiness_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = MemoryNet()

    async def answer(peer: PeerId, question: bytes) -> bytes:
        return b"="

    async with node(net, A, LLAMA) as a, stranger(net, E, answer) as other:
        for sequence in range(10):
            version = Version(
                a.own_record.version.epoch, a.own_record.version.sequence + 10 + sequence
            )
            await other.publish(wire.encode_record(Record(A.peer, version), A).frame)
            await asyncio.sleep(0)
        await until(lambda: "identity" in a.degraded_parts())
        reported = [r for r in caplog.records if "this node's key" in r.getMessage()]
        assert [r.levelname for r in reported] == ["ERROR"]
        assert "mesh" not in a.degraded_parts()


async def test_a_flood_of_bad_frames_is_counted_and_honest_nodes_are_heard() -> None:
    net = MemoryNet()

    async def answer(peer: PeerId, question: bytes) -> bytes:
        return b"="

    async with node(net, A, LLAMA) as a, stranger(net, E, answer) as bad:
        good = wire.encode_record(Record(E.peer, Version(1, 1)), E).frame
        forged = good[:40] + bytes(60) + good[100:]
        for _ in range(6_000):
            await bad.publish(forged)
            if not a.counters["frames_in"] % 100:
                await asyncio.sleep(0)
        await until(lambda: a.counters["frames_in"] + a.mesh.dropped_frames() >= 6_000)
        async with node(net, B, QWEN, bootstrap=(A,)) as b:
            await until(lambda: offers(a, "qwen") and offers(b, "llama"))
