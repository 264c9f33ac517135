"""Requests in flight at each replica, and the load of this machine's workers. No I/O, time is an argument.

Tokens are not counted, since that would mean parsing every event. Events of event streams are counted instead: workers send
one for each token, or for a few.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from math import inf

from registry.records import Load, PeerId, Service
from router.workers import Workers

MAX_REPLICAS = 4_096
"""Replicas that are remembered; beyond that those without requests are forgotten."""

ReplicaKey = tuple[PeerId, Service]


class Occupancy:
    """Requests in flight at a replica: their `count` now, and the sum of the `seconds` that each of them was there.

    `noted` is how many losses `router.state.slow_start` had counted when it noted the replica.
    """

    __slots__ = ("_since", "count", "noted", "seconds")

    def __init__(self) -> None:
        self.count, self.noted = 0, -1
        self.seconds = self._since = 0.0

    def change(self, by: int, now: float) -> None:
        """Add `by` to the count from now on; `seconds` becomes the sum until now since the replica was last idle."""
        count = self.count
        self.seconds = self.seconds + count * (now - self._since) if count else 0.0
        self._since = now
        self.count = count + by

    def seconds_until(self, now: float) -> float:
        """Return the sum until now; its growth over a period, divided by the period, is the average count."""
        return self.seconds + self.count * (now - self._since)


class Occupancies(dict[ReplicaKey, Occupancy]):
    """The occupancy of each replica that was asked. A missing one is created; the reader must change it at once."""

    def __missing__(self, key: ReplicaKey) -> Occupancy:
        if len(self) >= MAX_REPLICAS:
            for idle in [key for key, entry in self.items() if not entry.count]:
                del self[idle]
        occupancy = self[key] = Occupancy()
        return occupancy


class InFlight(Mapping[ReplicaKey, int]):
    """Number of requests in flight at each replica: 0 at one that is not listed."""

    def __init__(self) -> None:
        self.occupancies = Occupancies()

    def __getitem__(self, key: ReplicaKey) -> int:
        occupancy = self.occupancies.get(key)
        return occupancy.count if occupancy else 0

    def __contains__(self, key: object) -> bool:
        return any(key == other for other in self)

    def __iter__(self) -> Iterator[ReplicaKey]:
        return (key for key, occupancy in self.occupancies.items() if occupancy.count)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def total(self) -> int:
        """Return the number of requests in flight at all replicas together."""
        return sum(occupancy.count for occupancy in self.occupancies.values())


WINDOW = 4.0
"""Seconds over which the rate is averaged."""

_GRAIN = 0.2  # minimum seconds between two marks, however often the rate is sampled
_EVENT_END = b"\n\n"
_EVENT, _NEXT_EVENT = b"data:", b"\ndata:"  # unlike ends, these are not in comments


class Tally:
    """Counters of one worker: the events that it has streamed so far, and the seconds to its latest first byte.

    `last_foreground_at` is when a request that is not a background request last got a slot or a first byte of it.
    """

    __slots__ = ("_marks", "events", "first_byte_seconds", "last_foreground_at", "rate")

    def __init__(self) -> None:
        self.events = 0
        self.last_foreground_at = -inf
        self.first_byte_seconds: float | None = None
        self.rate = 0.0
        self._marks: deque[tuple[float, int]] = deque()

    def count_chunks(self, chunks: list[bytes]) -> int:
        """Count the events that end in chunks, at least one in each, as ends may be written differently; return how many."""
        events = 0
        for chunk in chunks:
            # A chunk is nearly always one event, that ends with it: finding its end takes half as long as counting.
            first = chunk.find(b"\n")
            events += 1 if first >= len(chunk) - 2 else chunk.count(_EVENT_END) or 1
        self.events += events
        return events

    def count_first_bytes(self, chunk: bytes) -> int:
        """Count the events of a stream's first bytes but the first, which names only the role; return how many."""
        events = (
            chunk.count(_NEXT_EVENT) if chunk.startswith(_EVENT) else chunk.count(_NEXT_EVENT) - 1
        )
        events = max(0, events)
        self.events += events
        return events

    def sample(self, now: float) -> None:
        """Update `rate`, the average since the oldest mark of the window."""
        marks = self._marks
        if marks and now - marks[-1][0] < _GRAIN:
            return
        while marks and now - marks[0][0] > WINDOW:
            marks.popleft()
        if marks:
            since, events = marks[0]
            self.rate = (self.events - events) / (now - since)
        else:
            self.rate = 0.0
        marks.append((now, self.events))


class LocalLoads:
    """Tallies of the workers that were asked; those of workers that are gone are dropped when loads are taken."""

    def __init__(self) -> None:
        self.tallies: defaultdict[Service, Tally] = defaultdict(Tally)

    def load(self, service: Service, *, in_flight: int, queued: int, slots: int) -> Load:
        """Return the load of one worker."""
        tally = self.tallies.get(service)
        if tally is None:
            return Load(in_flight, queued, slots=slots)
        rate = tally.rate if in_flight else 0.0
        return Load(in_flight, queued, slots=slots, rate=rate, first=tally.first_byte_seconds)

    def loads(
        self,
        workers: Workers,
        in_flight: Mapping[Service, int],
        queued: Mapping[Service, int],
        now: float,
    ) -> dict[Service, Load]:
        """Return the loads of the workers that have requests, and update their rates."""
        slots = {worker.service: worker.capacity for worker in workers}
        if len(self.tallies) > len(slots):
            for stale in [s for s in self.tallies if s not in slots]:
                del self.tallies[stale]
        busy = {service: count for service, count in in_flight.items() if service in slots}
        for service in busy:
            self.tallies[service].sample(now)
        return {
            service: self.load(
                service, in_flight=count, queued=queued.get(service, 0), slots=slots[service]
            )
            for service, count in busy.items()
        }
