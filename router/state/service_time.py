"""Service time of replicas: how long an answer takes once it has a slot, learnt from answers. No I/O, no clock.

An answer takes some seconds whatever is asked, more for each kilobyte of the request and for each token of the answer; its first
byte takes what is asked for alone. Beside others both take longer, by `concurrency ** sharing`, where 0 is a machine with slots
of their own and 1 one that shares a processor.
The node of a worker learns this from all requests that pass it, and says it in the head of each answer to another node.
"""

import math
import re
from collections import deque
from dataclasses import dataclass

from registry.records import Service
from router.requests import Kind
from router.state.remote_load import NewestOfNodes

MEMORY = 32
"""Answers after which an older one counts a third."""

JUDGED = 5
"""Answers whose median shows that a machine has become quicker or slower: three in a row are no accident."""

UNKNOWN_SHARING = 0.5
"""What is thought of a machine without known slots until its answers show how it shares."""

PAUSE = 0.01
"""Seconds between two answers of one worker that are looked at: who answers more often than that costs nothing more."""

MAX_OWN = 4_096
"""Workers of this machine and kinds of request that are remembered; the one that was asked first makes room."""

_SHORTEST = 1e-4  # seconds; what took less took this
_OUTLIER = 4.0  # an answer counts as at most so many times what was expected
_MOST_OFF = math.log(_OUTLIER)
_CHANGE = math.log(1.5)
_KEPT = 1 - 1 / MEMORY
_SHARING_KEPT = 1 - 1 / (4 * MEMORY)  # a machine seldom begins to share
_SWEEPS = 3
_LARGEST = 1e6
_MOST_COUNTED = 1_000_000

_FIGURES = ("fixed", "kilobyte", "token", "tokens", "first", "first_kilobyte", "sharing", "error")
_NUMBER = r"(\d{1,7}(?:\.\d{1,6})?)"
_WRITTEN = re.compile(
    ";".join(f"{name}={_NUMBER}" for name in _FIGURES) + r";answers=(?P<answers>\d{1,7})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """How long a replica takes for an answer, in seconds: `fixed`, for each `kilobyte` asked and for each `token` told.

    The first byte of a stream takes it `first` and `first_kilobyte`, which are 0 until there was a stream. It takes
    `concurrency ** sharing` times as long beside others. Its answers have `tokens` on average. `error` is by how much the last
    expectations were wrong, as the mean of |ln(seconds ÷ expected)|; `answers` is how many it was learnt from.
    """

    fixed: float
    kilobyte: float = 0.0
    token: float = 0.0
    tokens: float = 0.0
    first: float = 0.0
    first_kilobyte: float = 0.0
    sharing: float = 0.0
    error: float = 1.0
    answers: int = 1

    def alone(self, *, kilobytes: float, tokens: float) -> float:
        """Return the seconds that an answer takes with nobody beside it."""
        seconds = self.fixed + self.kilobyte * kilobytes + self.token * tokens
        return max(seconds, _SHORTEST)

    def until_first(self, *, kilobytes: float) -> float | None:
        """Return the seconds until the first byte with nobody beside it, `None` where it never streamed."""
        return (self.first + self.first_kilobyte * kilobytes) or None


class Estimator:
    """What one replica's answers to one kind of request have shown.

    Least squares of relative errors, in which older answers count less; no coefficient is negative. One answer out of all
    proportion changes little. Where the median of the last few is off, all is scaled by it: the machine is another one now.
    """

    __slots__ = ("_centre", "_first", "_fit", "_lately", "_looked", "_sharing", "_tokens", "time")

    def __init__(self, *, shares: bool) -> None:
        """`shares` says what to expect of several requests at one time until answers show it."""
        self.time: ServiceTime | None = None
        self._fit = _Fit()
        self._first = _Fit()
        self._sharing = _Sharing(UNKNOWN_SHARING if shares else 0.0)
        self._tokens = 0.0
        self._lately: deque[float] = deque(maxlen=JUDGED)
        self._centre = 0.0
        self._looked = -math.inf

    def is_due(self, now: float) -> bool:
        """Say whether one more answer is worth a look: those that come at the same moment tell the same."""
        if now - self._looked < PAUSE:
            return False
        self._looked = now
        return True

    def take(self, seconds: float, *, kilobytes: float, tokens: float, concurrency: float) -> None:
        """Take in an answer: how long it took in its slot, and how many requests were there on average, itself included."""
        known, crowd, fit = self.time, math.log(concurrency), self._fit
        answers, error = (known.answers, known.error) if known else (0, 0.0)
        alone = max(seconds, _SHORTEST) / concurrency**self._sharing.exponent
        if known is None:
            fit.begin(alone, tokens)
        expected = fit.expected(kilobytes, tokens)
        off = math.log(alone / expected)
        if answers >= JUDGED:
            expected *= self._change(off, error)
            alone = min(max(alone, expected / _OUTLIER), expected * _OUTLIER)
        off = min(max(off, -_MOST_OFF), _MOST_OFF)
        self._centre += (off - self._centre) / MEMORY
        self._tokens += (tokens - self._tokens) * max(1 / MEMORY, 1 / (answers + 1))
        fit.take(alone, kilobytes, tokens, expected**-2)
        # What is expected in the usual crowd stays, only that of larger and smaller ones changes.
        longer = self._sharing.take(crowd, off + self._sharing.exponent * crowd)
        if longer != 1:
            fit.scale(longer)
            self._first.scale(longer)
        self.time = ServiceTime(
            fit.fixed,
            fit.kilobyte,
            fit.token,
            tokens=self._tokens,
            first=self._first.fixed,
            first_kilobyte=self._first.kilobyte,
            sharing=self._sharing.exponent,
            error=error + (abs(off) - error) * max(1 / 16, 1 / answers) if answers else 1.0,
            answers=min(answers + 1, _MOST_COUNTED),
        )

    def take_first(self, seconds: float, *, kilobytes: float, concurrency: float) -> None:
        """Take in how long the first byte of a stream took; it is told with the next whole answer."""
        alone = max(seconds, _SHORTEST) / concurrency**self._sharing.exponent
        if not self._first.known:
            self._first.begin(alone, 0.0)
        expected = self._first.expected(kilobytes, 0.0)
        alone = min(max(alone, expected / _OUTLIER), expected * _OUTLIER)
        self._first.take(alone, kilobytes, 0.0, expected**-2)

    def _change(self, off: float, error: float) -> float:
        """Return by how much the machine has become slower: 1, until the median of its last answers shows another factor."""
        self._lately.append(off)
        if len(self._lately) < JUDGED:
            return 1.0
        change = sorted(self._lately)[JUDGED // 2] - self._centre
        if abs(change) < max(_CHANGE, 1.5 * error):
            return 1.0
        factor = math.exp(change)
        self._fit.scale(factor)
        self._first.scale(factor)
        self._lately = deque([one - change for one in self._lately], maxlen=JUDGED)
        return factor


class _Fit:
    """Weighted least squares of seconds over 1, kilobytes and tokens: sums of products, and coefficients that follow them."""

    __slots__ = (
        "_kk",
        "_ks",
        "_kt",
        "_n",
        "_nk",
        "_ns",
        "_nt",
        "_ts",
        "_tt",
        "fixed",
        "kilobyte",
        "token",
    )

    def __init__(self) -> None:
        self.fixed = self.kilobyte = self.token = 0.0
        self._n = self._nk = self._nt = self._kk = self._kt = self._tt = 0.0
        self._ns = self._ks = self._ts = 0.0

    @property
    def known(self) -> bool:
        """Whether there was an answer."""
        return self._n > 0

    def begin(self, seconds: float, tokens: float) -> None:
        """Take the first answer: until others tell better, it took long because it is long."""
        self.fixed, self.token = (0.0, seconds / tokens) if tokens >= 1 else (seconds, 0.0)

    def expected(self, kilobytes: float, tokens: float) -> float:
        """Return the seconds of such an answer."""
        return max(self.fixed + self.kilobyte * kilobytes + self.token * tokens, _SHORTEST)

    def scale(self, factor: float) -> None:
        """All takes so many times as long; what was seen counts as if it had."""
        self.fixed *= factor
        self.kilobyte *= factor
        self.token *= factor
        self._ns, self._ks, self._ts = self._ns / factor, self._ks / factor, self._ts / factor
        square = factor**-2
        self._n, self._nk, self._nt = self._n * square, self._nk * square, self._nt * square
        self._kk, self._kt, self._tt = self._kk * square, self._kt * square, self._tt * square

    def take(self, seconds: float, kilobytes: float, tokens: float, weight: float) -> None:
        """Add an answer, and mend the coefficients one after the other, so that none is negative."""
        k, t = kilobytes, tokens
        self._n = n = self._n * _KEPT + weight
        self._nk = nk = self._nk * _KEPT + weight * k
        self._nt = nt = self._nt * _KEPT + weight * t
        self._kk = kk = self._kk * _KEPT + weight * k * k
        self._kt = kt = self._kt * _KEPT + weight * k * t
        self._tt = tt = self._tt * _KEPT + weight * t * t
        self._ns = ns = self._ns * _KEPT + weight * seconds
        self._ks = ks = self._ks * _KEPT + weight * k * seconds
        self._ts = ts = self._ts * _KEPT + weight * t * seconds
        fixed, kilobyte, token = self.fixed, self.kilobyte, self.token
        for _ in range(_SWEEPS):
            fixed = max(0.0, (ns - nk * kilobyte - nt * token) / n)
            kilobyte = max(0.0, (ks - nk * fixed - kt * token) / kk) if kk else 0.0
            token = max(0.0, (ts - nt * fixed - kt * kilobyte) / tt) if tt else 0.0
        self.fixed, self.kilobyte, self.token = fixed, kilobyte, token


class _Sharing:
    """By which exponent answers take longer beside others: the slope of ln(seconds) over ln(concurrency)."""

    __slots__ = ("_count", "_crowd", "_longer", "_product", "_square", "exponent")

    def __init__(self, exponent: float) -> None:
        self.exponent = exponent
        self._count = self._crowd = self._longer = 0.0
        # As if a little had been seen already, from which answers have to lead away.
        self._square, self._product = 1.0, exponent

    def take(self, crowd: float, longer: float) -> float:
        """Take in by how much longer an answer took in a crowd; both are logarithms.

        Return by which factor answers are quicker alone than was thought, so that in the usual crowd they take as long.
        """
        self._count = self._count * _SHARING_KEPT + 1
        self._crowd = self._crowd * _SHARING_KEPT + crowd
        self._longer = self._longer * _SHARING_KEPT + longer
        self._square = self._square * _SHARING_KEPT + crowd * crowd
        self._product = self._product * _SHARING_KEPT + crowd * longer
        spread = self._square - self._crowd**2 / self._count
        slope = self._product - self._crowd * self._longer / self._count
        if spread < _SHORTEST:
            return 1.0
        exponent = min(max(slope / spread, 0.0), 1.0)
        change = (exponent - self.exponent) * self._crowd / self._count
        self.exponent = exponent
        self._longer += change * self._count
        self._product += change * self._crowd
        return math.exp(-change)


class Occupancy:
    """How many requests a worker has had at one time: the sum of the seconds that all of them were there."""

    __slots__ = ("_count", "_seconds", "_since")

    def __init__(self) -> None:
        self._count = 0
        self._seconds = self._since = 0.0

    def change(self, by: int, now: float) -> None:
        """So many more are there from now on."""
        self._seconds += self._count * (now - self._since)
        self._since = now
        self._count += by

    def seconds(self, now: float) -> float:
        """Return the sum until now; its growth over some time, divided by that, is how many were there on average."""
        return self._seconds + self._count * (now - self._since)


class ServiceTimes:
    """Service times of all replicas by kind of request: learnt here of this machine's, told by their nodes of others'."""

    def __init__(self) -> None:
        self._own: dict[tuple[Service, Kind], Estimator] = {}
        self.told = NewestOfNodes[tuple[Service, Kind], ServiceTime]()

    def estimator(self, service: Service, kind: Kind, *, shares: bool) -> Estimator:
        """Return what learns the service time of a worker of this machine; `shares` says that its slots are not known."""
        found = self._own.get((service, kind))
        if found is None:
            if len(self._own) >= MAX_OWN:
                del self._own[next(iter(self._own))]
            found = self._own[service, kind] = Estimator(shares=shares)
        return found

    def of_own(self, service: Service, kind: Kind) -> ServiceTime | None:
        """Return the service time of a worker of this machine, `None` until it has answered."""
        found = self._own.get((service, kind))
        return found.time if found else None


def written(time: ServiceTime) -> str:
    """Write a service time as the value of the header `SERVICE_TIME`."""
    answers = time.fixed, time.kilobyte, time.token, time.tokens
    figures = *answers, time.first, time.first_kilobyte, time.sharing, time.error
    told = zip(_FIGURES, figures, strict=True)
    return "".join(f"{n}={min(f, _LARGEST):.6f};" for n, f in told) + f"answers={time.answers}"


def read(text: str) -> ServiceTime | None:
    """Read the value of the header `SERVICE_TIME`; `None` for what is none. The pattern bounds the length."""
    found = _WRITTEN.fullmatch(text)
    if found is None:
        return None
    fixed, kilobyte, token, tokens, *rest = map(float, found.groups()[:-1])
    first, first_kilobyte, sharing, error = rest
    time = ServiceTime(
        fixed,
        kilobyte,
        token,
        tokens,
        first=first,
        first_kilobyte=first_kilobyte,
        sharing=sharing,
        error=error,
        answers=int(found["answers"]),
    )
    return time if time.sharing <= 1 and time.answers else None
