"""How much, in which unit, of how many? What scenarios return, and how it is counted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.simulation.world import ASKING, ENVELOPE, MESSAGE_ID, PACKET, World


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing: what, how much, in which unit, of how many."""

    scenario: str
    what: str
    value: float
    unit: str
    of: str = ""


def traffic(world: World, name: str, seconds: float) -> list[Figure]:
    """Say what a node sent in some seconds, by kind, and with all that is around it."""
    counters, nodes = world.counters, world.plan.nodes
    full = len(world.full())
    per_node = {
        "heartbeats": counters["beat_bytes"] / nodes,
        "doubts": counters["doubt_bytes"] / nodes,
        "records": counters["record_bytes"] / nodes,
        "probes and comparisons": counters["sync_bytes"] / full,
    }
    rate = counters["messages"] / seconds
    naming = world.overlay.named_to() * 3 * rate * MESSAGE_ID
    around = (
        counters["copies"] / nodes * (ENVELOPE + PACKET) + counters["questions"] / full * ASKING
    )
    # Each end of a connection pings the other, and answers it.
    links = mean([float(len(links)) for links in world.overlay.links])
    pings = 2 * links / world.plan.mesh.ping * PACKET
    sent = sum(per_node.values())
    return [
        Figure(name, "messages that a node takes in", rate, "per s"),
        *(Figure(name, f"sent: {what}", size / seconds, "B/s") for what, size in per_node.items()),
        Figure(name, "sent: frames, questions and answers", sent / seconds, "B/s"),
        Figure(name, "sent: pings", pings, "B/s"),
        Figure(name, "sent: everything", (sent + around) / seconds + naming + pings, "B/s"),
    ]


def mean(values: Sequence[float]) -> float:
    """Return the mean; not a number when there is nothing."""
    return sum(values) / len(values) if values else math.nan


def at_share(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of all lies."""
    ranked = sorted(values)
    return ranked[min(int(share * len(ranked)), len(ranked) - 1)] if ranked else math.nan


def percentiles(name: str, what: str, values: Sequence[float]) -> list[Figure]:
    """Say how long it took half of all, 99 of a hundred, and the last."""
    of = f"{len(values):,}"
    return [
        Figure(name, f"{what}, {label}", at_share(values, share), "s", of)
        for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    ]
