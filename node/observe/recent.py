"""Recent requests: those in flight, the last thousand that ended, and the failed attempts. In memory, without their content.

A request costs two entries and no call: the code that opens and concludes its account writes them here. Each process has its own.
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

MAX_REMEMBERED = 1_000
"""Ended requests that are remembered; also failed attempts."""

MAX_WORDS = 300
"""Characters that are kept of the reason why an attempt failed."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """Failed attempt of the request with an id. `at` is the Unix time of its end, `seconds` is its duration."""

    request: str
    at: float
    node: str
    model: str
    cid: str
    error: str
    why: str
    seconds: float
    circuit: str
    """State of the worker's or node's circuit afterwards: while it is `open`, no requests are sent there."""


class NoRoomCount(NamedTuple):
    """Number of times that there was no room for a model at a node."""

    model: str
    node: PeerId
    times: int


class RecentRequests:
    """Recent requests of one process of this node."""

    def __init__(self, wall: Clock, *, limit: int = MAX_REMEMBERED) -> None:
        """`wall` returns Unix time."""
        self._wall = wall
        self.under_way: dict[Account, None] = {}
        """Requests in flight, in the order of their arrival."""
        self.ended: deque[Account] = deque(maxlen=limit)
        """Ended requests, the newest last."""
        self.count = 0
        """Number of requests that have ended since the start."""
        self.failed: deque[FailedAttempt] = deque(maxlen=limit)
        """Failed attempts, the newest last."""
        self.refused: Counter[tuple[str, PeerId]] = Counter()
        """Refusals for lack of room, by model and node, until taken: attempts there, and requests that waited here."""

    def failed_attempt(self, outcome: "Outcome", error: WorkerError) -> None:
        """Note a failed attempt."""
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
        """Count a refusal for lack of room. The model's name may come from a caller, so it is cut."""
        pair = model[:MAX_NAME], node
        if pair in self.refused or len(self.refused) < MAX_REMEMBERED:
            self.refused[pair] += times

    def take_refused(self) -> tuple[NoRoomCount, ...]:
        """Return the refusals since the previous call."""
        taken, self.refused = self.refused, Counter()
        return tuple(NoRoomCount(*pair, times) for pair, times in taken.items())

    def since(self, count: int) -> list["Account"]:
        """Return the remembered requests that ended after the first `count`, the oldest first."""
        new = min(max(self.count - count, 0), len(self.ended))
        return [*islice(self.ended, len(self.ended) - new, None)]
