"""Laws of what the router counts."""

import re
from pathlib import Path

from router.ledger import EVENTS, Ledger
from router.world import LoneWorld
from tests.router.world import OWN, QUICK

ROUTER = Path(__file__).parent.parent.parent / "router"
COUNTED = re.compile(r'events\["(\w+)"\]')


async def test_what_has_not_happened_yet_was_counted_no_times() -> None:
    ledger = Ledger(LoneWorld(OWN.peer), QUICK, now=lambda: 0.0, random=lambda: 0.5)
    assert ledger.events == dict.fromkeys(EVENTS, 0)


def test_every_event_that_the_router_counts_has_a_name_here() -> None:
    named = {event for path in ROUTER.rglob("*.py") for event in COUNTED.findall(path.read_text())}
    assert named == set(EVENTS)
