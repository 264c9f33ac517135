"""Events of nodes: one for each change of a node's presence, none for other changes, and a bounded number kept."""

from dataclasses import dataclass, field

from node.peers.node_events import NodeEvents
from registry import wire
from registry.catalog import Catalog
from registry.members.liveness import MemberHealth, Presence
from registry.records import PeerId, Record, Version
from tests.strategies import IDENTITIES

OWNER = IDENTITIES[0]
THEM = OWNER.peer


def catalog() -> Catalog:
    record = Record(node=THEM, version=Version(1, 1), name="them")
    return Catalog().merge([wire.encode_record(record, OWNER)])


@dataclass
class Others:
    """Other nodes; a test may change what is known of them."""

    now: Presence = Presence.ALIVE
    catalog: Catalog = field(default_factory=catalog)

    def presence(self, node: PeerId) -> Presence:
        return self.now

    def health_of(self, node: PeerId) -> MemberHealth | None:
        return None


def test_each_change_of_a_nodes_presence_is_one_event() -> None:
    others = Others()
    events = NodeEvents(others, lambda: 7.0)
    story = [Presence.ALIVE, Presence.ALIVE, Presence.SUSPECT, Presence.LOST, Presence.LOST]
    for others.now in story:
        events.changed([THEM])
    assert [(one.was, one.now) for one in events.events] == [
        ("", "alive"), ("alive", "suspect"), ("suspect", "lost"),
    ]  # fmt: skip
    assert {(one.node, one.name, one.at) for one in events.events} == {(THEM, "them", 7.0)}
    assert (events.count, events.changes) == (3, 5)


def test_a_node_that_was_forgotten_is_new_when_it_comes_back() -> None:
    others = Others()
    events = NodeEvents(others, lambda: 7.0)
    events.changed([THEM])
    others.catalog = Catalog()
    events.changed([THEM])
    others.catalog = catalog()
    events.changed([THEM])
    assert [one.was for one in events.events] == ["", ""]


def test_only_the_last_events_are_remembered() -> None:
    others = Others()
    events = NodeEvents(others, lambda: 7.0, most=2)
    for others.now in [Presence.ALIVE, Presence.SUSPECT] * 3:
        events.changed([THEM])
    assert len(events.events) == 2
    assert events.count == 6
