"""Laws of the simple policies: local first, round robin, weighted, and by session."""

from collections import Counter
from dataclasses import replace
from random import Random

from registry.records import Load, PeerId, Service
from router.policies.local_first import LocalFirst
from router.policies.round_robin import RoundRobin
from router.policies.session import Session
from router.policies.weighted import Weighted
from router.select.candidates import Candidate
from router.state.remote_load import Reported
from tests.router.world import chat, own

CHANCE = Random(1).random
MACHINES = tuple(Candidate(PeerId(f"n{number}"), Service("p", "m")) for number in range(4))


def with_slots(machine: Candidate, slots: int, in_flight: int = 0) -> Candidate:
    report = Reported(Load(in_flight, slots=slots), ours=in_flight, age=0.0)
    return replace(machine, in_flight=in_flight, report=report)


def test_own_workers_come_first_however_busy_with_the_idlest_first() -> None:
    busy = replace(own("http://127.0.0.1:1", cid="1"), in_flight=9)
    idle = own("http://127.0.0.1:2", cid="2")
    ordered = LocalFirst().order(chat(), [MACHINES[0], busy, MACHINES[1], idle], CHANCE)
    assert list(ordered[:2]) == [idle, busy]
    assert "this machine" in LocalFirst().why(chat(), idle, [idle, busy])


def test_machines_take_turns_in_the_order_of_their_names() -> None:
    policy = RoundRobin()
    firsts = []
    for _ in range(8):
        firsts.append(policy.order(chat(), MACHINES[::-1], CHANCE)[0])
        policy.begun(chat())
    assert firsts == [*MACHINES, *MACHINES]
    assert policy.order(chat(), [], CHANCE) == []


def test_a_machine_with_more_slots_gets_more_whatever_its_load() -> None:
    big, small = with_slots(MACHINES[0], 9, in_flight=20), with_slots(MACHINES[1], 1)
    firsts = Counter(Weighted().order(chat(), [big, small], CHANCE)[0].node for _ in range(1000))
    assert 850 < firsts[big.node] < 950
    assert "9" in Weighted().why(chat(), big, [big, small])


def test_machines_are_drawn_alike_if_the_slots_of_one_are_unknown() -> None:
    candidates = [with_slots(MACHINES[0], 9), MACHINES[1]]
    firsts = Counter(Weighted().order(chat(), candidates, CHANCE)[0].node for _ in range(1000))
    assert 400 < firsts[MACHINES[1].node] < 600


def test_a_session_leaves_a_machine_with_far_more_than_its_share_of_load() -> None:
    request = replace(chat(), session="s")
    home = Session().order(request, MACHINES, CHANCE)[0]
    candidates = [replace(m, in_flight=30) if m == home else m for m in MACHINES]
    assert Session().order(request, candidates, CHANCE)[0].node != home.node


def test_a_session_stays_with_one_machine_and_sessions_spread() -> None:
    requests = [replace(chat(), session=str(number)) for number in range(200)]
    firsts = [Session().order(request, MACHINES, CHANCE)[0] for request in requests]
    again = [Session().order(request, MACHINES[::-1], CHANCE)[0] for request in requests]
    assert firsts == again
    assert min(Counter(first.node for first in firsts).values()) > 25


def test_only_the_sessions_of_a_machine_that_leaves_move() -> None:
    for number in range(100):
        request = replace(chat(), session=str(number))
        before = Session().order(request, MACHINES, CHANCE)[0]
        after = Session().order(request, MACHINES[1:], CHANCE)[0]
        assert before in (after, MACHINES[0])


def test_without_a_session_load_decides() -> None:
    busy = replace(MACHINES[0], in_flight=5)
    assert Session().order(chat(), [busy, MACHINES[1]], CHANCE)[0] == MACHINES[1]
