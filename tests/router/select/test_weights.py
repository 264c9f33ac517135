"""Laws of weights: by slots and speed where known, the same on every node, and within bounds."""

from collections import Counter
from dataclasses import replace
from random import Random

import orjson
import pytest

from registry.records import Load, PeerId, Service
from router.openai.prefixes import MIN_BYTES, prefixes_of
from router.requests import Request
from router.select.candidates import Candidate
from router.select.weights import (
    FRESH,
    LONG,
    MAX_QUERIED,
    candidates_to_query,
    draw,
    draw_all,
    expectations,
    forecasts,
    is_affinity_worthwhile,
    late_candidates,
    longest_useful_wait,
    weights,
    with_room_first,
)
from router.state.remote_load import Reported
from router.state.service_time import ReadPrefix, ServiceTime
from tests.router.world import chat, own


def at(
    node: str, *, slots: int = 0, in_flight: int = 0, time: ServiceTime | None = None
) -> Candidate:
    report = Reported(Load(in_flight, slots=slots), ours=in_flight, age=0.0)
    return Candidate(PeerId(node), Service("p", "m"), in_flight=in_flight, report=report, time=time)


def talk(*, goes_on: bool = True, size: int = 20_000) -> Request:
    messages = [{"role": "user", "content": "x" * size}, {"role": "assistant", "content": "y"}]
    fields = {
        "messages": [*messages, {"role": "user", "content": "?"}] if goes_on else messages[:1]
    }
    body = orjson.dumps(fields)
    return replace(chat(body=body), prefixes=prefixes_of(fields, max(len(body), MIN_BYTES)))


QUICK, SLOW = ServiceTime(fixed=0.5), ServiceTime(fixed=8.0)


def test_slots_are_registered_or_reported_or_else_unknown() -> None:
    assert own("http://127.0.0.1:1", capacity=4).slots == 4
    assert at("n", slots=7).slots == 7
    assert replace(at("n"), report=None).slots == 0


def test_all_weights_are_equal_if_the_slots_of_one_are_unknown() -> None:
    assert weights([at("a", slots=2), at("b", slots=8)]) == [2, 8]
    assert weights([at("a", slots=2), at("b")]) == [1, 1]


def test_every_candidate_is_drawn_and_earlier_ones_in_proportion_to_their_weight():
    orders = [draw_all([1, 0, 3, 4], Random(seed).random) for seed in range(4000)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert all(order[-1] == 1 for order in orders)
    firsts = Counter(order[0] for order in orders)
    assert firsts[0] / 4000 == pytest.approx(1 / 8, rel=0.15)
    assert firsts[3] / 4000 == pytest.approx(4 / 8, rel=0.1)
    # The rest is drawn by weight too: after the last of the four, the first one comes second one time in four.
    seconds = Counter(order[1] for order in orders if order[0] == 3)
    assert seconds[0] / seconds.total() == pytest.approx(1 / 4, rel=0.15)


def test_drawing_follows_the_weights_and_never_draws_weight_zero() -> None:
    drawn = Counter(draw([1, 0, 3], Random(seed).random) for seed in range(2000))
    assert drawn[1] == 0
    assert 2.4 < drawn[2] / drawn[0] < 3.8


def test_a_candidate_with_far_more_than_its_share_comes_last_and_the_rest_keeps_its_order() -> None:
    candidates = [at("a", in_flight=1), at("b", in_flight=40), at("c"), at("d", in_flight=2)]
    assert [c.node for c in with_room_first(chat(), candidates)] == ["a", "c", "d", "b"]


def test_shares_are_relative_to_slots() -> None:
    candidates = [at("big", slots=30, in_flight=30), at("small", slots=10, in_flight=10)]
    assert with_room_first(chat(), candidates) == candidates


def test_the_order_is_kept_if_no_candidate_has_room() -> None:
    candidates = [at("a", in_flight=50)]
    assert with_room_first(chat(), candidates) == candidates
    assert with_room_first(chat(), []) == []


def test_a_quick_machine_has_more_capacity_and_finishes_sooner() -> None:
    quick, slow = forecasts(
        chat(), [at("quick", slots=4, time=QUICK), at("slow", slots=4, time=SLOW)]
    )
    assert quick.part == 16 * slow.part
    assert (quick.seconds, slow.seconds) == (0.5, 8.0)


def test_a_request_that_finds_all_slots_taken_is_expected_to_wait() -> None:
    [room, full, queue] = forecasts(
        chat(), [at(str(n), slots=4, in_flight=n, time=QUICK) for n in (3, 4, 8)]
    )
    assert (room.seconds, full.seconds, queue.seconds) == (0.5, 0.625, 1.125)
    assert room.cost < full.cost < queue.cost


def test_a_machine_without_slots_serves_all_requests_at_once() -> None:
    time = ServiceTime(fixed=0.5, sharing=1.0)
    idle, busy = forecasts(chat(), [at(str(n), in_flight=n, time=time) for n in (0, 3)])
    assert (idle.seconds, busy.seconds) == (0.5, 2.0)
    batches = replace(time, sharing=0.5)
    [some] = forecasts(chat(), [at("n", in_flight=3, time=batches)])
    assert some.seconds == 1.0


def test_long_requests_go_to_machines_with_quick_prefill() -> None:
    reader = at("reader", slots=4, time=ServiceTime(fixed=1.0, kilobyte=0.01))
    writer = at("writer", slots=4, time=ServiceTime(fixed=0.5, kilobyte=0.5))
    short = chat()
    long = replace(short, body=short.body.ljust(20_000))
    assert forecasts(short, [reader, writer])[1].cost < forecasts(short, [reader, writer])[0].cost
    assert forecasts(long, [reader, writer])[0].cost < forecasts(long, [reader, writer])[1].cost


@pytest.mark.parametrize("told", [0, 1_000_000])
def test_a_node_that_reports_answers_of_an_absurd_length_changes_little(told: int) -> None:
    honest = ServiceTime(fixed=0.0, token=0.1, tokens=100, answers=30)
    liar = ServiceTime(fixed=40.0, tokens=told, answers=1_000_000)
    candidates = [at("a", time=honest), at("b", time=honest), at("c", time=liar)]
    costs = [p.cost for p in forecasts(chat(), candidates)]
    assert max(costs) == costs[2]
    assert 5 < costs[0] < 30


def test_answers_are_expected_to_be_equally_long_everywhere() -> None:
    brief = ServiceTime(fixed=0.0, token=0.1, tokens=10, answers=30)
    wordy = ServiceTime(fixed=0.0, token=0.1, tokens=40, answers=10)
    seconds = [p.seconds for p in forecasts(chat(), [at("a", time=brief), at("b", time=wordy)])]
    assert seconds[0] == seconds[1] == 1.75


def test_no_single_node_decides_the_expected_length_of_answers() -> None:
    liar = ServiceTime(fixed=0.0, token=0.001, tokens=9e6, answers=9_000_000)
    honest = ServiceTime(fixed=0.0, token=0.1, tokens=10, answers=30)
    alone = [p.seconds for p in forecasts(chat(), [at("honest", time=honest)])]
    both = [
        p.seconds for p in forecasts(chat(), [at("honest", time=honest), at("liar", time=liar)])
    ]
    assert alone == [1.0]
    # The mean is over nodes, not over the answers they claim; the ratio between nodes does not depend on it.
    assert both[0] / both[1] == pytest.approx(100)


def test_a_candidate_without_a_service_time_is_expected_to_be_average() -> None:
    candidates = [
        at("quick", slots=4, time=QUICK),
        at("slow", slots=4, time=SLOW),
        at("new", slots=4),
    ]
    usual = ServiceTime(fixed=2.0)
    candidates.append(at("usual", slots=4, time=usual))
    _, _, new, other = forecasts(chat(), candidates)
    assert new == other
    assert expectations(chat(), candidates[2], candidates) == {}
    assert expectations(chat(), candidates[1], candidates) == {
        "expected_seconds": 8.0,
        "service_seconds": 8.0,
        "error": 1.0,
    }


def test_without_service_times_the_emptier_machine_is_expected_to_finish_sooner() -> None:
    big, small = forecasts(chat(), [at("b", slots=16, in_flight=8), at("s", slots=1, in_flight=1)])
    assert big.cost < small.cost
    assert big.part == 16 * small.part
    one, other = forecasts(chat(), [at("b", slots=16, in_flight=8), at("s", in_flight=1)])
    assert one.cost > other.cost


def test_a_full_quick_machine_is_worth_a_wait_and_a_full_slow_one_is_not() -> None:
    quick, slow = (at(n, slots=4, in_flight=4, time=t) for n, t in (("q", QUICK), ("s", SLOW)))
    idle = at("idle", slots=4, time=ServiceTime(fixed=2.0))
    assert longest_useful_wait(chat(), quick, [idle]) == 1.5
    assert longest_useful_wait(chat(), slow, [idle]) == 0
    assert longest_useful_wait(chat(), quick, [replace(quick, node=PeerId("other"))]) == 0.125


def test_a_background_session_does_not_wait_while_another_machine_has_room() -> None:
    quick, idle = at("q", slots=4, in_flight=4, time=QUICK), at("idle", slots=4, time=SLOW)
    line = replace(chat(), background=True)
    assert longest_useful_wait(line, quick, [idle]) > 0
    assert longest_useful_wait(replace(line, session="s"), quick, [idle]) == 0
    full = replace(idle, in_flight=4)
    assert longest_useful_wait(replace(line, session="s"), quick, [full]) > 0


def test_a_request_does_not_wait_without_service_times_or_trusted_alternatives() -> None:
    full, other = at("a", slots=1, in_flight=1), at("b", time=SLOW)
    assert longest_useful_wait(chat(), full, [other]) == 0
    known = replace(full, time=QUICK)
    assert longest_useful_wait(chat(), known, [replace(other, ejected=True)]) == 0
    assert longest_useful_wait(chat(), known, []) == 0


def test_a_slow_machine_counts_as_crowded_before_a_quick_one() -> None:
    quick, slow = (at(n, slots=8, in_flight=7, time=t) for n, t in (("q", QUICK), ("s", SLOW)))
    assert with_room_first(chat(), [slow, quick]) == [quick, slow]


def test_a_candidate_is_late_by_its_expected_first_byte_and_its_queue() -> None:
    time = ServiceTime(fixed=2.0, first=0.2, first_kilobyte=0.01)
    candidates = [at(str(n), slots=4, in_flight=n, time=time) for n in (0, 5)]
    candidates += [at("slow", slots=4, time=replace(time, first=2.0)), at("unknown", slots=4)]
    request = replace(chat(), aim=0.5, stream=True)
    assert {node for node, _ in late_candidates(request, candidates)} == {"5", "slow"}
    # For a whole answer, its end counts.
    assert {node for node, _ in late_candidates(replace(request, stream=False), candidates)} == {
        "0",
        "5",
        "slow",
    }
    shares = at("shares", in_flight=9, time=replace(time, sharing=1.0))
    assert late_candidates(request, [shares])


READER = ServiceTime(fixed=0.5, kilobyte=0.1, holds=60.0)


def test_cached_prefixes_are_not_read_again() -> None:
    warm = replace(at("warm", slots=4, time=READER), before=ReadPrefix(20.0, 0.0))
    half = replace(warm, node=PeerId("half"), before=ReadPrefix(20.0, 60.0))
    cold = replace(warm, node=PeerId("cold"), before=ReadPrefix())
    found = forecasts(talk(), [warm, half, cold])
    assert [p.seconds for p in found] == pytest.approx([0.5, 1.5, 2.5], abs=0.05)
    # Reading a prompt twice also takes a slot from other requests.
    assert found[2].cost - found[2].reread > found[2].seconds
    assert (found[0].reread, found[2].reread) == pytest.approx((0.0, 6.0))
    assert len({p.part for p in found}) == 1


def test_a_warm_machine_is_waited_for_as_long_as_a_new_prefill_would_take() -> None:
    warm = replace(at("warm", slots=4, in_flight=4, time=READER), before=ReadPrefix(20.0, 0.0))
    cold = at("cold", slots=4, time=READER)
    assert longest_useful_wait(talk(), warm, [cold]) == pytest.approx(8.0, abs=0.05)
    assert longest_useful_wait(talk(), replace(warm, before=ReadPrefix()), [cold]) == 0


def test_conversations_stay_at_a_machine_if_prefill_takes_long() -> None:
    brief, long = talk(size=10), talk()
    assert is_affinity_worthwhile(long, [at("a", time=READER)])
    assert not is_affinity_worthwhile(brief, [at("a", time=READER)])
    assert not is_affinity_worthwhile(long, [at("a", time=QUICK)])
    assert not is_affinity_worthwhile(long, [at("a")])


def test_possible_holders_of_a_conversation_are_asked_if_none_is_known() -> None:
    candidates = [at(str(n), time=READER) for n in range(20)]
    queried = candidates_to_query(talk(), candidates)
    assert len(queried) == MAX_QUERIED
    assert queried == candidates_to_query(talk(), candidates[::-1])
    assert (
        candidates_to_query(
            talk(), [replace(candidates[0], before=ReadPrefix(15.0, 1.0)), *candidates[1:]]
        )
        == []
    )
    assert (
        candidates_to_query(talk(), [at("a", time=ServiceTime(0.0, kilobyte=0.01)), at("b")]) == []
    )


def test_a_holder_that_may_be_full_is_asked_as_well() -> None:
    report = Reported(Load(5, slots=4), ours=0, age=0.1)
    before = ReadPrefix(15.0, 1.0)
    full = replace(at("full", time=READER), report=report, before=before)
    others = [at(str(n), slots=4, time=READER) for n in range(20)]
    assert full in candidates_to_query(talk(), [full, *others])
    # All requests there are this node's own, so its load is known.
    ours = replace(full, report=replace(report, ours=5), in_flight=5)
    assert candidates_to_query(talk(), [ours, *others]) == []


def test_before_a_long_answer_candidates_that_may_be_busier_than_known_are_asked() -> None:
    def found(*, age: float, in_flight: int = 0, seconds: float = 1.0) -> list[Candidate]:
        report = Reported(Load(in_flight, slots=4), ours=0, age=age)
        time = ServiceTime(fixed=seconds)
        return [replace(at(str(n), time=time), report=report) for n in range(20)]

    assert len(candidates_to_query(chat(), found(age=2 * FRESH))) == MAX_QUERIED
    assert candidates_to_query(chat(), found(age=0.5 * FRESH)) == []
    assert len(candidates_to_query(chat(), found(age=0.0, in_flight=4))) == MAX_QUERIED
    assert candidates_to_query(chat(), found(age=2 * FRESH, seconds=0.5 * LONG)) == []
    assert candidates_to_query(chat(), [at("a"), at("b")]) == []
