"""Laws of the warm cache: a conversation returns to whoever has read its beginning, within reason."""

from collections import Counter
from dataclasses import replace
from random import Random

import orjson

from registry.records import Load, PeerId, Service
from router.policies.prefix import MAX_BEGINNINGS, MAX_UNDECIDED, Prefix
from router.requests import Request
from router.select.candidates import Candidate
from router.state.remote_load import Reported
from tests.router.world import chat

MACHINES = tuple(Candidate(PeerId(f"n{number}"), Service("p", "m")) for number in range(4))
CHANCE = Random(1).random


def turn(*said: str, ident: str = "r", system: str = "be brief") -> Request:
    messages = [{"role": "system", "content": system}]
    for place, words in enumerate(said):
        messages.append({"role": "assistant" if place % 2 else "user", "content": words})
    return replace(chat(body=orjson.dumps({"model": "m", "messages": messages})), id=ident)


def busy(node: PeerId, requests: int) -> tuple[Candidate, ...]:
    return tuple(replace(c, in_flight=requests) if c.node == node else c for c in MACHINES)


def test_a_conversation_goes_on_where_it_was_answered_also_after_a_detour() -> None:
    policy = Prefix()
    first = turn("hi")
    policy.order(first, MACHINES, CHANCE)
    # It was not the first choice that answered: that one failed.
    policy.begun(first)
    policy.answered(first, MACHINES[3])
    for later in (turn("hi", "hello", "how?"), turn("hi", "hello", "how?", "so", "and?")):
        assert policy.order(later, MACHINES, CHANCE)[0] == MACHINES[3]
        assert "has read" in policy.why(later, MACHINES[3], MACHINES)
        policy.begun(later)
        policy.answered(later, MACHINES[3])


def test_the_longest_common_beginning_counts() -> None:
    policy = Prefix()
    for asked, machine in ((turn("hi"), 0), (turn("hi", "hello", "a"), 1)):
        policy.order(asked, MACHINES, CHANCE)
        policy.begun(asked)
        policy.answered(asked, MACHINES[machine])
    assert policy.order(turn("hi", "hello", "a", "b", "c"), MACHINES, CHANCE)[0] == MACHINES[1]
    # Both have read this much of it: the idler one.
    for busier, idler in ((0, 1), (1, 0)):
        found = busy(MACHINES[busier].node, 1)
        assert policy.order(turn("hi", "other", "a"), found, CHANCE)[0] == MACHINES[idler]


def test_when_the_reader_of_most_is_gone_whoever_read_less_of_it_is_next() -> None:
    policy = Prefix()
    for asked, machine in ((turn("hi"), 0), (turn("hi", "hello", "a"), 1)):
        policy.begun(asked)
        policy.answered(asked, MACHINES[machine])
    left = [MACHINES[0], *MACHINES[2:]]
    assert policy.order(turn("hi", "hello", "a", "b", "c"), left, CHANCE)[0] == MACHINES[0]


def test_questions_about_one_long_document_go_where_it_was_read() -> None:
    policy = Prefix()
    first = turn("fact. " * 5_000 + "Why?")
    policy.begun(first)
    policy.answered(first, MACHINES[2])
    for number in range(20):
        asked = turn("fact. " * 5_000 + f"Question {number}?")
        assert policy.order(asked, MACHINES, CHANCE)[0] == MACHINES[2]


def test_a_common_form_that_is_less_than_half_of_what_is_asked_draws_nobody() -> None:
    policy, firsts = Prefix(), set()
    for number in range(40):
        asked = turn("Fill in this form. " * 300 + f"{number} data. " * 1_500, ident=str(number))
        chosen = policy.order(asked, MACHINES, CHANCE)[0]
        policy.begun(asked)
        policy.answered(asked, chosen)
        firsts.add(chosen.node)
    assert len(firsts) == 4


def test_nobody_waits_for_a_slot_of_a_warm_machine_while_another_has_one() -> None:
    policy = Prefix()
    first = turn("hi")
    policy.begun(first)
    policy.answered(first, MACHINES[2])
    report = Reported(Load(1, slots=1), ours=1, age=0.0)
    full = [replace(m, in_flight=1, report=report) for m in MACHINES]
    free = [replace(full[0], in_flight=0), *full[1:]]
    later = turn("hi", "hello", "how?")
    assert policy.order(later, free, CHANCE)[0].node == MACHINES[0].node
    assert "more than its share" in policy.why(later, free[2], free)
    assert policy.order(later, full, CHANCE)[0].node == MACHINES[2].node


def test_conversations_of_one_session_begin_at_one_machine() -> None:
    policy = Prefix()
    asked = [replace(turn(f"question {number}"), session="s") for number in range(20)]
    assert len({policy.order(one, MACHINES, CHANCE)[0].node for one in asked}) == 1
    assert "session" in policy.why(asked[0], MACHINES[0], MACHINES)


def test_the_figures_say_how_much_has_been_read() -> None:
    policy = Prefix()
    first, later = turn("hi"), turn("hi", "hello", "how?")
    policy.begun(first)
    policy.answered(first, MACHINES[0])
    warm, cold = (policy.figures(later, machine, MACHINES) for machine in MACHINES[:2])
    assert (warm["messages_read"], warm["messages"]) == (2, 4)
    assert 0 < warm["bytes_read"] < warm["bytes"]
    assert cold["messages_read"] == cold["bytes_read"] == 0
    assert "2 of this conversation's 4 messages" in policy.why(later, MACHINES[0], MACHINES)


def test_nodes_that_never_spoke_to_each_other_choose_alike() -> None:
    for number in range(50):
        asked = turn(f"question {number}")
        first = {
            Prefix().order(asked, tuple(order), CHANCE)[0] for order in (MACHINES, MACHINES[::-1])
        }
        assert len(first) == 1


def test_a_common_system_message_does_not_send_all_to_one_machine() -> None:
    policy = Prefix()
    firsts: Counter[PeerId] = Counter()
    for number in range(400):
        asked = turn(f"question {number}", ident=str(number), system="x" * 10_000)
        chosen = policy.order(asked, MACHINES, CHANCE)[0]
        policy.begun(asked)
        policy.answered(asked, chosen)
        firsts[chosen.node] += 1
    assert len(firsts) == 4
    assert max(firsts.values()) < 150


def test_a_machine_with_far_more_than_its_share_is_passed_over_until_it_has_less() -> None:
    policy = Prefix()
    first = turn("hi")
    policy.order(first, MACHINES, CHANCE)
    policy.begun(first)
    policy.answered(first, MACHINES[2])
    later = turn("hi", "hello", "how?")
    assert policy.order(later, busy(MACHINES[2].node, 1), CHANCE)[0].node == MACHINES[2].node
    assert policy.order(later, busy(MACHINES[2].node, 20), CHANCE)[0].node != MACHINES[2].node
    assert policy.order(later, MACHINES, CHANCE)[0] == MACHINES[2]


def test_when_a_machine_goes_only_its_own_conversations_move() -> None:
    policy = Prefix()
    asked = [turn(f"question {number}") for number in range(100)]
    before = [policy.order(one, MACHINES, CHANCE)[0] for one in asked]
    after = [policy.order(one, MACHINES[1:], CHANCE)[0] for one in asked]
    assert all(now == then for now, then in zip(after, before, strict=True) if then != MACHINES[0])


def test_memory_is_bounded() -> None:
    policy = Prefix()
    for number in range(MAX_BEGINNINGS + 10):
        asked = turn(str(number), ident=str(number))
        policy.order(asked, MACHINES, CHANCE)
        if number >= 2 * MAX_UNDECIDED:
            policy.begun(asked)
            policy.answered(asked, MACHINES[0])
    assert len(policy._undecided) <= MAX_UNDECIDED
    assert len(policy._readers) <= MAX_BEGINNINGS
