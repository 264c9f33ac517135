"""Dial plan of a node: which peers it dials, and when it tries again."""

import random
from itertools import pairwise

from registry.mesh.libp2p.dial import (
    GIVEN_UP,
    MAX_HOSTS,
    PATIENCE,
    RAREST,
    URGENT,
    Dialer,
    DialTarget,
    host_of,
)
from registry.records import PeerId

HOST = "127.0.0.1"
OWN = PeerId("own")


def address(peer: str, port: int = 1) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"


def dialer(
    *, bootstrap: tuple[str, ...] = (), kept: tuple[str, ...] = (), degree: int = 2
) -> Dialer:
    made = Dialer(OWN, degree=degree, redial=1.0, rng=random.Random(1))
    made.aim([address(peer) for peer in bootstrap], [address(peer) for peer in kept])
    return made


def peers(targets: list[DialTarget]) -> set[str]:
    return {target.peer for target in targets}


def test_bootstrap_peers_are_dialled_first() -> None:
    made = dialer(bootstrap=("a", "b"), kept=("c", "d", "e"), degree=3)
    first = made.due((), 0.0)
    assert peers(first[:2]) == {"a", "b"}
    assert len(first) == 3


ENOUGH = (PeerId("x"), PeerId("y"))


def times_dialled(made: Dialer, peer: str, *, until: float) -> list[float]:
    """Let every dial fail while there are enough other peers; return when this peer was dialled."""
    times, now = [], 0.0
    while now < until:
        for target in made.due(ENOUGH, now):
            made.failed(target.peer, now)
            times += [now] if target.peer == peer else []
        now += 0.25
    return times


def test_with_enough_peers_a_bootstrap_peer_that_does_not_answer_is_dialled_ever_more_rarely() -> (
    None
):
    times = times_dialled(dialer(bootstrap=("a",), kept=("b",)), "a", until=7200.0)
    assert times[0] == 0.0
    pauses = [later - sooner for sooner, later in pairwise(times)]
    assert pauses[0] < 2
    assert 0.7 * RAREST < pauses[-1] < 1.3 * RAREST
    assert len(times) < 45


def test_with_enough_peers_strangers_are_not_dialled() -> None:
    assert times_dialled(dialer(bootstrap=("a",), kept=("b",)), "b", until=600.0) == []


def test_a_lost_peer_is_looked_for_though_there_are_enough_and_given_up_in_the_end() -> None:
    made = dialer(kept=("a", "b"))
    made.lost(PeerId("a"), 0.0)
    times = times_dialled(made, "a", until=7200.0)
    assert GIVEN_UP - RAREST < times[-1] < GIVEN_UP + 1.25 * RAREST
    assert len(times) < 16
    # A cut of a minute is noticed soon after it has healed.
    assert any(60 < at < 100 for at in times)


def test_where_one_missed_peer_is_back_the_others_are_tried_at_once() -> None:
    made = dialer(kept=("a", "b", "c"))
    for peer in (PeerId("a"), PeerId("b")):
        made.lost(peer, 0.0)
        for _ in range(8):
            made.failed(peer, 0.0)
    assert made.due(ENOUGH, 20.0) == []
    made.succeeded(PeerId("a"), HOST)
    assert peers(made.due((*ENOUGH, PeerId("a")), 20.0)) == {"b"}


def test_a_lost_peer_whose_only_way_leads_through_a_relay_is_not_looked_for() -> None:
    made = dialer()
    made.aim([], ["/ip4/192.0.2.1/tcp/1/p2p/relay/p2p-circuit/p2p/a"])
    made.lost(PeerId("a"), 0.0)
    assert made.due(ENOUGH, 60.0) == []
    assert peers(made.due((), 60.0)) == {"a"}


def test_a_node_that_lacks_peers_retries_failed_ones_sooner() -> None:
    made = dialer(bootstrap=("a",))
    for _ in range(12):
        made.failed(PeerId("a"), 0.0)
    assert made.due(ENOUGH, 20.0) == []
    assert peers(made.due((), 20.0)) == {"a"}


def test_other_peers_are_dialled_up_to_the_degree() -> None:
    made = dialer(degree=3)
    made.aim((), [f"/dns4/host-{name}/tcp/1/p2p/{name}" for name in "abcd"])
    assert len(made.due((), 0.0)) == 3
    assert len(made.due((PeerId("x"), PeerId("y")), 0.0)) == 1
    assert made.due((PeerId("x"), PeerId("y"), PeerId("z")), 0.0) == []


def test_the_node_itself_and_connected_peers_are_not_dialled() -> None:
    made = dialer(bootstrap=("own", "a"), kept=("own", "b"), degree=9)
    assert peers(made.due((PeerId("a"),), 0.0)) == {"b"}


def test_addresses_of_one_peer_are_one_target() -> None:
    made = dialer()
    made.aim([address("a", 1)], [address("a", 2), address("a", 1)])
    (target,) = made.due((), 0.0)
    assert target == DialTarget(PeerId("a"), (address("a", 1), address("a", 2)), bootstrap=True)


def test_an_address_without_a_peer_is_left_out() -> None:
    made = dialer()
    made.aim(["/ip4/127.0.0.1/tcp/1", "", "/p2p/"], ["/p2p/a/p2p-circuit"])
    assert made.due((), 0.0) == []


def test_a_failed_peer_waits_longer_each_time_up_to_ten_times_the_first() -> None:
    made, waits, now = dialer(kept=("a",)), [], 0.0
    for _ in range(10):
        made.failed(PeerId("a"), now)
        began = now
        while not made.due((), now):
            now += 0.05
        waits.append(now - began)
    assert 0.7 < waits[0] < 1.35
    assert waits[2] > waits[0]
    assert 7.4 < waits[-1] < 12.6


def pauses_of(made: Dialer, *, connected: tuple[PeerId, ...], until: float) -> dict[float, float]:
    """Let every dial fail; return the pause after each dial, by the time of the dial."""
    times, now = [], 0.0
    while now < until:
        for target in made.due(connected, now):
            made.failed(target.peer, now)
            times.append(now)
        now += 0.25
    return {sooner: later - sooner for sooner, later in pairwise(times)}


def test_a_node_without_peers_dials_a_lost_one_each_second_for_a_minute_and_then_more_rarely() -> (
    None
):
    for bootstrap in (True, False):
        made = dialer(**{"bootstrap" if bootstrap else "kept": ("a",)})
        made.lost(PeerId("a"), 0.0)
        pauses = pauses_of(made, connected=(), until=3600.0)
        assert all(URGENT <= pause < 1.55 for at, pause in pauses.items() if at < PATIENCE)
        assert all(pause < 2.2 for at, pause in pauses.items() if at < 90)
        assert all(9.9 < pause < 12.8 for at, pause in pauses.items() if at > 10 * PATIENCE)


def test_a_node_without_peers_dials_a_bootstrap_peer_that_never_answered_as_often() -> None:
    pauses = pauses_of(dialer(bootstrap=("a",)), connected=(), until=60.0)
    assert all(URGENT <= pause < 1.55 for pause in pauses.values())


def test_a_node_without_peers_is_no_slower_where_redial_is_long_and_quicker_where_it_is_short() -> (
    None
):
    for redial, shortest, longest in ((3.0, 0.9, 1.5), (0.25, 0.2, 0.6)):
        made = Dialer(OWN, degree=2, redial=redial, rng=random.Random(1))
        made.aim([address("a")], [])
        pauses = pauses_of(made, connected=(), until=10.0)
        assert all(shortest < pause < longest for pause in pauses.values())


def test_a_relay_that_held_a_place_is_dialled_each_second_though_there_are_enough_peers() -> None:
    made = dialer(kept=("a", "b"))
    made.lost(PeerId("a"), 0.0, relay=True)
    pauses = pauses_of(made, connected=ENOUGH, until=7200.0)
    assert all(URGENT <= pause < 1.55 for at, pause in pauses.items() if at < PATIENCE)
    assert all(pause < 12.8 for pause in pauses.values())
    assert GIVEN_UP - 25 < max(pauses) < GIVEN_UP + 25


def test_a_lost_peer_is_dialled_again_after_the_pause_however_often_it_failed_before() -> None:
    made = dialer(bootstrap=("a",))
    for _ in range(5):
        made.failed(PeerId("a"), 0.0)
    made.succeeded(PeerId("a"), HOST)
    made.lost(PeerId("a"), 100.0)
    assert made.due((), 100.5) == []
    assert peers(made.due((), 101.3)) == {"a"}


def test_a_host_where_no_peer_was_met_is_dialled_once_a_second_however_many_are_said_to_be_there() -> (
    None
):
    made = Dialer(OWN, degree=50, redial=1.0, rng=random.Random(1))
    made.aim((), [f"/ip4/192.0.2.7/tcp/{port}/p2p/made-up-{port}" for port in range(1, 200)])
    dials = 0
    for tenth in range(400):
        for target in made.due((), tenth / 10):
            made.failed(target.peer, tenth / 10)
            dials += 1
    assert dials == 40


def test_at_a_host_where_a_peer_was_met_all_peers_may_be_dialled() -> None:
    made = dialer(kept=tuple("abcdef"), degree=4)
    (first,) = made.due((), 0.0)
    made.succeeded(first.peer, HOST)
    assert len(made.due((first.peer,), 0.1)) == 3


def test_a_peer_met_at_one_host_of_its_record_does_not_count_as_met_at_the_others() -> None:
    """The liar listens at the first address itself; the others are a third party's, which is dialled once a second at most."""
    made = Dialer(OWN, degree=4, redial=1.0, rng=random.Random(1))
    liar = PeerId("liar")
    theirs = [f"/ip4/192.0.2.7/tcp/{port}/p2p/{liar}" for port in range(1, 16)]
    made.aim((), [f"/ip4/198.51.100.1/tcp/1/p2p/{liar}", *theirs])
    made.succeeded(liar, "198.51.100.1")
    made.lost(liar, 0.0)
    dialled = []
    for tenth in range(400):
        for target in made.due((), tenth / 10):
            dialled += map(host_of, target.addresses)
            made.failed(target.peer, tenth / 10)
    assert 10 < dialled.count("192.0.2.7") <= 40


def test_hosts_are_remembered_within_a_bound() -> None:
    made = Dialer(OWN, degree=2 * MAX_HOSTS, redial=1.0, rng=random.Random(1))
    made.aim((), [f"/dns4/host-{number}/tcp/1/p2p/p-{number}" for number in range(MAX_HOSTS + 9)])
    for target in made.due((), 0.0):
        made.succeeded(target.peer, host_of(target.addresses[0]))
    assert (len(made._tried), len(made._met)) == (MAX_HOSTS, MAX_HOSTS)
