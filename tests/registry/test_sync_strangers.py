"""Comparisons among strangers: a connected node has its record taken in, however many unknown nodes there are."""

import orjson
import pytest

from registry import sync
from registry.errors import InvalidFrame
from registry.intake.newcomers import AT_ONCE
from registry.replica import Replica
from registry.settings import RegistrySettings
from tests.registry.test_sync import (
    NOW,
    A,
    B,
    C,
    batch,
    exchange,
    honest,
    lying,
    replica,
    say,
    strangers,
)

CROWD = strangers(2 * AT_ONCE)


def met_by(asker: Replica, answerer: Replica) -> None:
    """Connect two replicas, of which the asker dials the other."""
    asker.meet(answerer.peer, NOW, chosen=True)
    answerer.meet(asker.peer, NOW, chosen=False)


def test_a_node_that_comes_with_a_crowd_of_strangers_is_taken_in_itself() -> None:
    comes, stays = replica(A, *CROWD), replica(B)
    met_by(comes, stays)
    comes.announce(NOW, services=[])
    exchange(comes, lambda question: sync.answer(stays, question, NOW, asker=comes.peer)[0])
    assert comes.peer in stays.catalog.held
    assert len(stays.catalog.held) <= AT_ONCE + 2


def test_a_connected_node_is_read_where_the_strangers_before_it_took_all_the_room() -> None:
    stays = replica(B)
    stays.meet(C.peer, NOW, chosen=False)
    frames = [word.frame for word in CROWD[: AT_ONCE + 10]]
    pushed = b"P" + batch(*frames, say(C).frame)
    assert sync.answer(stays, pushed, NOW, asker=A.peer)[0] == b"%d" % (AT_ONCE + 1)
    assert C.peer in stays.catalog.held


def test_a_connected_node_is_pulled_where_there_is_room_for_no_stranger() -> None:
    one = replica(A, settings=RegistrySettings(max_nodes=3))
    exchange(one, honest(replica(B, *CROWD)))
    one.meet(C.peer, NOW, chosen=True)
    exchange(one, honest(replica(B, *CROWD, say(C))))
    assert C.peer in one.catalog.held


def test_a_full_registry_asks_for_one_stranger_and_takes_in_none() -> None:
    one = replica(A, settings=RegistrySettings(max_nodes=3))
    one.announce(NOW, services=[])
    exchange(one, honest(replica(B, *strangers(20))))
    assert len(one.catalog.held) == 3
    questions, effects = exchange(one, honest(replica(B, *strangers(20))))
    assert effects == []
    (pull,) = (question for question in questions if question.startswith(b"p"))
    assert len(orjson.loads(pull[1:])["nodes"]) == 1
    assert len(one.catalog.held) == 3


def test_listing_records_that_are_never_sent_is_an_offence_where_there_is_no_room_for_them() -> (
    None
):
    one = replica(A, *strangers(3), settings=RegistrySettings(max_nodes=3))
    listing = {f"nobody-{n}": [1, 1, "ab" * 8] for n in range(1_000)}
    lies = lying(replica(B, say(C)), b"l", orjson.dumps({"held": listing}))
    with pytest.raises(InvalidFrame, match="cannot be fetched"):
        exchange(one, lies)
