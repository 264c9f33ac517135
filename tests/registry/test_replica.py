"""The laws of the registry, one by one, as conversations between replicas. Time is a number."""

import tracemalloc
from contextlib import suppress
from itertools import count

import pytest

from registry import wire
from registry.catalog import Signed
from registry.effects import (
    Changed,
    Contested,
    Effect,
    Fetch,
    Forget,
    Loaded,
    Persist,
    Probe,
    Publish,
    Remember,
)
from registry.errors import InvalidSignature, LimitReached
from registry.members.liveness import Evidence, Presence
from registry.records import (
    Doubt,
    Heartbeat,
    Load,
    LoadNote,
    PeerId,
    Reach,
    Record,
    Service,
    Standing,
    Version,
)
from registry.replica import Replica
from registry.settings import RegistrySettings
from registry.signing import Identity
from tests.strategies import IDENTITIES

A, B, C, D = IDENTITIES[:4]
LLAMA, QWEN = Service("p", "llama"), Service("p", "qwen")
SETTINGS = RegistrySettings()
LEASE = SETTINGS.lease


def replica(owner: Identity, *, epoch: int = 1, settings: RegistrySettings = SETTINGS) -> Replica:
    return Replica(owner, settings, epoch=epoch, jitter=lambda: 0.5)


def serving(owner: Identity, *services: Service, epoch: int = 1, now: float = 0.0) -> Replica:
    node = replica(owner, epoch=epoch)
    node.announce(now, services=services)
    return node


def word(
    owner: Identity,
    *services: Service,
    at: tuple[int, int] = (1, 1),
    standing: Standing = Standing.SERVING,
) -> bytes:
    record = Record(owner.peer, Version(*at), standing, services)
    return wire.encode_record(record, owner).frame


def beat(owner: Identity, number: int, *, at: tuple[int, int] = (1, 1)) -> bytes:
    return wire.encode_heartbeat(Heartbeat(owner.peer, Version(*at), number), owner)


def own_word(of: Replica) -> bytes:
    return of.catalog.held[of.peer].frame


def published(effects: list[Effect]) -> list[bytes]:
    return [effect.frame for effect in effects if isinstance(effect, Publish)]


def changed(effects: list[Effect]) -> set[PeerId]:
    return {node for e in effects if isinstance(e, Changed) for node in e.nodes}


def offered(by: Identity, node: Replica) -> set[Service]:
    offers = {offer for some in node.catalog.offers.values() for offer in some}
    return {offer.service for offer in offers if offer.node == by.peer}


# Speaking.


def test_serving_is_persisted_at_once_and_published_when_due() -> None:
    node = replica(A)
    persist, change = node.announce(0.0, services=[LLAMA])
    assert persist == Persist(node.catalog.held[A.peer])
    assert change == Changed(frozenset({A.peer}))
    assert own_word(node) in published(node.tick(SETTINGS.coalesce))


def test_a_burst_of_500_registrations_is_published_in_one_record() -> None:
    node = replica(A)
    frames: list[bytes] = []
    for n in range(500):
        now = n * SETTINGS.coalesce / 500
        node.announce(now, services=[Service("p", f"model-{k}") for k in range(n + 1)])
        frames += published(node.tick(now))
    frames += published(node.tick(SETTINGS.coalesce))
    records = [wire.decode(frame) for frame in frames]
    (last,) = [record for record in records if isinstance(record, Signed)]
    assert len(last.record.services) == 500
    assert len(frames) <= 2


def test_changes_that_never_pause_are_still_published() -> None:
    node = replica(A)
    frames: list[bytes] = []
    for n in range(1, 100):
        now = n * SETTINGS.coalesce / 2
        node.announce(now, services=[Service("p", f"model-{n}")])
        frames += published(node.tick(now))
    assert 30 <= sum(isinstance(wire.decode(frame), Signed) for frame in frames) <= 60


def test_announcing_the_same_again_has_no_effect() -> None:
    node = serving(A, LLAMA)
    assert node.announce(1.0, services=[LLAMA]) == []


def test_parts_of_the_record_that_an_announcement_does_not_name_stay() -> None:
    node = serving(A, LLAMA)
    reach = Reach(links=("10.0.0.1:6100",))
    node.announce(1.0, reach=reach)
    node.announce(2.0, standing=Standing.DRAINING)
    assert (node.own_record.services, node.own_record.reach, node.own_record.standing) == (
        (LLAMA,),
        reach,
        Standing.DRAINING,
    )


def test_the_agent_is_part_of_the_next_record() -> None:
    node = replica(A)
    node.describe("modelvine/1")
    node.announce(0.0, services=[])
    assert node.catalog.held[A.peer].record.agent == "modelvine/1"


@pytest.mark.parametrize("services", [2_001, 1_999])
def test_services_that_do_not_fit_a_record_change_nothing(services: int) -> None:
    node = serving(A, LLAMA)
    before = node.own_record, node.catalog, node.next_due()
    many = [Service("p" * 250, f"model-{n}") for n in range(services)]
    with pytest.raises(LimitReached):
        node.require_fit(many)
    with pytest.raises(LimitReached):
        node.announce(1.0, services=many)
    assert (node.own_record, node.catalog, node.next_due()) == before


def test_a_record_that_other_nodes_would_refuse_is_not_announced() -> None:
    node = serving(A, LLAMA)
    with pytest.raises(LimitReached):
        node.announce(1.0, services=[LLAMA, LLAMA])
    assert node.own_record.services == (LLAMA,)


def test_a_machine_with_many_addresses_announces_as_many_as_a_record_carries() -> None:
    node = replica(A)
    node.announce(0.0, reach=Reach(mesh=tuple(f"/ip4/10.0.0.{n}/tcp/1" for n in range(40))))
    assert len(node.own_record.reach.mesh) == wire.MAX_ADDRESSES
    wire.decode(own_word(node))


def test_a_node_that_has_announced_nothing_sends_no_heartbeat() -> None:
    assert replica(A).tick(1e6) == []


def test_a_heartbeat_is_sent_every_period_and_a_record_again_now_and_then() -> None:
    node = serving(A, LLAMA)
    sizes = [len(frame) for second in range(600) for frame in published(node.tick(float(second)))]
    assert sizes.count(122) == pytest.approx(600 / SETTINGS.heartbeat, abs=2)
    assert len(sizes) - sizes.count(122) == pytest.approx(600 / SETTINGS.reannounce, abs=2)


def test_nothing_happens_before_it_is_due() -> None:
    one, other = serving(A, LLAMA), serving(B, QWEN)
    one.receive(own_word(other), 0.0)
    now = 0.0
    for _ in range(50):
        due = one.next_due()
        assert one.tick(due - 1e-6) == [] or due <= now
        now = max(now, due)
        assert one.tick(now) != []
        assert one.next_due() > now


def test_leaving_and_draining_travel_at_once() -> None:
    one, other = serving(A, LLAMA), serving(B)
    for standing, presence in (
        (Standing.DRAINING, Presence.DRAINING),
        (Standing.LEFT, Presence.LEFT),
    ):
        one.announce(1.0, standing=standing)
        one.expedite_publication(1.0)
        for frame in published(one.tick(1.0)):
            other.receive(frame, 1.0)
        assert other.presence(A.peer) is presence
        assert one.presence(A.peer) is presence


# No node speaks for another.


def test_a_node_cannot_speak_for_another() -> None:
    node = serving(A)
    genuine = word(B, LLAMA)
    forged = genuine[:2] + C.public + genuine[34:]
    with pytest.raises(InvalidSignature):
        node.receive(forged, 0.0)
    assert C.peer not in node.catalog.held


def test_a_forged_heartbeat_does_not_keep_a_node_alive() -> None:
    node = serving(A)
    node.receive(word(B, LLAMA), 0.0)
    with pytest.raises(InvalidSignature):
        node.receive(beat(C, 1)[:2] + B.public + beat(C, 1)[34:], LEASE - 1)
    node.tick(LEASE)
    assert node.presence(B.peer) is Presence.LOST


# Merging.


def test_a_withdrawal_beats_an_older_registration_that_arrives_late() -> None:
    node = serving(A)
    node.receive(word(B, at=(1, 2)), 1.0)
    assert node.receive(word(B, LLAMA, at=(1, 1)), 2.0) == []
    assert offered(B, node) == set()


def test_nothing_withdrawn_comes_back_not_even_after_a_lapse() -> None:
    node = serving(A)
    node.receive(word(B, LLAMA, at=(1, 1)), 0.0)
    node.receive(word(B, at=(1, 2)), 0.0)
    node.tick(1e6)
    assert node.receive(word(B, LLAMA, at=(1, 1)), 1e6) == []
    assert offered(B, node) == set()
    assert node.presence(B.peer) is Presence.LOST


def test_a_node_that_left_does_not_come_back_by_an_old_record_or_an_old_heartbeat() -> None:
    node = serving(A)
    node.receive(word(B, LLAMA, at=(1, 1)), 0.0)
    node.receive(word(B, LLAMA, at=(1, 2), standing=Standing.LEFT), 0.0)
    node.receive(word(B, LLAMA, at=(1, 1)), 1.0)
    node.receive(beat(B, 7, at=(1, 1)), 1.0)
    assert node.presence(B.peer) is Presence.LEFT


def test_a_restart_with_a_higher_epoch_beats_every_older_sequence() -> None:
    node = serving(A)
    node.receive(word(B, LLAMA, at=(1, 900)), 0.0)
    node.receive(word(B, QWEN, at=(2, 1)), 1.0)
    assert node.receive(word(B, LLAMA, at=(1, 901)), 2.0) == []
    assert node.catalog.held[B.peer].record.services == (QWEN,)


def test_news_is_persisted_and_told_and_old_records_are_not() -> None:
    node = serving(A)
    frame = word(B, LLAMA)
    assert node.receive(frame, 0.0) == [
        Persist(Signed(node.catalog.held[B.peer].record, frame)),
        Changed(frozenset({B.peer})),
    ]
    assert node.receive(frame, 1.0) == []


# Refuting.


def test_our_own_older_records_and_heartbeats_change_nothing() -> None:
    node = serving(A, LLAMA, epoch=2)
    for old in (word(A, QWEN, at=(1, 7)), own_word(node), beat(A, 9, at=(1, 7))):
        assert node.receive(old, 1.0) == []
    assert node.own_record.services == (LLAMA,)


def test_after_a_restored_backup_we_step_past_our_own_later_records_and_publish_what_holds() -> (
    None
):
    one, other = serving(A, LLAMA, epoch=1), serving(B)
    lost_life = word(A, QWEN, at=(7, 42))
    other.receive(lost_life, 0.0)
    one.receive(lost_life, 1.0)
    assert one.own_record.version > Version(7, 42)
    for frame in published(one.tick(2.0)):
        other.receive(frame, 2.0)
    assert other.catalog.held[A.peer].record.services == (LLAMA,)


def test_after_a_restored_backup_our_heartbeats_count_again() -> None:
    one, other = serving(A, LLAMA, epoch=1), serving(B)
    other.receive(word(A, QWEN, at=(7, 42)), 0.0)
    for number in range(1, 1_000):
        other.receive(beat(A, number, at=(7, 42)), number / 10)
    one.receive(word(A, QWEN, at=(7, 42)), 100.0)
    for second in range(100, 200):
        for frame in published(one.tick(float(second))):
            other.receive(frame, float(second))
        other.tick(float(second))
        assert other.presence(A.peer) is Presence.ALIVE


def test_a_heartbeat_of_ours_from_the_future_makes_us_step_past_it() -> None:
    node = serving(A, LLAMA)
    effects = node.receive(beat(A, 3, at=(9, 9)), 1.0)
    assert node.own_record.version > Version(9, 9)
    assert any(isinstance(effect, Persist) for effect in effects)


def test_two_machines_with_one_key_contradict_each_other_only_slowly_and_report_it() -> None:
    one, twin = serving(A, LLAMA), serving(A, QWEN)
    records, contested = 0, 0
    for tenth in range(6_000):
        now = tenth / 10
        for speaker, hearer in ((one, twin), (twin, one)):
            for frame in published(speaker.tick(now)):
                records += len(frame) != 122
                effects = hearer.receive(frame, now)
                contested += any(isinstance(effect, Contested) for effect in effects)
    assert records <= 2 * (600 / 5 + 600 / SETTINGS.reannounce + 10)
    assert contested > 0


def test_the_first_record_after_a_restart_is_newer_than_what_the_store_kept_of_ours() -> None:
    node = replica(A, epoch=3)
    assert node.restore([word(A, LLAMA, at=(5, 5))], 0.0) == 0
    node.announce(0.0, services=[QWEN])
    assert node.own_record.version > Version(5, 5)


# Hearing beats.


def test_a_node_is_lost_without_heartbeats_and_revives_with_the_next() -> None:
    node = serving(A)
    node.receive(word(B, LLAMA), 0.0)
    for number in range(1, 10):
        node.receive(beat(B, number), number * 5.0)
        node.tick(number * 5.0)
        assert node.presence(B.peer) is Presence.ALIVE
    assert changed(node.tick(45.0 + LEASE)) >= {B.peer}
    assert node.presence(B.peer) is Presence.LOST
    assert offered(B, node) == {LLAMA}
    assert changed(node.receive(beat(B, 10), 100.0)) == {B.peer}
    assert node.presence(B.peer) is Presence.ALIVE


def test_replayed_heartbeats_prove_nothing() -> None:
    node = serving(A)
    node.receive(word(B, LLAMA), 0.0)
    recorded = [beat(B, number) for number in range(1, 4)]
    for number, frame in enumerate(recorded):
        node.receive(frame, float(number))
    node.tick(LEASE + 2.0)
    for frame in recorded * 3:
        assert node.receive(frame, LEASE + 3.0) == []
    assert node.presence(B.peer) is Presence.LOST


def test_an_older_heartbeat_that_comes_after_a_newer_one_does_not_count() -> None:
    node = serving(A)
    node.receive(word(B, LLAMA), 0.0)
    node.receive(beat(B, 5), 1.0)
    node.receive(beat(B, 4), 9.0)
    assert node.member_health()[B.peer].heard == 1.0


def test_a_heartbeat_of_an_older_version_than_we_hold_proves_nothing() -> None:
    node = serving(A)
    node.restore([word(B, at=(2, 2))], 0.0)
    for stale in ((2, 1), (1, 9)):
        assert node.receive(beat(B, 1_000, at=stale), 1.0) == []
    assert node.presence(B.peer) is Presence.LOST


@pytest.mark.parametrize("at", [(1, 2), (2, 0)])
def test_a_heartbeat_of_a_newer_version_asks_for_the_record_and_does_not_revive_its_node(
    at: tuple[int, int],
) -> None:
    node = serving(A)
    node.receive(word(B, LLAMA), 0.0)
    node.tick(LEASE)
    assert node.receive(beat(B, 1, at=at), LEASE) == [Fetch(B.peer, Version(*at))]
    assert node.presence(B.peer) is Presence.LOST


def test_a_heartbeat_of_a_stranger_asks_for_its_record() -> None:
    assert serving(A).receive(beat(B, 1), 0.0) == [Fetch(B.peer, Version(1, 1))]


def test_a_lost_node_is_lost_here_only_and_its_record_stays() -> None:
    node = serving(A)
    node.receive(word(B, LLAMA), 0.0)
    digest = node.catalog.digest
    node.tick(LEASE)
    assert node.catalog.digest == digest


def test_a_failed_request_makes_a_node_suspect_and_its_beat_unreachable_until_it_answers() -> None:
    node = serving(A)
    node.receive(word(B, LLAMA), 0.0)
    assert changed(node.observe(B.peer, Evidence.FAILED, 1.0)) == {B.peer}
    assert node.presence(B.peer) is Presence.SUSPECT
    node.receive(beat(B, 1), 2.0)
    assert node.presence(B.peer) is Presence.UNREACHABLE
    assert changed(node.observe(B.peer, Evidence.ANSWERED, 3.0)) == {B.peer}
    assert node.presence(B.peer) is Presence.ALIVE


def test_a_record_from_before_the_failure_does_not_clear_the_doubt() -> None:
    node = serving(A)
    node.receive(word(B, LLAMA), 0.0)
    node.observe(B.peer, Evidence.FAILED, 10.0)
    later = wire.decode(word(B, QWEN, at=(1, 2)))
    assert isinstance(later, Signed)
    node.merge_record(later, heard_at=5.0, now=11.0)
    assert node.presence(B.peer) is Presence.SUSPECT
    assert node.catalog.held[B.peer].record.services == (QWEN,)


def test_strangers_are_not_followed() -> None:
    node = serving(A)
    assert node.observe(B.peer, Evidence.LINKED, 0.0) == []
    assert node.presence(B.peer) is Presence.LOST


def test_a_record_that_is_a_lease_old_when_it_comes_does_not_make_its_node_alive() -> None:
    node = serving(A)
    old = wire.decode(word(B, LLAMA))
    assert isinstance(old, Signed)
    node.merge_record(old, heard_at=0.0, now=LEASE)
    assert node.presence(B.peer) is Presence.LOST


# Restarting.


def test_restored_nodes_are_lost_until_they_are_heard() -> None:
    node = replica(A)
    assert node.restore([word(B, LLAMA), word(C, at=(4, 4))], 1_000.0) == 0
    assert {node.presence(B.peer), node.presence(C.peer)} == {Presence.LOST}
    node.receive(beat(B, 1), 1_001.0)
    assert node.presence(B.peer) is Presence.ALIVE


def test_a_replayed_record_does_not_revive_its_node_after_our_restart() -> None:
    node = replica(A)
    node.restore([word(B, LLAMA)], 0.0)
    assert node.receive(word(B, LLAMA), 1.0) == []
    assert node.presence(B.peer) is Presence.LOST


def test_restoring_counts_what_it_cannot_read() -> None:
    node = replica(A)
    frames = [word(B, LLAMA), b"", b"\x01\x01noise", beat(C, 1), word(C)[:-1]]
    assert node.restore(frames, 0.0) == 4
    assert set(node.catalog.held) == {B.peer}


def test_restoring_keeps_to_the_limit() -> None:
    node = replica(A, settings=RegistrySettings(max_nodes=2))
    node.restore([word(B), word(C), word(D)], 0.0)
    assert len(node.catalog.held) == 2


# Limits.


def test_a_full_registry_refuses_a_newcomer_while_every_node_in_it_lives() -> None:
    node = replica(A, settings=RegistrySettings(max_nodes=3))
    node.announce(0.0, services=[])
    node.receive(word(B), 0.0)
    node.receive(word(C), 0.0)
    before = node.catalog
    with pytest.raises(LimitReached):
        node.receive(word(D), 1.0)
    assert node.catalog is before
    node.receive(word(B, LLAMA, at=(1, 2)), 2.0)
    assert offered(B, node) == {LLAMA}


def test_a_full_registry_forgets_the_node_that_was_lost_longest_for_a_living_newcomer() -> None:
    node = replica(A, settings=RegistrySettings(max_nodes=3))
    node.announce(0.0, services=[])
    node.receive(word(B), 0.0)
    node.receive(word(C), 1.0)
    node.tick(LEASE + 1.0)
    effects = node.receive(word(D), 50.0)
    assert Forget(B.peer) in effects
    assert changed(effects) == {B.peer, D.peer}
    assert set(node.catalog.held) == {A.peer, C.peer, D.peer}


def test_dead_nodes_do_not_push_each_other_out_of_a_full_registry() -> None:
    node = replica(A, settings=RegistrySettings(max_nodes=2))
    node.announce(0.0, services=[])
    node.receive(word(B), 0.0)
    node.tick(LEASE)
    dead = wire.decode(word(C))
    assert isinstance(dead, Signed)
    with pytest.raises(LimitReached):
        node.merge_record(dead, heard_at=0.0, now=LEASE + 100.0)
    assert B.peer in node.catalog.held


def test_an_author_that_floods_is_refused_and_others_are_heard() -> None:
    node = serving(A)
    refused = 0
    for sequence in range(1, 400):
        try:
            node.receive(word(B, at=(1, sequence)), 0.0)
        except LimitReached:
            refused += 1
    assert refused == 399 - SETTINGS.frames_per_second * 10
    assert node.receive(word(C, LLAMA), 0.0) != []


def test_heartbeats_count_against_the_rate_of_their_author_too() -> None:
    node = serving(A)
    node.receive(word(B), 0.0)
    for number in range(1, 200):
        node.receive(beat(B, number), 0.0)
    with pytest.raises(LimitReached):
        node.receive(beat(B, 200), 0.0)


def test_an_author_of_large_records_is_charged_by_their_length() -> None:
    node, refused = serving(A), 0
    for sequence in range(1, 40):
        services = [Service("p", f"{sequence}-{n}" * 5) for n in range(2_000)]
        try:
            node.receive(word(B, *services, at=(1, sequence)), 0.0)
        except LimitReached:
            refused += 1
    assert 30 <= refused <= 37
    assert node.receive(word(C, LLAMA), 0.0) != []


def test_fetches_of_newer_records_count_against_the_node_that_names_them() -> None:
    node = serving(A)
    node.receive(word(B), 0.0)
    fetched = 0
    for number in range(1, 100):
        try:
            effects = node.receive(beat(B, number, at=(1, number + 1)), 0.0)
            fetched += effects == [Fetch(B.peer, Version(1, number + 1))]
        except LimitReached:
            continue
    assert 5 <= fetched <= 10


def test_repeating_another_nodes_old_frames_does_not_silence_it() -> None:
    node = serving(A)
    old, new = word(B, LLAMA, at=(1, 1)), word(B, QWEN, at=(1, 2))
    node.receive(old, 0.0)
    node.receive(beat(B, 1), 0.0)
    for _ in range(500):
        node.receive(old, 0.0)
        node.receive(beat(B, 1), 0.0)
    assert node.receive(new, 0.0) != []
    assert node.receive(beat(B, 2, at=(1, 2)), 0.0) == [Remember(B.peer, Version(1, 2), 2)]
    assert node.member_health()[B.peer].beat == 2


@pytest.mark.parametrize("rate", [0.01, 0.5, 20.0])
def test_a_first_record_is_heard_however_low_the_rate(rate: float) -> None:
    node = replica(A, settings=RegistrySettings(frames_per_second=rate))
    assert node.receive(word(B), 0.0) != []


def test_room_counts_free_places_and_those_of_lost_nodes() -> None:
    node = replica(A, settings=RegistrySettings(max_nodes=3))
    node.announce(0.0, services=[])
    rooms = [node.room_for_strangers(None, 0.0)]
    for owner, now in zip((B, C), count(), strict=False):
        node.receive(word(owner), float(now))
        rooms.append(node.room_for_strangers(None, float(now)))
    node.tick(LEASE + 1.0)
    assert [*rooms, node.room_for_strangers(None, LEASE + 1.0)] == [2, 1, 0, 2]


# Doubts.


def doubt(author: Identity, about: Identity, number: int, *, at: tuple[int, int] = (1, 1)) -> bytes:
    return wire.encode_doubt(Doubt(author.peer, Version(*at), number, about.peer), author)


def probes(effects: list[Effect]) -> list[PeerId]:
    return [effect.node for effect in effects if isinstance(effect, Probe)]


def beats_of(effects: list[Effect]) -> list[Heartbeat]:
    messages = map(wire.decode, published(effects))
    return [message for message in messages if isinstance(message, Heartbeat)]


def meeting(*others: Identity) -> Replica:
    """Return A's replica, which has sent a heartbeat already and knows some other nodes, connected to none."""
    node = serving(A)
    for other in others:
        node.receive(word(other, LLAMA), 0.0)
    node.tick(1.0)
    return node


def test_a_doubt_about_us_is_answered_with_a_heartbeat_at_once() -> None:
    node = meeting(B)
    node.receive(doubt(B, A, 1), 2.0)
    assert len(beats_of(node.tick(2.0))) == 1


def test_doubts_about_us_without_end_are_answered_at_a_bounded_rate() -> None:
    node = meeting(B)
    heartbeats = 0
    for number in range(1, 1_001):
        now = 2.0 + number * 0.1
        node.receive(doubt(B, A, number), now)
        heartbeats += len(beats_of(node.tick(now)))
    assert heartbeats <= 3 + 100 * 0.2 + 2


def test_a_doubt_about_another_node_makes_us_probe_it_and_changes_nothing_else() -> None:
    node = meeting(B, C)
    assert node.receive(doubt(B, C, 1), 2.0) == [Remember(B.peer, Version(1, 1), 1)]
    assert node.presence(C.peer) is Presence.ALIVE
    assert probes(node.tick(2.0 + SETTINGS.probe_timeout)) == [C.peer]
    assert node.presence(C.peer) is Presence.ALIVE


@pytest.mark.parametrize("frame", [doubt(B, C, 1), doubt(D, C, 1), doubt(B, C, 9, at=(0, 1))])
def test_a_repeated_doubt_a_strangers_and_an_outdated_one_count_for_nothing(frame: bytes) -> None:
    node = meeting(B, C)
    node.receive(doubt(B, D, 1), 2.0)
    node.receive(frame, 3.0)
    assert probes(node.tick(10.0)) == []


def test_a_forged_doubt_is_refused() -> None:
    node = meeting(B, C)
    forged = doubt(B, C, 1)[:2] + D.public + doubt(B, C, 1)[34:]
    with pytest.raises(InvalidSignature):
        node.receive(forged, 2.0)


# Loads.


def load(author: Identity, number: int, *, at: tuple[int, int] = (1, 1), index: int = 0) -> bytes:
    note = LoadNote(author.peer, Version(*at), number, ((index, Load(3)),))
    return wire.encode_load(note, author)


def hearing_b() -> Replica:
    node = serving(A)
    node.receive(word(B, LLAMA), 1.0)
    return node


def taken(effects: list[Effect]) -> list[Loaded]:
    return [effect for effect in effects if isinstance(effect, Loaded) and effect.loads]


def test_a_load_names_its_replica_and_proves_life_like_a_heartbeat() -> None:
    node = hearing_b()
    node.tick(1.0 + LEASE)
    assert node.presence(B.peer) is Presence.LOST
    effects = node.receive(load(B, 1), 2.0 + LEASE)
    assert Loaded(B.peer, {LLAMA: Load(3)}) in effects
    assert Remember(B.peer, Version(1, 1), 1) in effects
    assert node.presence(B.peer) is Presence.ALIVE


def test_a_load_is_never_kept_nor_part_of_what_is_compared() -> None:
    node = hearing_b()
    before = node.catalog
    effects = node.receive(load(B, 1), 2.0)
    assert node.catalog is before
    assert not any(isinstance(effect, Persist | Changed | Publish) for effect in effects)


@pytest.mark.parametrize(
    "frame", [load(B, 1), load(B, 2), load(B, 9, at=(0, 1)), load(D, 1), load(A, 1)],
    ids=["repeated", "older than a heartbeat", "outdated", "a stranger's", "our own"],
)  # fmt: skip
def test_a_load_that_counts_for_no_heartbeat_counts_for_nothing(frame: bytes) -> None:
    node = hearing_b()
    node.receive(load(B, 1), 2.0)
    node.receive(beat(B, 2), 2.0)
    health = node.member_health()[B.peer]
    assert taken(node.receive(frame, 3.0)) == []
    assert node.member_health()[B.peer] == health


def test_a_load_of_a_record_that_we_do_not_hold_yet_makes_us_fetch_the_record() -> None:
    effects = hearing_b().receive(load(B, 1, at=(1, 2)), 2.0)
    assert effects == [Fetch(B.peer, Version(1, 2)), Loaded(B.peer, {})]


def test_a_load_that_names_no_service_of_the_record_is_dropped() -> None:
    assert taken(hearing_b().receive(load(B, 1, index=1), 2.0)) == []


def test_a_forged_load_is_refused() -> None:
    node = hearing_b()
    forged = load(D, 1)[:2] + B.public + load(D, 1)[34:]
    with pytest.raises(InvalidSignature):
        node.receive(forged, 2.0)


def test_a_node_that_reports_without_end_is_heard_twice_a_second_and_lives() -> None:
    node = hearing_b()
    loads = [taken(node.receive(load(B, n), 2.0 + n / 10)) for n in range(1, 101)]
    assert sum(map(len, loads)) <= 5 + 2 * 10 + 1
    assert node.presence(B.peer) is Presence.ALIVE


def test_a_captured_load_proves_nothing_after_our_restart() -> None:
    captured = load(B, 7)
    node = replica(A, epoch=2)
    node.restore([word(B, LLAMA)], 0.0, beats={B.peer: (Version(1, 1), 7)})
    assert taken(node.receive(captured, 1.0)) == []
    assert node.presence(B.peer) is Presence.LOST


def test_in_a_large_mesh_loads_are_reported_less_often() -> None:
    node = serving(A, LLAMA)
    for n in range(24):
        other = Identity(bytes([100 + n]) * 32)
        node.receive(word(other), 0.0)
    node.tick(SETTINGS.coalesce)
    reported = [bool(node.publish_load({LLAMA: Load(1 + n % 2)}, 1.0 + n)) for n in range(20)]
    assert sum(reported) == 4  # one in 25 / 5 seconds


def test_a_node_that_no_probe_reached_is_doubted_aloud_and_lost_after_the_time_of_suspicion() -> (
    None
):
    node = meeting(B, C)
    node.observe(B.peer, Evidence.PARTED, 10.0)
    node.tick(10.0)
    node.observe(B.peer, Evidence.UNREACHED, 10.1)
    node.members.end_probe(B.peer, 10.1)
    frames = published(node.tick(11.0))
    assert [wire.decode(frame) for frame in frames] == [Doubt(A.peer, Version(1, 1), 2, B.peer)]
    assert node.presence(B.peer) is Presence.SUSPECT
    node.observe(B.peer, Evidence.UNREACHED, 11.1)
    node.tick(10.1 + SETTINGS.suspicion)
    assert node.presence(B.peer) is Presence.LOST


def test_a_node_that_hears_one_it_had_lost_sends_a_heartbeat_itself() -> None:
    node = meeting(B)
    node.observe(B.peer, Evidence.PARTED, 10.0)
    node.tick(10.0 + 3 * SETTINGS.suspicion)
    assert node.presence(B.peer) is Presence.LOST
    node.observe(B.peer, Evidence.ANSWERED, 30.0)
    assert len(beats_of(node.tick(30.0 + SETTINGS.probe))) == 1


def test_among_fifty_nodes_heartbeats_are_ten_times_as_rare() -> None:
    node = serving(A)
    for number in range(1, 50):
        node.receive(word(Identity(number.to_bytes(32))), 0.0)
    seconds = 2_000
    assert seconds < 10 * LEASE
    heartbeats = sum(len(beats_of(node.tick(float(now)))) for now in range(seconds))
    assert heartbeats == pytest.approx(seconds / (10 * SETTINGS.heartbeat), abs=2)


# Two machines with one key.


def test_of_two_machines_with_one_key_the_later_start_falls_silent_and_the_other_stands() -> None:
    first, second = serving(A, LLAMA, epoch=100), serving(A, QWEN, epoch=200)
    bystander = serving(B)
    records = 0
    for tenth in range(1_200):
        now = tenth / 10
        for speaker, hearer in ((first, second), (second, first)):
            for frame in published(speaker.tick(now)):
                records += isinstance(wire.decode(frame), Signed)
                hearer.receive(frame, now)
                bystander.receive(frame, now)
            # What gossip lost, a comparison brings.
            if A.peer in bystander.catalog.held:
                hearer.receive(bystander.catalog.held[A.peer].frame, now)
    assert (first.is_silenced, second.is_silenced) == (False, True)
    assert offered(A, bystander) == {LLAMA}
    assert records <= 20
    assert published(second.tick(1e6)) == []


def test_a_restored_backup_does_not_fall_silent_however_many_old_words_it_meets() -> None:
    node = serving(A, LLAMA, epoch=1)
    contested = 0
    for sequence in range(1, 100):
        effects = node.receive(word(A, QWEN, at=(7, sequence * 10)), float(sequence))
        contested += any(isinstance(effect, Contested) for effect in effects)
    assert not node.is_silenced
    node.receive(word(A, QWEN, at=(7, 990)), 200.0)
    assert own_word(node) in published(node.tick(300.0))
    assert node.own_record.services == (LLAMA,)


# After a restart.


def test_a_captured_heartbeat_does_not_revive_its_node_after_our_restart() -> None:
    node = meeting(B)
    captured = [beat(B, number) for number in (1, 2, 3)]
    beats = {}
    for frame in captured:
        for effect in node.receive(frame, 2.0):
            if isinstance(effect, Remember):
                beats[effect.node] = (effect.version, effect.beat)
    again = replica(A, epoch=2)
    again.restore([word(B, LLAMA)], 10.0, beats=beats)
    for frame in (*captured, word(B, LLAMA), doubt(B, C, 3)):
        again.receive(frame, 11.0)
    assert again.presence(B.peer) is Presence.LOST
    again.receive(beat(B, 4), 12.0)
    assert again.presence(B.peer) is Presence.ALIVE


def test_a_node_that_a_peer_heard_lately_is_alive_after_our_restart_and_one_it_lost_is_not() -> (
    None
):
    node = replica(A, epoch=2)
    node.restore([word(B, LLAMA), word(C, LLAMA)], 100.0)
    assert node.wants_hearsay()
    node.note_hearsay(B.peer, 99.0, 100.0)
    node.note_hearsay(C.peer, 100.0 - LEASE, 100.0)
    assert node.presence(B.peer) is Presence.ALIVE
    assert node.presence(C.peer) is Presence.LOST
    assert sum(node.wants_hearsay() for _ in range(100)) < 10


# Floods.


def test_a_flood_of_identities_is_held_up_to_the_limit_and_refused_beyond() -> None:
    node = replica(A, settings=RegistrySettings(max_nodes=500))
    node.announce(0.0, services=[LLAMA])
    frames = [word(Identity(number.to_bytes(32)), QWEN) for number in range(1, 3_001)]
    tracemalloc.start()
    refused = 0
    for frame in frames[:500]:
        with suppress(LimitReached):
            node.receive(frame, 0.0)
    full = tracemalloc.get_traced_memory()[0]
    for frame in frames[500:]:
        try:
            node.receive(frame, 0.0)
        except LimitReached:
            refused += 1
    beyond = tracemalloc.get_traced_memory()[0] - full
    tracemalloc.stop()
    assert refused == 2_500
    assert len(node.catalog.held) == 1 + 375  # the last quarter is kept for nodes that were met
    assert beyond < 1024 * 1024
    assert offered(A, node) == {LLAMA}
