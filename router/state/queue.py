"""Queue of requests for which every slot is taken: a bounded queue for each model, fair between callers. No I/O.

Fair queueing by start tags: each caller's requests are spaced on a virtual clock, the smallest tag goes first, so whoever asks
for one answer does not stand behind a hundred of somebody else. A full queue gives up the newest place of whoever holds most.
Background requests come after all others, and lose their places to them.
"""

from collections import Counter
from dataclasses import dataclass

from registry.records import Service
from router.errors import NoCapacity

MAX_CALLERS = 10_000
"""Callers whose place in the order is remembered."""

MAX_MODELS = 4_096
"""Models whose usual time is remembered; the one that was used longest ago makes room."""

LONGEST_RETRY = 60.0
"""Seconds that a caller is asked to stay away at most, whatever the queue's length says."""

_WEIGHT = 0.2  # of the newest service time in the usual one


@dataclass(eq=False, slots=True)
class Ticket:
    """One request that waits. `accepts` are the workers that could answer it; whoever holds it is told through it."""

    model: str
    caller: str
    accepts: frozenset[Service]
    tag: float
    background: bool = False


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A place in the queue, and the ticket that lost its own for it, if the queue was full."""

    ticket: Ticket
    displaced: Ticket | None = None


class Queues:
    """The requests that wait on this node. `places` is the bound for each model."""

    def __init__(self, *, places: int) -> None:
        self._places = places
        self._waiting: dict[str, list[Ticket]] = {}
        self._clock = 0.0
        self._last: dict[str, float] = {}
        self._usual: dict[str, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def join(
        self,
        model: str,
        caller: str,
        accepts: frozenset[Service],
        *,
        slots: int,
        background: bool = False,
    ) -> WaitingRequest:
        """Take a place; raise `NoCapacity` when there is none that this caller has a better claim to than another."""
        waiting = self._waiting.get(model, [])
        displaced = None
        if len(waiting) >= self._places:
            displaced = _least_deserving(waiting, caller, background=background)
            if displaced is None:
                raise self.refusal(model, slots=slots)
            self.leave(displaced)
        tag = max(self._clock, self._last.get(caller, 0.0)) + 1.0
        self._remember(caller, tag)
        ticket = Ticket(model, caller, accepts, tag, background)
        self._waiting.setdefault(model, []).append(ticket)
        return WaitingRequest(ticket, displaced)

    def leave(self, ticket: Ticket) -> None:
        """Give a place up; harmless when it is gone already."""
        waiting = self._waiting.get(ticket.model, [])
        if ticket in waiting:
            waiting.remove(ticket)
            if not waiting:
                del self._waiting[ticket.model]

    def freed(self, worker: Service, *, background: bool = True) -> Ticket | None:
        """A slot of a worker is free: return whose turn it is, nobody's if nobody waits for it.

        `background` says whether it may be a background request's.
        """
        if not self._waiting:
            return None
        able = [t for waiting in self._waiting.values() for t in waiting if worker in t.accepts]
        turn = min(able, key=lambda ticket: (ticket.background, ticket.tag), default=None)
        if turn is None or (turn.background and not background):
            return None
        self._clock = max(self._clock, turn.tag)
        self.leave(turn)
        return turn

    def took(self, model: str, seconds: float) -> None:
        """Learn how long an answer of a model took, from its slot's taking to its freeing."""
        usual = self._usual.pop(model, None)
        if usual is None:
            usual = seconds
            if len(self._usual) >= MAX_MODELS:
                del self._usual[next(iter(self._usual))]
        # Used last stands last.
        self._usual[model] = usual + _WEIGHT * (seconds - usual)

    def expected_wait(self, model: str, *, slots: int, background: bool = True) -> float:
        """Return the seconds after which a place is to be expected for one more, whom `background` ones are ahead of or not."""
        ahead = sum(background or not ticket.background for ticket in self._waiting.get(model, ()))
        return self._usual.get(model, 1.0) * (ahead + 1) / max(1, slots)

    def refusal(self, model: str, *, slots: int) -> NoCapacity:
        """Say that a model is full, and after how many seconds a place is to be expected."""
        ahead = len(self._waiting.get(model, ()))
        expected = self.expected_wait(model, slots=slots)
        return NoCapacity(
            f"all workers of {model!r} are full, and {ahead} requests wait",
            retry_after=min(max(1.0, expected), LONGEST_RETRY),
        )

    def _remember(self, caller: str, tag: float) -> None:
        # Spoke last stands last: whoever asked longest ago makes room, and counts as new.
        self._last.pop(caller, None)
        if len(self._last) >= MAX_CALLERS:
            del self._last[next(iter(self._last))]
        self._last[caller] = tag


def _least_deserving(waiting: list[Ticket], caller: str, *, background: bool) -> Ticket | None:
    last = next((ticket for ticket in reversed(waiting) if ticket.background), None)
    if background or last is not None:
        return None if background else last
    held = Counter(ticket.caller for ticket in waiting)
    hog, most = max(held.items(), key=lambda item: item[1], default=("", 0))
    # One place of difference is none: they would displace each other for ever.
    if most <= held[caller] + 1:
        return None
    return next(ticket for ticket in reversed(waiting) if ticket.caller == hog)
