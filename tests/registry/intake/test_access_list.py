"""Access lists: the deny list has the last word, an allow list keeps all other peers out, and the node itself is let in."""

import pytest

from registry import sync, wire
from registry.errors import LimitReached
from registry.intake.access_list import MAX_NAMED, KeptOut, access_list_of
from registry.records import PeerId, Record, Version
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
def test_allow_and_deny_lists_decide_which_peers_are_let_in(allow, deny, let_in) -> None:
    lists = access_list_of(A.peer, allow=[i.peer for i in allow], deny=[i.peer for i in deny])
    assert {one for one in (A, B, C) if lists.admits(one.peer)} == let_in


def test_the_objection_to_a_peer_names_the_list() -> None:
    lists = access_list_of(A.peer, allow=[A.peer, B.peer], deny=[B.peer])
    assert lists.objection(A.peer) == ""
    assert lists.objection(B.peer) == "in registry.deny"
    assert lists.objection(C.peer) == "not in registry.allow"


def test_only_the_last_few_peers_that_were_kept_out_are_remembered() -> None:
    kept_out = KeptOut()
    for number in range(3 * MAX_NAMED):
        kept_out.note(PeerId(f"peer-{number}"), "in registry.deny")
    assert [*kept_out.take()] == [f"peer-{n}" for n in range(2 * MAX_NAMED, 3 * MAX_NAMED)]
    assert kept_out.take() == {}


def test_no_record_of_a_denied_peer_is_held_whichever_way_it_comes() -> None:
    node = Replica(A, RegistrySettings(deny=(B.peer,)), epoch=1, jitter=lambda: 0.5)
    signed = wire.encode_record(Record(B.peer, Version(1, 1)), B)
    with pytest.raises(LimitReached):
        node.receive(signed.frame, 0.0)
    with pytest.raises(LimitReached):
        node.merge_record(signed, heard_at=0.0, now=0.0)
    node.restore([signed.frame], 0.0)
    assert not node.catalog.held


def test_a_denied_peer_does_not_come_in_by_a_comparison_with_a_third_node() -> None:
    closed = Replica(A, RegistrySettings(deny=(B.peer,)), epoch=1, jitter=lambda: 0.5)
    other = Replica(C, RegistrySettings(), epoch=1, jitter=lambda: 0.5)
    other.merge_record(wire.encode_record(Record(B.peer, Version(1, 1)), B), heard_at=0.0, now=0.0)
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
    # Nor does it come in by a push from a peer that is let in.
    push = sync.compare(other, lambda: 0.0, A.peer)
    step = next(push)
    while True:
        reply, _ = sync.answer(closed, step.question, 0.0, asker=C.peer)
        try:
            step = push.send(reply)
        except StopIteration:
            break
    assert set(closed.catalog.held) == {C.peer}
