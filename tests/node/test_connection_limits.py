"""Connection limits: which connection makes room for which, with stand-ins for the connections."""

from dataclasses import dataclass
from math import inf

from node.auth.forwarded import TrustedProxies
from node.connection_limits import EVENTS, ConnectionCounts, ConnectionLimits


@dataclass(eq=False)
class Caller:
    closes_at: float = inf
    open: bool = True

    def evict(self):
        self.open = False


def test_busy_connections_are_never_closed_and_a_new_one_is_turned_away():
    doors, busy = ConnectionLimits(2, 2, ConnectionCounts()), [Caller(), Caller()]
    assert [doors.enter(caller, "a") for caller in busy] == [True, True]
    assert not doors.enter(Caller(), "b")
    assert all(caller.open for caller in busy)
    doors.leave(busy[0], "a")
    assert doors.enter(Caller(), "b")


def test_the_idle_connection_that_would_time_out_first_makes_room():
    doors = ConnectionLimits(3, 3, ConnectionCounts())
    callers = [Caller(3.0), Caller(1.0), Caller(2.0)]
    for caller in callers:
        doors.enter(caller, "a")
    assert doors.enter(Caller(), "a")
    assert [caller.open for caller in callers] == [True, False, True]


def test_the_address_with_most_connections_makes_room_for_other_addresses():
    doors = ConnectionLimits(4, 4, ConnectionCounts())
    few = Caller(1.0)
    many = [Caller(9.0) for _ in range(3)]
    for caller, address in ((few, "honest"), *((caller, "slow") for caller in many)):
        doors.enter(caller, address)
    assert doors.enter(Caller(), "honest")
    assert few.open
    assert sum(caller.open for caller in many) == 2


def test_each_address_has_its_own_bound():
    doors = ConnectionLimits(100, 1, ConnectionCounts())
    assert doors.enter(Caller(), "a")
    assert not doors.enter(Caller(), "a")
    assert doors.enter(Caller(), "b")


def test_a_trusted_proxy_may_use_all_places():
    doors = ConnectionLimits(3, 1, ConnectionCounts(), proxies=TrustedProxies(["10.0.0.1"]))
    assert [doors.enter(Caller(), "10.0.0.1") for _ in range(4)] == [True, True, True, False]


def test_a_connection_closed_to_make_room_is_not_counted_twice_when_it_leaves():
    doors, idle = ConnectionLimits(1, 1, ConnectionCounts()), Caller(1.0)
    doors.enter(idle, "a")
    busy = Caller()
    assert doors.enter(busy, "a")
    doors.leave(idle, "a")
    assert not doors.enter(Caller(), "a")


def test_evictions_and_refusals_are_counted_by_the_limit_that_caused_them():
    counts = ConnectionCounts()
    doors = ConnectionLimits(2, 1, counts)
    doors.enter(Caller(1.0), "a")
    doors.enter(Caller(), "a")
    assert not doors.enter(Caller(), "a")
    assert doors.enter(Caller(2.0), "b")
    busy = Caller()
    doors.enter(busy, "c")
    assert not doors.enter(Caller(), "d")
    assert counts.open == 2
    assert counts.events == dict.fromkeys(EVENTS, 1)
    doors.leave(busy, "c")
    assert counts.open == 1


def test_connections_of_several_listeners_may_be_counted_together():
    counts = ConnectionCounts()
    for doors in (ConnectionLimits(1, 1, counts), ConnectionLimits(1, 1, counts)):
        assert doors.enter(Caller(), "a")
    assert counts.open == 2
