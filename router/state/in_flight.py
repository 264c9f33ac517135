"""Requests in flight at each replica, and for how long they have been there. No I/O, time is an argument."""

from collections.abc import Iterator, Mapping

from registry.records import PeerId, Service

MAX_REPLICAS = 4_096
"""Replicas that are remembered; beyond that those are forgotten at which no request is."""

ReplicaKey = tuple[PeerId, Service]


class Occupancy:
    """How many requests a replica has: `count` now, and the sum of the `seconds` that all of them were there.

    `noted` is how many losses `router.state.slow_start` had counted when it took note of the replica.
    """

    __slots__ = ("_since", "count", "noted", "seconds")

    def __init__(self) -> None:
        self.count, self.noted = 0, -1
        self.seconds = self._since = 0.0

    def change(self, by: int, now: float) -> None:
        """So many more are there from now on; `seconds` are those until now, since there was none."""
        count = self.count
        self.seconds = self.seconds + count * (now - self._since) if count else 0.0
        self._since = now
        self.count = count + by

    def seconds_until(self, now: float) -> float:
        """Return the sum until now; its growth over some time, divided by that, is how many were there on average."""
        return self.seconds + self.count * (now - self._since)


class Occupancies(dict[ReplicaKey, Occupancy]):
    """The occupancy of each replica that was asked. One that is not there yet is made for whoever changes it at once."""

    def __missing__(self, key: ReplicaKey) -> Occupancy:
        if len(self) >= MAX_REPLICAS:
            for idle in [key for key, one in self.items() if not one.count]:
                del self[idle]
        made = self[key] = Occupancy()
        return made


class InFlight(Mapping[ReplicaKey, int]):
    """How many requests are at each replica: 0 at one that is not listed."""

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
        """Return how many there are at all replicas together."""
        return sum(one.count for one in self.occupancies.values())
