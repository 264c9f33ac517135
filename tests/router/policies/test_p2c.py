"""Laws of drawing a few."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from registry.clock import Chance
from registry.records import Load, PeerId, Service
from router.policies.p2c import FewChoices
from router.select.candidates import Candidate
from router.state.remote_load import HALF_LIFE, Reported
from router.state.service_time import ServiceTime
from tests.router.world import chat


def order(found: Sequence[Candidate], random: Chance) -> Sequence[Candidate]:
    return FewChoices().order(chat(), found, random)


def at(node: str, in_flight: int = 0) -> Candidate:
    return Candidate(PeerId(node), Service("p", "m"), in_flight=in_flight)


def test_of_those_drawn_the_less_loaded_is_first() -> None:
    for seed in range(20):
        assert order([at("busy", 5), at("idle", 1)], Random(seed).random)[0] == at("idle", 1)


def first_of(*found: Candidate) -> set[PeerId]:
    return {order(found, Random(seed).random)[0].node for seed in range(40)}


def reported(node: str, in_flight: int, *, ours: int = 0, age: float = 0.0) -> Candidate:
    report = Reported(Load(in_flight), ours=ours, age=age)
    return replace(at(node, ours), report=report)


def test_requests_that_others_sent_count_as_their_node_reported_them() -> None:
    assert first_of(reported("busy", 5), at("ours", 2)) == {"ours"}
    assert first_of(reported("idle", 1), at("ours", 2)) == {"idle"}


def test_our_own_requests_count_once() -> None:
    assert first_of(reported("alone", 3, ours=3), at("ours", 4)) == {"alone"}


def test_an_old_report_is_outweighed_by_what_we_know_ourselves() -> None:
    young, old = (reported("busy", 5, age=age) for age in (0.0, 4 * HALF_LIFE))
    assert first_of(young, at("ours", 1)) == {"ours"}
    assert first_of(old, at("ours", 1)) == {"busy"}


def test_who_says_nothing_is_taken_for_idle_and_no_latency_is_made_up() -> None:
    assert first_of(reported("said", 1), at("silent")) == {"silent"}


def test_the_most_loaded_of_many_is_never_first() -> None:
    found = [at("busy", 9), *(at(f"n{number}") for number in range(5))]
    assert all(order(found, Random(seed).random)[0] != found[0] for seed in range(200))


def test_equally_loaded_candidates_share_the_load() -> None:
    found = [at(f"n{number}") for number in range(4)]
    draw = Random(1).random
    firsts = Counter(order(found, draw)[0].node for _ in range(4000))
    assert len(firsts) == 4
    assert max(firsts.values()) < 1.2 * min(firsts.values())


def test_load_is_counted_by_the_slot_where_all_slots_are_known() -> None:
    big = replace(at("big"), report=Reported(Load(8, slots=16), ours=0, age=0.0))
    small = replace(at("small"), report=Reported(Load(1, slots=1), ours=0, age=0.0))
    assert first_of(big, small) == {"big"}
    assert first_of(big, replace(small, report=None)) == {"small"}


def test_of_hundreds_only_those_are_drawn_that_can_have_a_turn() -> None:
    found = [at(f"n{number}") for number in range(400)]
    ordered = order(found, Random(1).random)
    assert ordered[200:] == [c for c in found if c in ordered[200:]]


def timed(node: str, seconds: float, *, slots: int = 4, in_flight: int = 0) -> Candidate:
    report = Reported(Load(in_flight, slots=slots), ours=0, age=0.0)
    return replace(at(node), report=report, time=ServiceTime(fixed=seconds))


def test_who_is_soonest_done_is_first_and_a_slow_idle_machine_is_none() -> None:
    assert first_of(timed("quick", 0.1, in_flight=5), timed("slow", 1.6)) == {"quick"}
    assert first_of(timed("quick", 0.1, in_flight=200), timed("slow", 1.6)) == {"slow"}


def test_machines_are_drawn_as_often_as_they_can_bear_requests() -> None:
    found = [timed("quick", 0.1), *(timed(f"n{number}", 1.6) for number in range(8))]
    draw = Random(1).random
    firsts = Counter(order(found, draw)[0].node for _ in range(1_000))
    assert firsts[PeerId("quick")] > 900
