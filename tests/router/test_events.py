"""Laws of the events that the router counts."""

import re
from pathlib import Path

from router.ledger import EVENTS, Ledger
from router.world import LoneWorld
from tests.router.world import OWN, QUICK

ROUTER = Path(__file__).parent.parent.parent / "router"
COUNTED = re.compile(r'events\["(\w+)"\]')


async def test_every_event_starts_at_zero() -> None:
    ledger = Ledger(LoneWorld(OWN.peer), QUICK, now=lambda: 0.0, random=lambda: 0.5)
    assert ledger.events == dict.fromkeys(EVENTS, 0)


def test_every_event_that_the_router_counts_is_declared() -> None:
    named = {event for path in ROUTER.rglob("*.py") for event in COUNTED.findall(path.read_text())}
    assert named == set(EVENTS)
