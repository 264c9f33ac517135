"""Waits of requests, depending on what nodes know of each other's load: a simulation with the code that decides in a node.

    python -m bench.hearsay [--seconds 1000] [--seeds 3]

Every node takes requests and serves a replica with some slots. Requests arrive at random, at 80 % of the total capacity. `oracle`
sends each to the shortest queue; `own` knows the requests that it sent itself (power of two choices); `told` also receives loads,
by gossip, as rare as in a mesh of that size, and with answers. A wait is the time until a slot is free.
"""

import argparse
import heapq
import random
import statistics
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

from registry.members.load import Reporter
from registry.members.membership import FEW
from registry.records import Load, PeerId, Service
from router.policies.p2c import FewChoices
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.state.remote_load import Report, Reports

BUSY = 0.8
POLL = 0.25  # seconds between two readings of the meter by the registry
WAY = 0.05  # seconds that a load report takes through the mesh
FIRST_BYTE = 0.02  # seconds to the first byte, once a slot is free
REPLICA = Service("p", "m")
REQUEST = Request("r", Kind.CHAT, "m", b"{}", "application/json")
POLICY = FewChoices()


@dataclass(frozen=True, slots=True)
class Shape:
    """Number of nodes, slots of each, and mean seconds of an answer, which are exponentially distributed."""

    nodes: int
    slots: int
    mean: float


SHAPES = (Shape(10, 1, 2.0), Shape(10, 4, 3.0), Shape(10, 8, 20.0), Shape(25, 4, 3.0))


class Simulation:
    """Simulation of one shape over some time, with one kind of knowledge for the choice."""

    def __init__(self, shape: Shape, knowledge: str, seed: int) -> None:
        self.waits: list[float] = []
        self._shape = shape
        self._knowledge = knowledge
        self._random = random.Random(seed)
        self._peers = [PeerId(f"node{n}") for n in range(shape.nodes)]
        self._at = Counter[int]()
        self._sent = Counter[tuple[int, int]]()
        self._waiting: list[deque[tuple[int, float]]] = [deque() for _ in self._peers]
        self._reports = [Reports() for _ in self._peers]
        self._reporters = [Reporter() for _ in self._peers]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0

    def run(self, seconds: float) -> None:
        """Run for so many virtual seconds."""
        self._after(0.0, self._arrive)
        if self._knowledge == "told":
            for node in range(self._shape.nodes):
                self._after(self._random.random() * POLL, partial(self._poll, node))
        while self._events[0][0] < seconds:
            self._now, _, happen = heapq.heappop(self._events)
            happen()

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._order), happen))

    def _arrive(self) -> None:
        shape = self._shape
        rate = BUSY * shape.nodes * shape.slots / shape.mean
        self._after(self._random.expovariate(rate), self._arrive)
        entry = self._random.randrange(shape.nodes)
        node = self._choose(entry)
        self._at[node] += 1
        self._sent[entry, node] += 1
        if self._at[node] <= shape.slots:
            self._begin(node, entry, self._now)
        else:
            self._waiting[node].append((entry, self._now))

    def _choose(self, entry: int) -> int:
        if self._knowledge == "oracle":
            return min(range(self._shape.nodes), key=lambda n: (self._at[n], self._random.random()))
        candidates = [self._candidate(entry, node) for node in range(self._shape.nodes)]
        return self._peers.index(POLICY.order(REQUEST, candidates, self._random.random)[0].node)

    def _candidate(self, entry: int, node: int) -> Candidate:
        peer = self._peers[node]
        if node == entry:
            return Candidate(peer, REPLICA, in_flight=self._at[node])
        report = self._reports[entry].newest(peer, REPLICA, self._now)
        return Candidate(peer, REPLICA, in_flight=self._sent[entry, node], report=report)

    def _begin(self, node: int, entry: int, since: float) -> None:
        self.waits.append(self._now - since)
        if self._knowledge == "told" and node != entry:
            self._after(FIRST_BYTE, partial(self._tell, node, entry, self._at[node]))
        self._after(self._random.expovariate(1 / self._shape.mean), partial(self._end, node, entry))

    def _end(self, node: int, entry: int) -> None:
        self._at[node] -= 1
        self._sent[entry, node] -= 1
        if self._waiting[node]:
            self._begin(node, *self._waiting[node].popleft())

    def _poll(self, node: int) -> None:
        self._after(POLL, partial(self._poll, node))
        busy = {REPLICA: Load(self._at[node])} if self._at[node] else {}
        rarity = max(self._shape.nodes / FEW, 1.0)
        for load in self._reporters[node].rows_to_report(busy, self._now, rarity=rarity).values():
            for entry in range(self._shape.nodes):
                self._after(WAY, partial(self._tell, node, entry, load.in_flight))

    def _tell(self, node: int, entry: int, in_flight: int) -> None:
        if node != entry:
            report = Report(Load(in_flight), self._sent[entry, node], self._now)
            self._reports[entry].record(self._peers[node], REPLICA, report)


def waits(shape: Shape, knowledge: str, *, seconds: float, seeds: int) -> tuple[float, float]:
    """Return the mean and the 99th percentile of the waits, each as the mean over some seeds."""
    means, tails = [], []
    for seed in range(seeds):
        simulation = Simulation(shape, knowledge, seed)
        simulation.run(seconds)
        ordered = sorted(simulation.waits)
        means.append(statistics.fmean(ordered))
        tails.append(ordered[int(0.99 * len(ordered))])
    return statistics.fmean(means), statistics.fmean(tails)


def main() -> None:
    """Print a table of waits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1000.0)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print("| nodes | slots | mean answer | oracle | told | own |\n|---|---|---|---|---|---|")
    for shape in SHAPES:
        results = (waits(shape, k, **vars(arguments)) for k in ("oracle", "told", "own"))
        cells = " | ".join(f"{mean:.2f} / {tail:.1f} s" for mean, tail in results)
        print(f"| {shape.nodes} | {shape.slots} | {shape.mean:g} s | {cells} |", flush=True)


if __name__ == "__main__":
    main()
