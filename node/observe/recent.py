"""Recent requests: those under way, the last thousand that ended, and the attempts that failed. In memory; never what was said.

A request costs two entries and no call: whoever opens and concludes its account writes them here. Each process has its own.
"""

from collections import Counter, deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from node.auth.usage import MAX_NAME
from registry.clock import Clock
from registry.records import PeerId
from router.errors import WorkerBusy, WorkerError

if TYPE_CHECKING:
    from node.faces.access_log import Account
    from router.outcome import Outcome

MOST = 1_000
"""Requests that are remembered after their end, and attempts that failed."""

MAX_WORDS = 300
"""Characters that are kept of why an attempt failed."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that failed, of a request by its id; `at` is Unix time of its end, `seconds` is how long it took."""

    request: str
    at: float
    node: str
    model: str
    cid: str
    error: str
    why: str
    seconds: float
    circuit: str
    """How the circuit of the worker or node was after it: `open` says that nobody is sent there for a while."""


class NoRoomCount(NamedTuple):
    """How often there was no room for a model at a node."""

    model: str
    node: PeerId
    times: int


class Recent:
    """What one process of this node was asked lately."""

    def __init__(self, wall: Clock, *, most: int = MOST) -> None:
        """`wall` returns Unix time."""
        self._wall = wall
        self.under_way: dict[Account, None] = {}
        """Requests that have not ended, in the order in which they came."""
        self.ended: deque[Account] = deque(maxlen=most)
        """Those that have, the newest last."""
        self.count = 0
        """How many have ended since the start."""
        self.failed: deque[FailedAttempt] = deque(maxlen=most)
        """Attempts that failed, the newest last."""
        self.refused: Counter[tuple[str, PeerId]] = Counter()
        """What found no room, by model and node, until somebody takes it: attempts there, and requests that waited here."""

    def failed_attempt(self, outcome: "Outcome", error: WorkerError) -> None:
        """Note an attempt that failed."""
        candidate = outcome.candidate
        if isinstance(error, WorkerBusy):
            self.found_no_room(candidate.service.model, candidate.node)
        self.failed.append(
            FailedAttempt(
                outcome.request,
                self._wall(),
                candidate.node,
                candidate.service.model,
                candidate.service.cid,
                type(error).__name__,
                str(error)[:MAX_WORDS],
                outcome.seconds,
                outcome.circuit,
            )
        )

    def found_no_room(self, model: str, node: PeerId, times: int = 1) -> None:
        """Count what was refused; a caller may name the model."""
        pair = model[:MAX_NAME], node
        if pair in self.refused or len(self.refused) < MOST:
            self.refused[pair] += times

    def take_refused(self) -> tuple[NoRoomCount, ...]:
        """Return what was refused since this was asked last."""
        taken, self.refused = self.refused, Counter()
        return tuple(NoRoomCount(*pair, times) for pair, times in taken.items())

    def since(self, count: int) -> list["Account"]:
        """Return the requests that ended after the first `count`, the oldest first, as far as they are remembered."""
        new = min(max(self.count - count, 0), len(self.ended))
        return [*islice(self.ended, len(self.ended) - new, None)]
