"""Who is let in: the deny-list has the last word, an allow-list keeps everybody else out, and a node is at home."""

import pytest

from registry import sync, wire
from registry.errors import LimitReached
from registry.intake.access_list import guests
from registry.records import Record, Version
from registry.replica import Replica
from registry.settings import RegistrySettings
from tests.strategies import IDENTITIES

A, B, C = IDENTITIES[:3]


@pytest.mark.parametrize(
    ("allow", "deny", "let_in"),
    [
        ((), (), {A, B, C}),
        ((), (B,), {A, C}),
        ((B,), (), {A, B}),
        ((B, C), (C,), {A, B}),
        ((), (A,), {A, B, C}),
    ],
)
def test_who_is_let_in(allow, deny, let_in) -> None:
    lists = guests(A.peer, allow=[i.peer for i in allow], deny=[i.peer for i in deny])
    assert {one for one in (A, B, C) if lists.admits(one.peer)} == let_in


def test_no_word_of_who_is_kept_out_is_held_by_whatever_way_it_comes() -> None:
    one = Replica(A, RegistrySettings(deny=(B.peer,)), epoch=1, jitter=lambda: 0.5)
    word = wire.encode_record(Record(B.peer, Version(1, 1)), B)
    with pytest.raises(LimitReached):
        one.receive(word.frame, 0.0)
    with pytest.raises(LimitReached):
        one.learn(word, heard=0.0, now=0.0)
    one.restore([word.frame], 0.0)
    assert not one.catalog.held


def test_nobody_who_is_kept_out_comes_in_by_a_comparison_with_a_third() -> None:
    closed = Replica(A, RegistrySettings(deny=(B.peer,)), epoch=1, jitter=lambda: 0.5)
    other = Replica(C, RegistrySettings(), epoch=1, jitter=lambda: 0.5)
    other.learn(wire.encode_record(Record(B.peer, Version(1, 1)), B), heard=0.0, now=0.0)
    other.announce(0.0, services=[])
    exchange = sync.compare(closed, lambda: 0.0, C.peer)
    step = next(exchange)
    while True:
        reply, _ = sync.answer(other, step.question, 0.0, asker=A.peer)
        try:
            step = exchange.send(reply)
        except StopIteration:
            break
    assert set(closed.catalog.held) == {C.peer}
    # Nor does it by a push of somebody who is let in.
    push = sync.compare(other, lambda: 0.0, A.peer)
    step = next(push)
    while True:
        reply, _ = sync.answer(closed, step.question, 0.0, asker=C.peer)
        try:
            step = push.send(reply)
        except StopIteration:
            break
    assert set(closed.catalog.held) == {C.peer}
