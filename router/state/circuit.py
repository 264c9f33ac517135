"""Circuit breakers of addresses, moved by the results of requests, and `Retry-After` of workers. No I/O, time is an argument.

Consecutive failures open the circuit of an address: no request is sent there for a while, then one request at a time tries
again, less and less often. A caller's mistake, or a worker that is full, says nothing bad about health.

A worker that sends `Retry-After` knows best when it can serve again; asking it sooner costs it capacity that it lacks. It is not
asked even if no other worker serves the model: then the caller gets the time to wait.
"""

from dataclasses import dataclass
from enum import StrEnum

from registry.bounded import put_newest
from registry.clock import RandomSource

LONGEST_RETRY_AFTER = 60.0
"""Upper bound of the seconds that a worker is left alone, whatever it asked for; then a request asks it again."""

MAX_WAITING_ADDRESSES = 4_096
"""Workers that are remembered; the one that spoke longest ago is evicted, and is asked again sooner than it wished."""


class RetryAfter:
    """Pauses that workers asked for, by address."""

    def __init__(self) -> None:
        self.paused_until: dict[str, float] = {}
        """The time until which each address wants to be left alone."""

    def record(self, address: str, seconds: float, now: float) -> None:
        """Note that a worker wants to be left alone for so many seconds; its newest statement counts."""
        until = now + min(seconds, LONGEST_RETRY_AFTER)
        put_newest(self.paused_until, address, until, limit=MAX_WAITING_ADDRESSES)

    def seconds_left(self, address: str, now: float) -> float:
        """Return the seconds for which a worker is still to be left alone, 0 if it may be asked."""
        seconds = self.paused_until.get(address, now) - now
        if seconds <= 0:
            self.paused_until.pop(address, None)
            return 0.0
        return seconds


TRIP = 3
"""Failures in a row that open a circuit."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 8.0
"""Seconds for which an open circuit keeps requests away: doubled by each failed trial, up to `LONGEST_PAUSE`."""

MAX_ADDRESSES = 20_000
"""Circuits that are remembered; beyond that the one added first is evicted, and counts as closed."""


class Circuit(StrEnum):
    """Whether requests go to an address."""

    CLOSED = "closed"
    OPEN = "open"
    TRYING = "trying"


class Sign(StrEnum):
    """What a request shows about an address."""

    BEGUN = "begun"
    """The first byte came. Failures still count: an address whose answers begin and then break is no good either."""
    ANSWERED = "answered"
    FAILED = "failed"
    NOTHING = "nothing"


TABLE: dict[Circuit, dict[Sign, Circuit]] = {
    # A failure opens a closed circuit only if it is the last of `TRIP` in a row.
    Circuit.CLOSED: {Sign.FAILED: Circuit.OPEN},
    # These come from a request that was in flight when the circuit opened.
    Circuit.OPEN: {Sign.BEGUN: Circuit.CLOSED, Sign.ANSWERED: Circuit.CLOSED},
    # If the caller left before anything was seen, the trial is left to the next request.
    Circuit.TRYING: {
        Sign.BEGUN: Circuit.CLOSED,
        Sign.ANSWERED: Circuit.CLOSED,
        Sign.FAILED: Circuit.OPEN,
        Sign.NOTHING: Circuit.OPEN,
    },
}
"""Transitions of a circuit by sign; a sign that is not listed changes nothing."""


@dataclass(slots=True)
class _Address:
    circuit: Circuit = Circuit.CLOSED
    failures: int = 0
    pause: float = FIRST_PAUSE
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of an address, for people: its circuit, seconds until it is tried again, consecutive failures."""

    circuit: Circuit
    retry_in: float
    failures: int


class CircuitBreakers:
    """The circuits of all addresses that failed. `jitter` returns a float in [0, 1)."""

    def __init__(self, jitter: RandomSource) -> None:
        self._jitter = jitter
        self.failing: dict[str, _Address] = {}
        """Addresses that failed since they last answered; all others are healthy."""

    def record_request(self, address: str, now: float) -> None:
        """Note that a request goes to an address; it is the trial if the pause of the open circuit is over."""
        entry = self.failing.get(address)
        if entry is not None and entry.circuit is Circuit.OPEN and now >= entry.until:
            entry.circuit = Circuit.TRYING

    def record_sign(self, address: str, sign: Sign, now: float) -> None:
        """Take in what a request has shown about an address."""
        entry = self.failing.get(address)
        if entry is None:
            if sign is not Sign.FAILED:
                return
            entry = _Address()
            put_newest(self.failing, address, entry, limit=MAX_ADDRESSES)
        if sign is Sign.FAILED:
            entry.failures += 1
            if entry.circuit is Circuit.CLOSED and entry.failures < TRIP:
                return
        if sign is Sign.ANSWERED:
            # Healthy addresses are not remembered.
            del self.failing[address]
            return
        after = TABLE[entry.circuit].get(sign, entry.circuit)
        if after is Circuit.OPEN and after is not entry.circuit:
            self._open(entry, sign, now)
        else:
            entry.circuit = after

    def admits(self, address: str, now: float) -> bool:
        """Return whether a request may go to an address: its circuit is closed, or the request may be the trial."""
        entry = self.failing.get(address)
        if entry is None or entry.circuit is Circuit.CLOSED:
            return True
        return entry.circuit is Circuit.OPEN and now >= entry.until

    def condition(self, address: str, now: float) -> Condition:
        """Describe an address for people."""
        entry = self.failing.get(address, _Address())
        seconds = entry.until - now if entry.circuit is Circuit.OPEN else 0.0
        return Condition(entry.circuit, max(0.0, seconds), entry.failures)

    def _open(self, entry: _Address, sign: Sign, now: float) -> None:
        failed = sign is Sign.FAILED
        if failed and entry.circuit is Circuit.TRYING:
            entry.pause = min(2 * entry.pause, LONGEST_PAUSE)
        # With jitter, 0.75 to 1.25 of the pause, so that nodes do not all try at the same moment.
        entry.until = now + (entry.pause * (0.75 + 0.5 * self._jitter()) if failed else 0.0)
        entry.circuit = Circuit.OPEN
