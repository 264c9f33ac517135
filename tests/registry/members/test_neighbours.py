"""Neighbours that a node keeps connected: nodes that can be dialled, in an order of its own, and not too many."""

from registry import wire
from registry.catalog import Catalog
from registry.members.neighbours import KEPT_NODES, PAUSE, Neighbours, worth_keeping
from registry.records import PeerId, Reach, Record, Standing, Version
from registry.signing import Identity

OWN = Record(Identity(bytes([1]) * 32).peer, Version(1, 1))
OTHERS = [Identity(n.to_bytes(32)) for n in range(1_000, 1_100)]


def catalog(owners: list[Identity], **changes: Standing) -> Catalog:
    records = [
        wire.encode_record(
            Record(
                i.peer,
                Version(1, 1),
                reach=Reach((f"/ip4/192.0.2.1/tcp/1/p2p/{i.peer}",)),
                **changes,
            ),
            i,
        )
        for i in owners
    ]
    return Catalog().merge(records)


def everybody(peer: PeerId) -> bool:
    return True


def test_each_node_chooses_some_in_an_order_of_its_own() -> None:
    ours = worth_keeping(OWN, catalog(OTHERS), everybody)
    theirs = worth_keeping(Record(OTHERS[0].peer, Version(1, 1)), catalog(OTHERS), everybody)
    assert len(ours) == len(theirs) == KEPT_NODES
    assert ours != theirs


def test_nodes_that_left_and_denied_nodes_are_not_kept_connected() -> None:
    one, other = OTHERS[:2]
    assert worth_keeping(OWN, catalog([one], standing=Standing.LEFT), everybody) == ()
    (kept,) = worth_keeping(OWN, catalog([one, other]), lambda peer: peer == one.peer)
    assert kept.endswith(one.peer)


def test_the_choice_is_made_now_and_then_and_returned_when_it_changed() -> None:
    keeping = Neighbours()
    one, other = OTHERS[:2]
    assert keeping.choose(OWN, catalog([one]), everybody, 0.0) is not None
    assert keeping.choose(OWN, catalog([one, other]), everybody, 0.1) is None
    assert keeping.stale
    assert len(keeping.choose(OWN, catalog([one, other]), everybody, PAUSE) or ()) == 2
    assert keeping.choose(OWN, catalog([one, other]), everybody, 2 * PAUSE) is None
    assert not keeping.stale
