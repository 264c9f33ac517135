"""Counted events, each of which has a name that /metrics shows before it has happened."""

import re
from pathlib import Path

from registry.effects import EVENTS, sum_counts
from registry.mesh.libp2p.guards import CONNECTIONS_REFUSED, HANDSHAKES_FAILED
from registry.mesh.libp2p.node import STREAMS_REFUSED

ROOT = Path(__file__).parent.parent.parent
COUNTED = re.compile(r'counters\["(\w+)"\]')
"""Pattern of an event's name where it is counted; the validator returns the name as a reason instead (`REASON`)."""
REASON = re.compile(r'return "(\w+)"')


def test_an_event_that_has_not_happened_has_a_count_of_zero() -> None:
    assert sum_counts() == dict.fromkeys(EVENTS, 0)


def test_counts_of_different_places_are_added_up() -> None:
    counts = sum_counts({"refused": 2}, {"refused": 3, "syncs": 1})
    assert (counts["refused"], counts["syncs"], counts["barred"]) == (5, 1, 0)


def test_every_event_that_the_registry_counts_has_a_name_here() -> None:
    pages = [path.read_text() for path in (ROOT / "registry").rglob("*.py")]
    names = {event for page in pages for event in COUNTED.findall(page)}
    names |= {*REASON.findall((ROOT / "registry/intake/validator.py").read_text())}
    names |= {CONNECTIONS_REFUSED, HANDSHAKES_FAILED, STREAMS_REFUSED}
    assert {"frames_bad", "strangers_refused", "offences", "loads_in"} <= names
    assert not names - set(EVENTS)
