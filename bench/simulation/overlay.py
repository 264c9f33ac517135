"""Overlay of the simulated mesh: the connections of nodes, and the times at which a frame reaches each, without its bytes.

Connections form a random graph. Over the eager ones, frames are forwarded at once, as in gossipsub's mesh. Over the others, the
recent frames are only named once a second, and sent on request. A node forwards a frame once, to all eager neighbours except the
one that it came from. All copies are counted; the first one matters.
"""

import heapq
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

# As `registry.mesh.libp2p.host` configures gossipsub.
EAGER, EAGER_LOW, EAGER_HIGH = 6, 4, 8
NAMING_SECONDS = 1.0
NAMING_WINDOW = 3
NAMED_TO = 6

RESEND_SECONDS = 0.2
"""Least seconds, besides a round trip, after which TCP retransmits; Linux uses no less."""

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Weather:
    """Conditions for frames and questions on connections; seconds and probabilities.

    A connection's own delay is drawn once, around `delay`; each message then takes 0.8 to 1.2 times as long. A lost packet is
    retransmitted by TCP, so that the message arrives later. A dropped message, by a full queue or a broken stream, never
    arrives. `hop` is the time that a node takes to check a frame and forward it.
    """

    delay: float = 0.05
    loss: float = 0.0
    drop: float = 0.0
    hop: float = 0.0035


@dataclass(frozen=True, slots=True)
class Spread:
    """Spread of one frame: seconds until each node has it (`NEVER` for those that it does not reach), and copies sent."""

    after: list[float]
    copies: int


class Overlay:
    """Nodes by number, their connections, and which of these carry packets now."""

    def __init__(self, count: int, weather: Weather, rng: random.Random) -> None:
        self.weather = weather
        self.links: list[dict[int, float]] = [{} for _ in range(count)]
        self.eager: list[set[int]] = [set() for _ in range(count)]
        self.up = [True] * count
        self.side = [0] * count
        self.shape = 0
        self._ways: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        self._rng = rng

    # Connections.

    def carries(self, one: int, other: int) -> bool:
        """Return whether packets pass between two nodes."""
        return self.up[one] and self.up[other] and self.side[one] == self.side[other]

    def draw_delay(self) -> float:
        """Draw the delay of a new connection, seconds one way."""
        return self.weather.delay * self._rng.lognormvariate(-0.08, 0.4)

    def trip(self, one: int, other: int) -> float:
        """Draw the seconds of a message between two connected nodes, `NEVER` if it is lost."""
        base = self.links[one].get(other)
        dropped = self.weather.drop > 0.0 and self._rng.random() < self.weather.drop
        if base is None or dropped or not self.carries(one, other):
            return NEVER
        return base * (0.8 + 0.4 * self._rng.random()) + self._late(base)

    def _late(self, base: float) -> float:
        late, again = 0.0, RESEND_SECONDS + 2 * base
        while self.weather.loss > 0.0 and self._rng.random() < self.weather.loss:
            late, again = late + again, 2 * again
        return late

    def link(self, one: int, other: int) -> None:
        """Connect two nodes; the connection becomes eager if one of them has too few eager ones."""
        delay = self.draw_delay()
        self.links[one][other] = self.links[other][one] = delay
        self._graft(one, other, enough=EAGER)
        self._refresh(one, other)

    def unlink(self, one: int, other: int) -> None:
        """Remove a connection at both ends."""
        for a, b in ((one, other), (other, one)):
            self.links[a].pop(b, None)
            self.eager[a].discard(b)
        self._refresh(one, other)

    def mend(self) -> None:
        """Repair as gossipsub does once a second: a node with too few eager connections adds more."""
        for node, eager in enumerate(self.eager):
            if len(eager) >= EAGER_LOW or not self.up[node]:
                continue
            others = [other for other in self.links[node] if other not in eager]
            self._rng.shuffle(others)
            for other in others:
                if len(eager) < EAGER:
                    self._graft(node, other, enough=EAGER)
                    self._refresh(node, other)

    def set_up(self, node: int, *, up: bool) -> None:
        """Switch a node off or on; its connections do not notice yet."""
        self.up[node] = up
        self._refresh(node, *self.links[node])

    def divide(self, side_of: Callable[[int], int]) -> None:
        """Let packets pass only between nodes of the same side."""
        self.side = [side_of(node) for node in range(len(self.links))]
        self._refresh(*range(len(self.links)))

    # Frames.

    def spread(self, origin: int) -> Spread:
        """Compute a frame's spread through the present mesh; changes while it travels, under a second, are ignored."""
        after = [NEVER] * len(self.links)
        after[origin] = 0.0
        copies = self._flood(after, [(0.0, origin)])
        for _ in range(NAMING_WINDOW):
            missing = [
                node
                for node, reached_at in enumerate(after)
                if reached_at == NEVER and self.up[node] and self.side[node] == self.side[origin]
            ]
            fetched = self._ask_for(missing, after) if missing else []
            if not fetched:
                break
            copies += len(fetched) + self._flood(after, fetched)
        # The author sends its frame to all neighbours, every other node to all except the sender.
        return Spread(after, copies + 1)

    def named_to(self) -> float:
        """Return the average number of neighbours to which a node names its recent frames, once a second."""
        lazy = (
            min(NAMED_TO, len(links) - len(eager))
            for links, eager, up in zip(self.links, self.eager, self.up, strict=True)
            if up
        )
        return sum(lazy) / max(sum(self.up), 1)

    def _flood(self, after: list[float], begin: list[tuple[float, int]]) -> int:
        ways, eager, draw = self._ways, self.eager, self._rng.random
        loss, drop, hop = self.weather.loss, self.weather.drop, self.weather.hop
        pop, push = heapq.heappop, heapq.heappush
        heapq.heapify(begin)
        copies = 0
        while begin:
            now, node = pop(begin)
            if now > after[node]:
                continue
            copies += len(eager[node]) - 1
            for other, base in ways[node]:
                if after[other] > now:
                    drawn = draw()
                    arrives_at = now + hop + base * (0.8 + 0.4 * drawn)
                    if loss > 0.0:
                        arrives_at += self._late(base)
                    if drawn >= drop and arrives_at < after[other]:
                        after[other] = arrives_at
                        push(begin, (arrives_at, other))
        return copies

    def _ask_for(self, missing: Collection[int], after: list[float]) -> list[tuple[float, int]]:
        got: list[tuple[float, int]] = []
        for node in missing:
            best = NEVER
            for other, base in self.links[node].items():
                if after[other] == NEVER or other in self.eager[node]:
                    continue
                named = self._rng.random() < NAMED_TO / max(
                    NAMED_TO, len(self.links[other]) - len(self.eager[other])
                )
                arrives = self._rng.random() >= self.weather.drop * 3
                if named and arrives and self.carries(node, other):
                    wait = self._rng.random() * NAMING_SECONDS
                    best = min(best, after[other] + wait + 3 * (base + self.weather.hop))
            if best < NEVER:
                got.append((best, node))
        for arrived_at, node in got:
            after[node] = arrived_at
        return got

    def _graft(self, one: int, other: int, *, enough: int) -> None:
        few = min(len(self.eager[one]), len(self.eager[other])) < enough
        room = max(len(self.eager[one]), len(self.eager[other])) < EAGER_HIGH
        if few and room:
            self.eager[one].add(other)
            self.eager[other].add(one)

    def _refresh(self, *nodes: int) -> None:
        self.shape += 1
        for node in nodes:
            self._ways[node] = [
                (other, self.links[node][other])
                for other in sorted(self.eager[node])
                if self.carries(node, other)
            ]
            for other in self.eager[node]:
                self._set_way(other, node)

    def _set_way(self, one: int, other: int) -> None:
        ways = [way for way in self._ways[one] if way[0] != other]
        if self.carries(one, other):
            ways.append((other, self.links[one][other]))
        self._ways[one] = ways
