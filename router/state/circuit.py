"""Circuit breakers of addresses: a circuit for each, moved by what requests met there; time is an argument.

Failures in a row open a circuit: then nobody is sent there for a while, and one request at a time tries again, ever more
rarely. What a caller did wrong, and a worker that is full, say nothing bad about health.

Retry-After of workers, and what is left of it. No I/O, time is an argument.

Who says `Retry-After` knows best when it may be of use again; asking sooner costs it what it has too little of. That holds also
where nobody else serves the model: then the caller is told how long to wait.
"""

from dataclasses import dataclass
from enum import StrEnum

from registry.clock import Chance

LONGEST = 60.0
"""Seconds that a worker is left alone at most, whatever it said; then a request finds out whether it still says so."""

MAX_WAITING_ADDRESSES = 4_096
"""Workers that are remembered; the one that spoke longest ago makes room, and is asked again sooner than it wished."""


class RetryAfter:
    """What workers said, by address."""

    def __init__(self) -> None:
        self.told_by: dict[str, float] = {}
        """Until when each address wants to be left alone."""

    def told(self, address: str, seconds: float, now: float) -> None:
        """Take in that a worker wants to be left alone for so many seconds; its newest word counts."""
        self.told_by.pop(address, None)
        if len(self.told_by) >= MAX_WAITING_ADDRESSES:
            del self.told_by[next(iter(self.told_by))]
        self.told_by[address] = now + min(seconds, LONGEST)

    def left(self, address: str, now: float) -> float:
        """Return for how many seconds a worker is still to be left alone, 0 for one that may be asked."""
        left = self.told_by.get(address, now) - now
        if left <= 0:
            self.told_by.pop(address, None)
            return 0.0
        return left


TRIP = 3
"""Failures in a row that open a circuit."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 8.0
"""Seconds that an open circuit keeps requests away: doubled by each trial that fails, up to this."""

MAX_ADDRESSES = 20_000
"""Circuits remembered; beyond that the one that was used longest ago is forgotten, and counts as closed."""


class Circuit(StrEnum):
    """Whether requests go to an address."""

    CLOSED = "closed"
    OPEN = "open"
    TRYING = "trying"


class Sign(StrEnum):
    """What a request can show about an address."""

    BEGUN = "begun"
    """Its first byte came. An address whose answers begin and then break is no good either, so failures still count."""
    ANSWERED = "answered"
    FAILED = "failed"
    NOTHING = "nothing"


TABLE: dict[Circuit, dict[Sign, Circuit]] = {
    # A failure opens a closed circuit only when it is the last of `TRIP` in a row.
    Circuit.CLOSED: {Sign.FAILED: Circuit.OPEN},
    # Of a request that was under way when it opened.
    Circuit.OPEN: {Sign.BEGUN: Circuit.CLOSED, Sign.ANSWERED: Circuit.CLOSED},
    # A caller who left before anything was seen leaves the trial to the next.
    Circuit.TRYING: {
        Sign.BEGUN: Circuit.CLOSED,
        Sign.ANSWERED: Circuit.CLOSED,
        Sign.FAILED: Circuit.OPEN,
        Sign.NOTHING: Circuit.OPEN,
    },
}
"""What each sign does to a circuit; what is not listed changes nothing."""


@dataclass(slots=True)
class _Address:
    circuit: Circuit = Circuit.CLOSED
    failures: int = 0
    pause: float = FIRST_PAUSE
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Condition:
    """An address as people see it: its circuit, seconds until it is tried again, failures in a row."""

    circuit: Circuit
    retry_in: float
    failures: int


class Health:
    """The circuits of all addresses that failed. `jitter` returns a float in [0, 1)."""

    def __init__(self, jitter: Chance) -> None:
        self._jitter = jitter
        self.failing: dict[str, _Address] = {}
        """Addresses that failed since they last answered; all others are well."""

    def began(self, address: str, now: float) -> None:
        """A request goes to an address; it is the trial when the circuit's pause is over."""
        one = self.failing.get(address)
        if one is not None and one.circuit is Circuit.OPEN and now >= one.until:
            one.circuit = Circuit.TRYING

    def show(self, address: str, sign: Sign, now: float) -> None:
        """Take in what a request has shown."""
        one = self.failing.get(address)
        if one is None:
            if sign is not Sign.FAILED:
                return
            one = self._remember(address)
        if sign is Sign.FAILED:
            one.failures += 1
            if one.circuit is Circuit.CLOSED and one.failures < TRIP:
                return
        if sign is Sign.ANSWERED:
            # Nothing is remembered of the well.
            del self.failing[address]
            return
        after = TABLE[one.circuit].get(sign, one.circuit)
        if after is Circuit.OPEN and after is not one.circuit:
            self._open(one, sign, now)
        else:
            one.circuit = after

    def admits(self, address: str, now: float) -> bool:
        """Say whether a request may go to an address: its circuit is closed, or this one may be the trial."""
        one = self.failing.get(address)
        if one is None or one.circuit is Circuit.CLOSED:
            return True
        return one.circuit is Circuit.OPEN and now >= one.until

    def condition(self, address: str, now: float) -> Condition:
        """Describe an address for people."""
        one = self.failing.get(address, _Address())
        left = one.until - now if one.circuit is Circuit.OPEN else 0.0
        return Condition(one.circuit, max(0.0, left), one.failures)

    def _open(self, one: _Address, sign: Sign, now: float) -> None:
        failed = sign is Sign.FAILED
        if failed and one.circuit is Circuit.TRYING:
            one.pause = min(2 * one.pause, LONGEST_PAUSE)
        # Between 0.75 and 1.25 of the pause, so that nodes do not all try at the same moment.
        one.until = now + (one.pause * (0.75 + 0.5 * self._jitter()) if failed else 0.0)
        one.circuit = Circuit.OPEN

    def _remember(self, address: str) -> _Address:
        if len(self.failing) >= MAX_ADDRESSES:
            del self.failing[next(iter(self.failing))]
        one = self.failing[address] = _Address()
        return one
