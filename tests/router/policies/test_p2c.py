"""Laws of the policy that draws a few candidates and takes the best."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import orjson

from registry.clock import RandomSource
from registry.records import Load, PeerId, Service
from router.openai.prefixes import prefixes_of
from router.policies.p2c import FewChoices
from router.requests import Request
from router.select.candidates import Candidate
from router.state.remote_load import HALF_LIFE, Reported
from router.state.service_time import NOTHING_BEFORE, ReadPrefix, ServiceTime
from tests.router.world import chat


def order(candidates: Sequence[Candidate], random: RandomSource) -> Sequence[Candidate]:
    return FewChoices().order(chat(), candidates, random)


def at(node: str, in_flight: int = 0) -> Candidate:
    return Candidate(PeerId(node), Service("p", "m"), in_flight=in_flight)


def test_the_less_loaded_of_the_drawn_candidates_is_first() -> None:
    for seed in range(20):
        assert order([at("busy", 5), at("idle", 1)], Random(seed).random)[0] == at("idle", 1)


def first_of(*candidates: Candidate) -> set[PeerId]:
    return {order(candidates, Random(seed).random)[0].node for seed in range(40)}


def reported(node: str, in_flight: int, *, ours: int = 0, age: float = 0.0) -> Candidate:
    report = Reported(Load(in_flight), ours=ours, age=age)
    return replace(at(node, ours), report=report)


def test_requests_of_other_nodes_count_as_the_replicas_node_reports_them() -> None:
    assert first_of(reported("busy", 5), at("ours", 2)) == {"ours"}
    assert first_of(reported("idle", 1), at("ours", 2)) == {"idle"}


def test_a_nodes_own_requests_count_once() -> None:
    assert first_of(reported("alone", 3, ours=3), at("ours", 4)) == {"alone"}


def test_an_old_report_is_outweighed_by_the_nodes_own_knowledge() -> None:
    young, old = (reported("busy", 5, age=age) for age in (0.0, 4 * HALF_LIFE))
    assert first_of(young, at("ours", 1)) == {"ours"}
    assert first_of(old, at("ours", 1)) == {"busy"}


def test_a_candidate_without_a_report_counts_as_idle() -> None:
    assert first_of(reported("said", 1), at("silent")) == {"silent"}


def test_the_most_loaded_of_many_is_never_first() -> None:
    candidates = [at("busy", 9), *(at(f"n{number}") for number in range(5))]
    assert all(order(candidates, Random(seed).random)[0] != candidates[0] for seed in range(200))


def test_equally_loaded_candidates_share_the_load() -> None:
    candidates = [at(f"n{number}") for number in range(4)]
    draw = Random(1).random
    firsts = Counter(order(candidates, draw)[0].node for _ in range(4000))
    assert len(firsts) == 4
    assert max(firsts.values()) < 1.2 * min(firsts.values())


def test_load_is_relative_to_slots_if_all_slots_are_known() -> None:
    big = replace(at("big"), report=Reported(Load(8, slots=16), ours=0, age=0.0))
    small = replace(at("small"), report=Reported(Load(1, slots=1), ours=0, age=0.0))
    assert first_of(big, small) == {"big"}
    assert first_of(big, replace(small, report=None)) == {"small"}


def test_every_one_of_hundreds_of_candidates_is_in_the_order_once() -> None:
    candidates = [at(f"n{number}") for number in range(400)]
    ordered = order(candidates, Random(1).random)
    assert ordered != candidates
    assert sorted(c.node for c in ordered) == sorted(c.node for c in candidates)


def test_the_next_candidate_is_the_best_of_those_left_and_one_newly_drawn() -> None:
    candidates = [at(f"n{number}", number) for number in range(6)]
    for seed in range(100):
        loads = [c.in_flight for c in order(candidates, Random(seed).random)]
        # The best of three; each that follows was one of the three, or was drawn next.
        assert loads[0] <= 3
        assert sum(load < loads[1] for load in loads[2:]) <= 2


def timed(node: str, seconds: float, *, slots: int = 4, in_flight: int = 0) -> Candidate:
    report = Reported(Load(in_flight, slots=slots), ours=0, age=0.0)
    return replace(at(node), report=report, time=ServiceTime(fixed=seconds))


def test_the_candidate_that_finishes_soonest_is_first_even_if_a_slow_one_is_idle() -> None:
    assert first_of(timed("quick", 0.1, in_flight=5), timed("slow", 1.6)) == {"quick"}
    assert first_of(timed("quick", 0.1, in_flight=200), timed("slow", 1.6)) == {"slow"}


def test_machines_are_drawn_in_proportion_to_their_capacity() -> None:
    candidates = [timed("quick", 0.1), *(timed(f"n{number}", 1.6) for number in range(8))]
    draw = Random(1).random
    firsts = Counter(order(candidates, draw)[0].node for _ in range(1_000))
    assert firsts[PeerId("quick")] > 900


def talk(number: int, *, turns: int = 1) -> Request:
    messages = [
        {"role": "assistant" if n % 2 else "user", "content": f"{number} {n}".ljust(10_000)}
        for n in range(2 * turns - 1)
    ]
    body = orjson.dumps({"messages": messages})
    return replace(chat(body=body), prefixes=prefixes_of({"messages": messages}, len(body)))


READER = ServiceTime(fixed=0.5, kilobyte=0.1)


def reader(number: int, *, in_flight: int = 0, before: ReadPrefix = NOTHING_BEFORE) -> Candidate:
    return replace(timed(f"n{number}", 0.0, in_flight=in_flight), time=READER, before=before)


def test_a_conversation_begins_at_the_candidate_of_its_key_and_conversations_spread() -> None:
    candidates, draw, policy = [reader(n) for n in range(8)], Random(1).random, FewChoices()
    firsts: Counter[PeerId] = Counter()
    for number in range(100):
        request = talk(number)
        chosen = Counter(policy.order(request, candidates, draw)[0].node for _ in range(10))
        assert len(chosen) == 1
        firsts += chosen
    assert len(firsts) == 8


def test_a_conversation_goes_on_where_it_is_cached_unless_that_takes_longer() -> None:
    warm = reader(0, before=ReadPrefix(20.0, 1.0))
    candidates, policy = [warm, *(reader(n) for n in range(1, 8))], FewChoices()
    request = talk(1, turns=2)
    assert {policy.order(request, candidates, Random(seed).random)[0] for seed in range(20)} == {
        warm
    }
    assert "20.0 of this conversation's 30.1 KB 1 s ago" in policy.why(request, warm, candidates)
    assert policy.figures(request, warm, candidates)["read_kilobytes"] == 20.0
    crowded = [reader(0, in_flight=40, before=ReadPrefix(20.0, 1.0)), *candidates[1:]]
    assert policy.order(request, crowded, Random(1).random)[0] != crowded[0]


def test_a_conversation_is_placed_like_any_request_if_prefill_takes_no_time() -> None:
    candidates = [timed(f"n{number}", 0.5) for number in range(8)]
    draw, policy = Random(1).random, FewChoices()
    assert len({policy.order(talk(1), candidates, draw)[0].node for _ in range(200)}) == 8
    assert policy.figures(chat(), candidates[0], candidates) == {}
