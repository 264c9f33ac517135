"""Queue of requests for which every slot is taken: a bounded queue for each model, fair between callers. No I/O.

Fair queueing by start tags: each caller's requests are spaced on a virtual clock, and the smallest tag goes first, so a caller
with one request does not wait behind a hundred of another caller. A full queue displaces the newest request of the caller that
holds most places. Background requests come after all others, and lose their places to them.
"""

from collections import Counter
from dataclasses import dataclass

from registry.bounded import put_newest
from registry.records import Service, display_name
from router.errors import NoCapacity

MAX_CALLERS = 10_000
"""Callers whose last tag is remembered; the one that asked longest ago is evicted, and counts as new."""

MAX_MODELS = 4_096
"""Models whose usual service time is remembered; the least recently used one is evicted."""

LONGEST_RETRY = 60.0
"""Upper bound of the seconds that a caller is asked to stay away, however long the queue is."""

_WEIGHT = 0.2  # weight of the newest service time in the usual one


@dataclass(eq=False, slots=True)
class Ticket:
    """One waiting request, identified by this object. `accepts` are the workers that could answer it."""

    model: str
    caller: str
    accepts: frozenset[Service]
    tag: float
    background: bool = False


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A place in the queue, and the ticket that was displaced for it, if the queue was full."""

    ticket: Ticket
    displaced: Ticket | None = None


class Queues:
    """The requests that wait on this node. `places` is the maximum for each model."""

    def __init__(self, *, places: int) -> None:
        self._places = places
        self._waiting: dict[str, list[Ticket]] = {}
        self._virtual_time = 0.0
        self._last_tags: dict[str, float] = {}
        self._usual_seconds: dict[str, float] = {}

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
        """Take a place; raise `NoCapacity` if the queue is full and this caller may displace no other request."""
        waiting = self._waiting.get(model, [])
        displaced = None
        if len(waiting) >= self._places:
            displaced = _least_deserving(waiting, caller, background=background)
            if displaced is None:
                raise self.refusal(model, slots=slots)
            self.leave(displaced)
        tag = max(self._virtual_time, self._last_tags.get(caller, 0.0)) + 1.0
        put_newest(self._last_tags, caller, tag, limit=MAX_CALLERS)
        ticket = Ticket(model, caller, accepts, tag, background)
        self._waiting.setdefault(model, []).append(ticket)
        return WaitingRequest(ticket, displaced)

    def leave(self, ticket: Ticket) -> None:
        """Give up a place; do nothing if it is gone already."""
        waiting = self._waiting.get(ticket.model, [])
        if ticket in waiting:
            waiting.remove(ticket)
            if not waiting:
                del self._waiting[ticket.model]

    def pop_next(self, worker: Service, *, background: bool = True) -> Ticket | None:
        """Take the next ticket for a free slot of a worker out of the queue, and return it; `None` if none waits for it.

        `background` says whether the slot may go to a background request.
        """
        if not self._waiting:
            return None
        eligible = [t for waiting in self._waiting.values() for t in waiting if worker in t.accepts]
        chosen = min(eligible, key=lambda ticket: (ticket.background, ticket.tag), default=None)
        if chosen is None or (chosen.background and not background):
            return None
        self._virtual_time = max(self._virtual_time, chosen.tag)
        self.leave(chosen)
        return chosen

    def record_slot_time(self, model: str, seconds: float) -> None:
        """Learn how long an answer of a model took, from taking its slot to freeing it."""
        usual = self._usual_seconds.get(model, seconds)
        usual += _WEIGHT * (seconds - usual)
        put_newest(self._usual_seconds, model, usual, limit=MAX_MODELS)

    def expected_wait(self, model: str, *, slots: int, background: bool = True) -> float:
        """Return the expected seconds until one more request gets a slot.

        `background` says whether waiting background requests are ahead of it.
        """
        ahead = sum(background or not ticket.background for ticket in self._waiting.get(model, ()))
        return self._usual_seconds.get(model, 1.0) * (ahead + 1) / max(1, slots)

    def refusal(self, model: str, *, slots: int) -> NoCapacity:
        """Return the error for a full model, with the seconds after which a slot is to be expected."""
        ahead = len(self._waiting.get(model, ()))
        expected = self.expected_wait(model, slots=slots)
        return NoCapacity(
            f"all workers of {display_name(model)} are full, and {ahead} requests wait",
            retry_after=min(max(1.0, expected), LONGEST_RETRY),
        )


def _least_deserving(waiting: list[Ticket], caller: str, *, background: bool) -> Ticket | None:
    last = next((ticket for ticket in reversed(waiting) if ticket.background), None)
    if background or last is not None:
        return None if background else last
    counts = Counter(ticket.caller for ticket in waiting)
    hog, most = max(counts.items(), key=lambda item: item[1], default=("", 0))
    # A difference of one place is not enough: the two callers would displace each other for ever.
    if most <= counts[caller] + 1:
        return None
    return next(ticket for ticket in reversed(waiting) if ticket.caller == hog)
