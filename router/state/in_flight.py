"""Requests in flight at each replica, and the time they have spent there. No I/O, time is an argument."""

from collections.abc import Iterator, Mapping

from registry.records import PeerId, Service

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
            for idle in [key for key, one in self.items() if not one.count]:
                del self[idle]
        made = self[key] = Occupancy()
        return made


class InFlight(Mapping[ReplicaKey, int]):
    """Number of requests in flight at each replica: 0 at one that is not listed."""

    def __init__(self) -> None:
        self.occupancies = Occupancies()

    def __getitem__(self, key: ReplicaKey) -> int:
        one = self.occupancies.get(key)
        return one.count if one else 0

    def __contains__(self, key: object) -> bool:
        return any(key == there for there in self)

    def __iter__(self) -> Iterator[ReplicaKey]:
        return (key for key, one in self.occupancies.items() if one.count)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def total(self) -> int:
        """Return the number of requests in flight at all replicas together."""
        return sum(one.count for one in self.occupancies.values())
