"""Laws of shares: by slots and speed where they are known, the same on every node, and within bounds."""

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
    ASKED,
    FRESH,
    LONG,
    draw,
    drawn,
    expectations,
    late,
    patience,
    prospects,
    weights,
    with_room_first,
    worth_asking,
    worth_keeping,
)
from router.state.remote_load import Reported
from router.state.service_time import Before, ServiceTime
from tests.router.world import chat, own


def at(
    node: str, *, slots: int = 0, in_flight: int = 0, time: ServiceTime | None = None
) -> Candidate:
    report = Reported(Load(in_flight, slots=slots), ours=in_flight, age=0.0)
    return Candidate(PeerId(node), Service("p", "m"), in_flight=in_flight, report=report, time=time)


def talk(*, goes_on: bool = True, size: int = 20_000) -> Request:
    said = [{"role": "user", "content": "x" * size}, {"role": "assistant", "content": "y"}]
    fields = {"messages": [*said, {"role": "user", "content": "?"}] if goes_on else said[:1]}
    body = orjson.dumps(fields)
    return replace(chat(body=body), prefixes=prefixes_of(fields, max(len(body), MIN_BYTES)))


QUICK, SLOW = ServiceTime(fixed=0.5), ServiceTime(fixed=8.0)


def test_slots_are_those_that_were_registered_or_reported_and_else_unknown() -> None:
    assert own("http://127.0.0.1:1", capacity=4).slots == 4
    assert at("n", slots=7).slots == 7
    assert replace(at("n"), report=None).slots == 0


def test_one_unknown_makes_all_alike() -> None:
    assert weights([at("a", slots=2), at("b", slots=8)]) == [2, 8]
    assert weights([at("a", slots=2), at("b")]) == [1, 1]


def test_all_are_drawn_and_each_as_early_as_its_part_says():
    orders = [drawn([1, 0, 3, 4], Random(seed).random) for seed in range(4000)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert all(order[-1] == 1 for order in orders)
    firsts = Counter(order[0] for order in orders)
    assert firsts[0] / 4000 == pytest.approx(1 / 8, rel=0.15)
    assert firsts[3] / 4000 == pytest.approx(4 / 8, rel=0.1)
    # Of those that are left each as often: the first of four is behind the last, then, one time in four.
    seconds = Counter(order[1] for order in orders if order[0] == 3)
    assert seconds[0] / seconds.total() == pytest.approx(1 / 4, rel=0.15)


def test_drawing_follows_the_weights_and_leaves_out_nothing_but_zero() -> None:
    drawn = Counter(draw([1, 0, 3], Random(seed).random) for seed in range(2000))
    assert drawn[1] == 0
    assert 2.4 < drawn[2] / drawn[0] < 3.8


def test_whoever_has_far_more_than_its_share_comes_last_and_the_rest_stays() -> None:
    found = [at("a", in_flight=1), at("b", in_flight=40), at("c"), at("d", in_flight=2)]
    assert [c.node for c in with_room_first(chat(), found)] == ["a", "c", "d", "b"]


def test_a_share_is_counted_by_slots() -> None:
    found = [at("big", slots=30, in_flight=30), at("small", slots=10, in_flight=10)]
    assert with_room_first(chat(), found) == found


def test_nobody_has_room_then_the_order_stays() -> None:
    found = [at("a", in_flight=50)]
    assert with_room_first(chat(), found) == found
    assert with_room_first(chat(), []) == []


def test_a_quick_machine_bears_more_and_is_sooner_done() -> None:
    quick, slow = prospects(
        chat(), [at("quick", slots=4, time=QUICK), at("slow", slots=4, time=SLOW)]
    )
    assert quick.part == 16 * slow.part
    assert (quick.seconds, slow.seconds) == (0.5, 8.0)


def test_who_finds_all_slots_taken_waits_for_one() -> None:
    [room, full, queue] = prospects(
        chat(), [at(str(n), slots=4, in_flight=n, time=QUICK) for n in (3, 4, 8)]
    )
    assert (room.seconds, full.seconds, queue.seconds) == (0.5, 0.625, 1.125)
    assert room.cost < full.cost < queue.cost


def test_a_machine_without_slots_does_all_at_one_time() -> None:
    time = ServiceTime(fixed=0.5, sharing=1.0)
    idle, busy = prospects(chat(), [at(str(n), in_flight=n, time=time) for n in (0, 3)])
    assert (idle.seconds, busy.seconds) == (0.5, 2.0)
    batches = replace(time, sharing=0.5)
    [some] = prospects(chat(), [at("n", in_flight=3, time=batches)])
    assert some.seconds == 1.0


def test_long_requests_go_where_they_are_read_quickly() -> None:
    reader = at("reader", slots=4, time=ServiceTime(fixed=1.0, kilobyte=0.01))
    writer = at("writer", slots=4, time=ServiceTime(fixed=0.5, kilobyte=0.5))
    short = chat()
    long = replace(short, body=short.body.ljust(20_000))
    assert prospects(short, [reader, writer])[1].cost < prospects(short, [reader, writer])[0].cost
    assert prospects(long, [reader, writer])[0].cost < prospects(long, [reader, writer])[1].cost


def test_answers_are_thought_to_be_as_long_everywhere() -> None:
    brief = ServiceTime(fixed=0.0, token=0.1, tokens=10, answers=30)
    wordy = ServiceTime(fixed=0.0, token=0.1, tokens=40, answers=10)
    seconds = [p.seconds for p in prospects(chat(), [at("a", time=brief), at("b", time=wordy)])]
    assert seconds[0] == seconds[1] == 1.75


def test_no_node_alone_says_how_long_answers_are() -> None:
    liar = ServiceTime(fixed=0.0, token=0.001, tokens=9e6, answers=9_000_000)
    honest = ServiceTime(fixed=0.0, token=0.1, tokens=10, answers=30)
    alone = [p.seconds for p in prospects(chat(), [at("honest", time=honest)])]
    both = [
        p.seconds for p in prospects(chat(), [at("honest", time=honest), at("liar", time=liar)])
    ]
    assert alone == [1.0]
    # A mean over nodes, not over what they claim; how they compare does not hang on it.
    assert both[0] / both[1] == pytest.approx(100)


def test_of_whom_nothing_is_known_the_usual_is_expected() -> None:
    found = [at("quick", slots=4, time=QUICK), at("slow", slots=4, time=SLOW), at("new", slots=4)]
    usual = ServiceTime(fixed=2.0)
    found.append(at("usual", slots=4, time=usual))
    _, _, new, other = prospects(chat(), found)
    assert new == other
    assert expectations(chat(), found[2], found) == {}
    assert expectations(chat(), found[1], found) == {
        "expected_seconds": 8.0,
        "service_seconds": 8.0,
        "error": 1.0,
    }


def test_where_nothing_is_known_the_emptier_is_expected_to_be_sooner_done() -> None:
    big, small = prospects(chat(), [at("b", slots=16, in_flight=8), at("s", slots=1, in_flight=1)])
    assert big.cost < small.cost
    assert big.part == 16 * small.part
    one, other = prospects(chat(), [at("b", slots=16, in_flight=8), at("s", in_flight=1)])
    assert one.cost > other.cost


def test_a_full_quick_machine_is_worth_a_wait_and_a_full_slow_one_is_not() -> None:
    quick, slow = (at(n, slots=4, in_flight=4, time=t) for n, t in (("q", QUICK), ("s", SLOW)))
    idle = at("idle", slots=4, time=ServiceTime(fixed=2.0))
    assert patience(chat(), quick, [idle]) == 1.5
    assert patience(chat(), slow, [idle]) == 0
    assert patience(chat(), quick, [replace(quick, node=PeerId("other"))]) == 0.125


def test_a_session_of_a_batch_waits_for_nobody_while_another_has_room() -> None:
    quick, idle = at("q", slots=4, in_flight=4, time=QUICK), at("idle", slots=4, time=SLOW)
    line = replace(chat(), background=True)
    assert patience(line, quick, [idle]) > 0
    assert patience(replace(line, session="s"), quick, [idle]) == 0
    full = replace(idle, in_flight=4)
    assert patience(replace(line, session="s"), quick, [full]) > 0


def test_nobody_waits_where_nothing_is_known_or_nobody_else_is_trusted() -> None:
    full, other = at("a", slots=1, in_flight=1), at("b", time=SLOW)
    assert patience(chat(), full, [other]) == 0
    known = replace(full, time=QUICK)
    assert patience(chat(), known, [replace(other, ejected=True)]) == 0
    assert patience(chat(), known, []) == 0


def test_a_slow_machine_is_crowded_before_a_quick_one() -> None:
    quick, slow = (at(n, slots=8, in_flight=7, time=t) for n, t in (("q", QUICK), ("s", SLOW)))
    assert with_room_first(chat(), [slow, quick]) == [quick, slow]


def test_who_will_not_make_it_is_known_by_its_first_byte_and_its_queue() -> None:
    time = ServiceTime(fixed=2.0, first=0.2, first_kilobyte=0.01)
    found = [at(str(n), slots=4, in_flight=n, time=time) for n in (0, 5)]
    found += [at("slow", slots=4, time=replace(time, first=2.0)), at("unknown", slots=4)]
    asked = replace(chat(), aim=0.5, stream=True)
    assert {node for node, _ in late(asked, found)} == {"5", "slow"}
    # Of an answer in one piece the end counts.
    assert {node for node, _ in late(replace(asked, stream=False), found)} == {"0", "5", "slow"}
    shares = at("shares", in_flight=9, time=replace(time, sharing=1.0))
    assert late(asked, [shares])


READER = ServiceTime(fixed=0.5, kilobyte=0.1, holds=60.0)


def test_what_is_in_a_cache_need_not_be_read() -> None:
    warm = replace(at("warm", slots=4, time=READER), before=Before(20.0, 0.0))
    half = replace(warm, node=PeerId("half"), before=Before(20.0, 60.0))
    cold = replace(warm, node=PeerId("cold"), before=Before())
    found = prospects(talk(), [warm, half, cold])
    assert [p.seconds for p in found] == pytest.approx([0.5, 1.5, 2.5], abs=0.05)
    # What is read twice takes a slot from others as well.
    assert found[2].cost - found[2].reread > found[2].seconds
    assert (found[0].reread, found[2].reread) == pytest.approx((0.0, 6.0))
    assert len({p.part for p in found}) == 1


def test_a_warm_machine_is_waited_for_as_long_as_reading_again_would_take() -> None:
    warm = replace(at("warm", slots=4, in_flight=4, time=READER), before=Before(20.0, 0.0))
    cold = at("cold", slots=4, time=READER)
    assert patience(talk(), warm, [cold]) == pytest.approx(8.0, abs=0.05)
    assert patience(talk(), replace(warm, before=Before()), [cold]) == 0


def test_conversations_are_kept_together_where_reading_takes_long() -> None:
    brief, long = talk(size=10), talk()
    assert worth_keeping(long, [at("a", time=READER)])
    assert not worth_keeping(brief, [at("a", time=READER)])
    assert not worth_keeping(long, [at("a", time=QUICK)])
    assert not worth_keeping(long, [at("a")])


def test_who_may_hold_a_conversation_is_asked_where_nobody_is_known_to() -> None:
    found = [at(str(n), time=READER) for n in range(20)]
    asked = worth_asking(talk(), found)
    assert len(asked) == ASKED
    assert asked == worth_asking(talk(), found[::-1])
    assert worth_asking(talk(), [replace(found[0], before=Before(15.0, 1.0)), *found[1:]]) == []
    assert worth_asking(talk(), [at("a", time=ServiceTime(0.0, kilobyte=0.01)), at("b")]) == []


def test_a_holder_that_may_be_full_is_asked_as_well() -> None:
    report = Reported(Load(5, slots=4), ours=0, age=0.1)
    before = Before(15.0, 1.0)
    full = replace(at("full", time=READER), report=report, before=before)
    others = [at(str(n), slots=4, time=READER) for n in range(20)]
    assert full in worth_asking(talk(), [full, *others])
    # What is there is ours alone, and known.
    ours = replace(full, report=replace(report, ours=5), in_flight=5)
    assert worth_asking(talk(), [ours, *others]) == []


def test_before_a_long_answer_those_are_asked_who_may_be_busier_than_is_known() -> None:
    def found(*, age: float, in_flight: int = 0, seconds: float = 1.0) -> list[Candidate]:
        report = Reported(Load(in_flight, slots=4), ours=0, age=age)
        time = ServiceTime(fixed=seconds)
        return [replace(at(str(n), time=time), report=report) for n in range(20)]

    assert len(worth_asking(chat(), found(age=2 * FRESH))) == ASKED
    assert worth_asking(chat(), found(age=0.5 * FRESH)) == []
    assert len(worth_asking(chat(), found(age=0.0, in_flight=4))) == ASKED
    assert worth_asking(chat(), found(age=2 * FRESH, seconds=0.5 * LONG)) == []
    assert worth_asking(chat(), [at("a"), at("b")]) == []
