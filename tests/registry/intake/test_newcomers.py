"""Places in the registry: a connected node always gets one, made-up nodes only those that are left over."""

import pytest

from registry import sync, wire
from registry.catalog import Signed
from registry.effects import RecordsRefused
from registry.errors import LimitReached
from registry.intake.newcomers import (
    AT_ONCE,
    CHOSEN_AT_ONCE,
    LIGHT,
    REFUSED_SECONDS,
    Newcomers,
    weight_of,
)
from registry.records import PeerId, Record, Service, Version
from registry.replica import Replica
from registry.settings import RegistrySettings
from registry.signing import Identity
from registry.sync import FRAME_HEAD

A, ATTACKER, FRIEND, JOINER = (Identity(bytes([n]) * 32) for n in range(1, 5))
MADE_UP = [Identity(n.to_bytes(32)) for n in range(1_000, 1_400)]


def replica(**settings: float) -> Replica:
    node = Replica(A, RegistrySettings.model_validate(settings), epoch=1, jitter=lambda: 0.5)
    node.announce(0.0, services=[])
    return node


def word(owner: Identity) -> bytes:
    services = (Service("p", owner.peer[-8:]),)
    return wire.encode_record(Record(owner.peer, Version(1, 1), services=services), owner).frame


def bring_in(node: Replica, owners: list[Identity], via: Identity, now: float = 0.0) -> int:
    """Gossip the records of nodes by one neighbour; return how many were taken in."""
    accepted = 0
    for owner in owners:
        try:
            node.receive(word(owner), now, via=via.peer)
        except LimitReached:
            continue
        accepted += 1
    return accepted


def batch(owners: list[Identity]) -> bytes:
    frames = map(word, owners)
    return b"".join(FRAME_HEAD.pack(0.0, len(frame)) + frame for frame in frames)


def test_a_neighbour_brings_in_a_burst_of_strangers_and_later_a_few_more() -> None:
    node = replica(strangers_per_second=2.0)
    node.note_connected(ATTACKER.peer, 0.0, chosen=False)
    assert bring_in(node, MADE_UP, ATTACKER) == AT_ONCE
    assert bring_in(node, MADE_UP[AT_ONCE:], ATTACKER, now=5.0) == 10


def test_strangers_of_one_neighbour_do_not_use_up_the_allowance_of_another() -> None:
    node = replica()
    bring_in(node, MADE_UP[:300], ATTACKER)
    assert bring_in(node, MADE_UP[300:], FRIEND) == 100


def test_a_connected_node_introduces_itself_however_many_strangers_it_brought() -> None:
    node = replica()
    node.note_connected(ATTACKER.peer, 0.0, chosen=False)
    bring_in(node, MADE_UP, ATTACKER)
    assert bring_in(node, [ATTACKER], ATTACKER) == 1


def test_a_fresh_node_learns_a_large_mesh_from_the_first_node_that_it_chose() -> None:
    newcomers = Newcomers(capacity=10_000, per_second=2.0)
    newcomers.note_connected(FRIEND.peer, chosen=True)
    assert newcomers.allowance(FRIEND.peer, 0.0) == CHOSEN_AT_ONCE
    newcomers.note_disconnected(FRIEND.peer, held=True)
    assert newcomers.allowance(FRIEND.peer, 0.0) == AT_ONCE


def test_strangers_never_fill_the_places_that_are_kept_for_nodes_that_we_meet() -> None:
    node = replica(max_nodes=40)
    bring_in(node, MADE_UP[:100], ATTACKER)
    assert len(node.catalog.held) == 1 + 30
    node.note_connected(JOINER.peer, 0.0, chosen=False)
    assert bring_in(node, [JOINER], JOINER) == 1
    assert len(node.catalog.held) == 1 + 31


def test_in_a_full_registry_a_node_that_we_meet_takes_the_place_of_the_newest_stranger() -> None:
    node = replica(max_nodes=8)
    first, *others = MADE_UP[:6]
    bring_in(node, [first, *others], ATTACKER)
    friends = [Identity(bytes([n]) * 32) for n in range(50, 54)]
    for friend in friends:
        node.note_connected(friend.peer, 0.0, chosen=False)
        assert bring_in(node, [friend], friend) == 1
    assert len(node.catalog.held) == 8
    assert {friend.peer for friend in friends} < node.catalog.held.keys()
    assert first.peer in node.catalog.held
    assert others[-1].peer not in node.catalog.held


def test_a_stranger_never_takes_the_place_of_a_node_that_lives() -> None:
    node = replica(max_nodes=4)
    for friend in (FRIEND, JOINER, ATTACKER):
        node.note_connected(friend.peer, 0.0, chosen=False)
        bring_in(node, [friend], friend)
    assert bring_in(node, MADE_UP[:5], ATTACKER) == 0


def test_lost_nodes_make_room_and_lost_strangers_first() -> None:
    newcomers = Newcomers(capacity=4, per_second=2.0)
    met, stranger, newcomer = (PeerId(name) for name in ("met", "stranger", "newcomer"))
    newcomers.note_connected(met, chosen=False)
    for node in (met, stranger):
        newcomers.note_held(node)
    assert newcomers.make_room(newcomer, [met, stranger]) == stranger
    assert newcomers.make_room(newcomer, [met]) == met
    with pytest.raises(LimitReached):
        newcomers.make_room(newcomer, [])


def test_a_push_of_too_many_strangers_is_taken_in_part_and_says_so() -> None:
    node = replica()
    answer, effects = sync.answer(node, b"P" + batch(MADE_UP[:120]), 0.0, asker=ATTACKER.peer)
    assert answer == str(AT_ONCE).encode()
    assert [e.count for e in effects if isinstance(e, RecordsRefused)] == [20]


def test_gossip_and_pushes_of_one_neighbour_are_counted_together() -> None:
    node = replica()
    assert bring_in(node, MADE_UP[:60], ATTACKER) == 60
    answer, _ = sync.answer(node, b"P" + batch(MADE_UP[60:120]), 0.0, asker=ATTACKER.peer)
    assert answer == str(AT_ONCE - 60).encode()
    assert bring_in(node, MADE_UP[120:], ATTACKER) == 0


def test_signatures_of_strangers_beyond_the_allowance_are_not_even_checked() -> None:
    node = replica()
    frames = batch(MADE_UP[:AT_ONCE]) + batch([MADE_UP[AT_ONCE]])[:-20] + bytes(20)
    answer, _ = sync.answer(node, b"P" + frames, 0.0, asker=ATTACKER.peer)
    assert answer == str(AT_ONCE).encode()


def test_a_node_that_disconnects_without_having_sent_a_record_is_forgotten() -> None:
    newcomers = Newcomers(capacity=4, per_second=2.0)
    newcomers.note_connected(JOINER.peer, chosen=True)
    newcomers.note_disconnected(JOINER.peer, held=False)
    assert not newcomers.has_met(JOINER.peer)


HEAVIEST = RegistrySettings().stranger_services


def heavy(owner: Identity, replicas: int = 2_000, *, sequence: int = 1) -> bytes:
    services = tuple(Service("p", f"{owner.peer[-8:]}-{n}-{sequence}") for n in range(replicas))
    return wire.encode_record(
        Record(owner.peer, Version(1, sequence), services=services), owner
    ).frame


def held(node: Replica) -> int:
    """Return how many services of all nodes are held."""
    return sum(len(signed.record.services) for signed in node.catalog.held.values())


def test_the_weight_of_strangers_is_bounded_for_each_neighbour_and_in_total() -> None:
    node = replica()
    for number, friend in enumerate((ATTACKER, FRIEND, JOINER)):
        accepted = 0
        for owner in MADE_UP[number * 20 : number * 20 + 20]:
            try:
                node.receive(heavy(owner), 0.0, via=friend.peer)
            except LimitReached:
                continue
            accepted += 1
        assert accepted <= 4
    assert held(node) <= HEAVIEST + LIGHT * len(node.catalog.held)
    # A light stranger still gets a place, and so does a connected node of any weight.
    assert bring_in(node, MADE_UP[100:101], ATTACKER, now=60.0) == 1
    node.note_connected(MADE_UP[102].peer, 60.0, chosen=False)
    node.receive(heavy(MADE_UP[102]), 60.0, via=MADE_UP[102].peer)
    assert MADE_UP[102].peer in node.catalog.held


def test_a_stranger_that_grows_too_heavy_keeps_its_older_record_and_is_not_fetched_for_a_while() -> (
    None
):
    node, via = replica(), FRIEND.peer
    node.note_connected(via, 0.0, chosen=True)
    for owner in MADE_UP[:8]:
        node.receive(heavy(owner), 0.0, via=via)
    grower = MADE_UP[9]
    node.receive(heavy(grower, 1), 0.0, via=via)
    with pytest.raises(LimitReached, match="their limit of services"):
        node.receive(heavy(grower, sequence=2), 1.0, via=via)
    assert len(node.catalog.held[grower.peer].record.services) == 1
    assert node.is_refused(grower.peer, 2.0)
    assert not node.is_refused(grower.peer, 2.0 + REFUSED_SECONDS)
    # Once the node has connected, its weight does not count.
    node.note_connected(grower.peer, 3.0, chosen=False)
    node.receive(heavy(grower, sequence=2), 3.0, via=grower.peer)
    assert len(node.catalog.held[grower.peer].record.services) == 2_000


def test_lost_nodes_make_room_for_a_heavy_stranger() -> None:
    node, via = replica(), FRIEND.peer
    node.note_connected(via, 0.0, chosen=True)
    for owner in MADE_UP[:8]:
        node.receive(heavy(owner), 0.0, via=via)
    later = 3 * RegistrySettings().lease
    node.tick(later)
    node.receive(heavy(MADE_UP[8]), later, via=via)
    assert MADE_UP[8].peer in node.catalog.held
    assert len(node.catalog.held) == 9


def test_restored_records_are_held_to_the_same_limit_of_weight() -> None:
    node = replica()
    node.restore([heavy(owner) for owner in MADE_UP[:12]], 0.0)
    assert held(node) <= HEAVIEST + LIGHT * 12
    assert len(node.catalog.held) == 9


def test_what_a_record_weighs() -> None:
    light = wire.decode(heavy(A, LIGHT))
    many = wire.decode(heavy(A, LIGHT + 5))
    name = "x" * 250
    long = Record(
        A.peer, Version(1, 1), services=tuple(Service(name, f"{n}{name}") for n in range(15))
    )
    assert isinstance(light, Signed)
    assert isinstance(many, Signed)
    assert (weight_of(light), weight_of(many)) == (0, 5)
    assert weight_of(wire.encode_record(long, A)) > 50


def test_a_refused_stranger_displaces_no_node() -> None:
    node, via = replica(), FRIEND.peer
    node.note_connected(via, 0.0, chosen=True)
    for owner in MADE_UP[:4]:
        node.receive(heavy(owner), 0.0, via=via)
    later = 3 * RegistrySettings().lease
    node.tick(later)
    for owner in MADE_UP[4:8]:
        node.receive(heavy(owner), later, via=via)
    before = node.catalog
    assert len(before.held) == 9
    # Only four nodes are lost, and five would have to go.
    with pytest.raises(LimitReached, match="their limit of services"):
        replica_of_less(node).receive(heavy(MADE_UP[9]), later, via=via)
    assert node.catalog is before


def replica_of_less(node: Replica) -> Replica:
    """Lower the limit of strangers so far that evicting all lost nodes would not make room."""
    node.newcomers._heaviest = 8_000
    return node


def test_a_record_of_a_long_dead_node_displaces_no_other() -> None:
    node, via = replica(), FRIEND.peer
    node.note_connected(via, 0.0, chosen=True)
    for owner in MADE_UP[:8]:
        node.receive(heavy(owner), 0.0, via=via)
    later = 3 * RegistrySettings().lease
    node.tick(later)
    signed = wire.decode(heavy(MADE_UP[8]))
    assert isinstance(signed, Signed)
    with pytest.raises(LimitReached):
        node.merge_record(signed, heard_at=float("-inf"), now=later, via=via)
