"""Register of a rendezvous point: what it remembers and tells, and when a node goes there. Time is a number."""

import random
from itertools import pairwise

from registry.mesh.libp2p.rendezvous import (
    LONGEST_SECONDS,
    MAX_NAME_BYTES,
    MAX_NAMES,
    MAX_NAMES_OF_ONE,
    MAX_REGISTERED,
    MAX_TOLD,
    RENEW_SECONDS,
    Register,
    Registration,
    Rounds,
    name_of,
)
from registry.mesh.libp2p.rendezvous_messages import MAX_RECORD_BYTES, RendezvousStatus


def node(
    number: int,
    *,
    until: float = 100.0,
    record: bytes = b"there",
    sequence: int = 1,
    network: str = "",
) -> Registration:
    return Registration(number.to_bytes(4), record, sequence, until, network)


def register() -> Register:
    return Register(rng=random.Random(1))


def test_nodes_of_one_mesh_are_told_of_each_other_and_of_no_other_node() -> None:
    made = register()
    assert made.add("a", node(1), 0.0) is RendezvousStatus.OK
    assert made.add("a", node(2), 0.0) is RendezvousStatus.OK
    assert made.add("b", node(3), 0.0) is RendezvousStatus.OK
    assert made.told("a", node(1).peer, 0, 0.0) == [node(2)]
    assert made.told("b", node(1).peer, 0, 0.0) == [node(3)]
    assert made.told("c", node(1).peer, 0, 0.0) == []


def test_the_last_registration_of_a_node_holds_until_its_time_has_passed_or_it_leaves() -> None:
    made = register()
    made.add("a", node(1, record=b"here"), 0.0)
    made.add("a", node(1, until=50.0), 1.0)
    assert made.told("a", b"asker", 0, 49.0) == [node(1, until=50.0)]
    assert made.told("a", b"asker", 0, 50.0) == []
    made.add("a", node(1), 60.0)
    made.remove("a", node(1).peer)
    assert made.told("a", b"asker", 0, 61.0) == []
    made.remove("nowhere", b"nobody")


def test_an_older_record_replaces_no_newer_one_until_the_newer_is_forgotten() -> None:
    made = register()
    assert made.add("a", node(1, sequence=7), 0.0) is RendezvousStatus.OK
    older = node(1, sequence=6, until=500.0)
    assert made.add("a", older, 1.0) is RendezvousStatus.E_INVALID_SIGNED_PEER_RECORD
    assert made.told("a", b"asker", 0, 1.0) == [node(1, sequence=7)]
    assert made.add("a", node(1, sequence=7, until=200.0), 2.0) is RendezvousStatus.OK
    assert made.add("a", older, 200.0) is RendezvousStatus.OK


def test_a_registration_with_an_invalid_name_record_or_time_is_refused() -> None:
    made = register()
    for name in ("", "x" * (MAX_NAME_BYTES + 1), "é" * 128):
        assert made.add(name, node(1), 0.0) is RendezvousStatus.E_INVALID_NAMESPACE
    for record in (b"", b"x" * (MAX_RECORD_BYTES + 1)):
        status = made.add("a", node(1, record=record), 0.0)
        assert status is RendezvousStatus.E_INVALID_SIGNED_PEER_RECORD
    for until in (0.0, -1.0, LONGEST_SECONDS + 1.0, float("inf"), float("nan")):
        assert made.add("a", node(1, until=until), 0.0) is RendezvousStatus.E_INVALID_TTL
    assert made.told("a", b"asker", 0, 0.0) == []


def test_a_full_point_refuses_newcomers_keeps_the_others_and_makes_room_in_time() -> None:
    made = register()
    for number in range(MAX_REGISTERED):
        assert made.add("a", node(number), 0.0) is RendezvousStatus.OK
    assert made.add("a", node(MAX_REGISTERED), 0.0) is RendezvousStatus.E_UNAVAILABLE
    assert made.add("a", node(7, until=90.0), 0.0) is RendezvousStatus.OK
    assert made.add("a", node(MAX_REGISTERED, until=500.0), 95.0) is RendezvousStatus.OK
    assert (
        made.add("a", node(MAX_REGISTERED + 1, until=500.0), 95.0) is RendezvousStatus.E_UNAVAILABLE
    )


def test_mesh_names_are_bounded_in_total_and_for_each_node() -> None:
    made = register()
    for number in range(MAX_NAMES_OF_ONE):
        assert made.add(f"of one {number}", node(1), 0.0) is RendezvousStatus.OK
    assert made.add("one more", node(1), 0.0) is RendezvousStatus.E_UNAVAILABLE
    for number in range(MAX_NAMES - MAX_NAMES_OF_ONE):
        assert made.add(f"of many {number}", node(2 + number), 0.0) is RendezvousStatus.OK
    assert made.add("one more", node(9_999), 0.0) is RendezvousStatus.E_UNAVAILABLE
    assert made.add("of one 0", node(9_999), 0.0) is RendezvousStatus.OK


def test_the_network_with_most_registrations_gives_one_for_another() -> None:
    made = register()
    for number in range(MAX_REGISTERED):
        made.add("a", node(number, network="one"), 0.0)
    for number in range(3):
        late = node(MAX_REGISTERED + number, network="two")
        assert made.add("b", late, 0.0) is RendezvousStatus.OK
        assert late in made.told("b", b"asker", 0, 0.0)
    again = node(0, network="one")
    assert made.add("a", again, 0.0) is RendezvousStatus.E_UNAVAILABLE


def test_the_network_with_most_registrations_gives_a_name_for_another() -> None:
    made = register()
    made.add("shared", node(0, network="one"), 0.0)
    made.add("shared", node(1, network="two"), 0.0)
    for number in range(MAX_NAMES - 1):
        assert made.add(f"{number}", node(2 + number, network="one"), 0.0) is RendezvousStatus.OK
    assert made.add("new", node(9_999, network="two"), 0.0) is RendezvousStatus.OK
    assert len(made.told("shared", b"asker", 0, 0.0)) == 2
    assert made.told("0", b"asker", 0, 0.0) == []


def test_an_answer_is_bounded_and_every_node_gets_a_turn_in_it() -> None:
    made = register()
    for number in range(100):
        made.add("a", node(number), 0.0)
    told = [made.told("a", b"asker", wanted, 0.0) for wanted in (0, 5, 10_000)]
    assert [len(rows) for rows in told] == [MAX_TOLD, 5, MAX_TOLD]
    seen = {r.peer for _ in range(50) for r in made.told("a", b"asker", 0, 0.0)}
    assert len(seen) == 100


def test_a_rendezvous_name_reveals_neither_the_name_of_the_mesh_nor_its_key() -> None:
    key = "ab" * 32
    names = {name_of(word, secret) for word in ("one", "two") for secret in (None, key)}
    assert len(names) == 4
    assert not any("one" in name or key[:6] in name for name in names)


def goings(connected: int, *, seconds: int) -> list[int]:
    rounds, gone = Rounds(rng=random.Random(1)), []
    for now in range(seconds):
        if rounds.due(connected, float(now)):
            rounds.done(float(now))
            gone.append(now)
    return gone


def test_a_lone_node_asks_at_once_and_then_ever_more_rarely() -> None:
    gone = goings(0, seconds=7_200)
    assert gone[0] == 0
    assert 7 <= gone[1] <= 13
    assert all(450 <= b - a <= 751 for a, b in pairwise(gone[7:]))
    assert len(gone) < 25


def test_a_node_with_company_goes_only_to_renew_its_registration() -> None:
    gone = goings(5, seconds=7_200)
    assert all(0.75 * RENEW_SECONDS <= b - a <= RENEW_SECONDS + 1 for a, b in pairwise(gone))
    assert len(gone) < 13


def test_a_node_that_loses_its_company_asks_soon() -> None:
    rounds = Rounds(rng=random.Random(1))
    for _ in range(10):
        rounds.done(0.0)
    assert not rounds.due(5, 300.0)
    rounds.done(300.0)
    assert rounds.due(0, 320.0)
