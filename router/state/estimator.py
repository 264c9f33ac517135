"""Estimator of one replica's service time, from its answers to one kind of request. No I/O, no clock.

It fits least squares of relative errors, in which older answers count less; no coefficient is negative. A single outlier
changes little. Where the median error of the last few answers is off, all times are scaled by it: the machine has changed.
For how long a cache holds what was read is estimated by likelihood from the gaps between turns of conversations.
"""

import math
from collections import deque

from router.state.remote_load import Reported
from router.state.service_time import (
    HOLDS,
    MEMORY,
    NOTHING_BEFORE,
    SHORTEST,
    UNKNOWN_SHARING,
    ReadPrefix,
    ServiceTime,
)

JUDGED = 5
"""Number of last answers whose median shows that a machine has become quicker or slower: three in a row are no accident."""

PAUSE = 0.01
"""Minimum seconds between two evaluated answers of one worker, so that more frequent answers cost nothing more."""

_OUTLIER = 4.0  # an answer's time counts as at most this factor above or below the expected one
_MOST_OFF = math.log(_OUTLIER)
_CHANGE = math.log(1.5)
_KEPT = 1 - 1 / MEMORY
_SHARING_KEPT = 1 - 1 / (4 * MEMORY)  # longer, since a machine seldom begins to share
_SWEEPS = 3
_HOLDS_STEP = 0.1
_SHORTEST_HOLD, _LONGEST_HOLD = 0.5, 86_400.0
_MOST_HALVES = 100.0  # half-lives after which nothing is left in a cache
_CLEAR = 1.5  # a cache hit and a miss are told apart where their expected times differ by this many usual errors
_MOST_COUNTED = 1_000_000


class Estimator:
    """Estimate from one replica's answers to one kind of request."""

    __slots__ = (
        "_centre",
        "_first_byte_fit",
        "_fit",
        "_holds",
        "_recent_errors",
        "_sharing",
        "_tokens",
        "evaluated_at",
        "first_byte_evaluated_at",
        "time",
    )

    def __init__(self, *, shares: bool) -> None:
        """Start without answers; `shares` is whether concurrent requests are assumed to slow each other until answers show it."""
        self.time: ServiceTime | None = None
        self._fit = _Fit()
        self._first_byte_fit = _Fit()
        self._sharing = _Sharing(UNKNOWN_SHARING if shares else 0.0)
        self._tokens = 0.0
        self._holds = HOLDS
        self._recent_errors: deque[float] = deque(maxlen=JUDGED)
        self._centre = 0.0
        self.evaluated_at = self.first_byte_evaluated_at = -math.inf
        """When an answer, and a first byte, was last evaluated; set by the caller, which skips what comes within `PAUSE`."""

    def record_answer(
        self,
        seconds: float,
        *,
        kilobytes: float,
        tokens: float,
        concurrency: float,
        before: ReadPrefix = NOTHING_BEFORE,
        cached: float | None = None,
    ) -> None:
        """Learn from an answer that took `seconds` in its slot.

        `concurrency` is how many requests were there on average, itself included. `before` is what the replica had read of the
        request before; `cached` is how many kilobytes the cache held, where the worker tells.
        """
        previous, crowd, fit = self.time, math.log(concurrency), self._fit
        answers, error = (previous.answers, previous.error) if previous else (0, 0.0)
        alone = max(seconds, SHORTEST) / concurrency**self._sharing.exponent
        if previous is None:
            fit.begin(alone, tokens)
        if before is not NOTHING_BEFORE or cached is not None:
            kilobytes -= self._estimate_cached(alone, kilobytes, tokens, before, cached)
        expected = fit.predict(kilobytes, tokens)
        off = math.log(alone / expected)
        if answers >= JUDGED:
            expected *= self._detect_change(off, error)
            alone = _clamp(alone, expected / _OUTLIER, expected * _OUTLIER)
        off = _clamp(off, -_MOST_OFF, _MOST_OFF)
        self._centre += (off - self._centre) / MEMORY
        self._tokens += (tokens - self._tokens) * max(1 / MEMORY, 1 / (answers + 1))
        fit.add_sample(alone, kilobytes, tokens, expected**-2)
        # The expected time at the usual concurrency stays; only those at higher and lower concurrency change.
        longer = self._sharing.add_sample(crowd, off + self._sharing.exponent * crowd)
        if longer != 1:
            fit.scale(longer)
            self._first_byte_fit.scale(longer)
        self.time = ServiceTime(
            fit.fixed,
            fit.kilobyte,
            fit.token,
            tokens=self._tokens,
            first=self._first_byte_fit.fixed,
            first_kilobyte=self._first_byte_fit.kilobyte,
            sharing=self._sharing.exponent,
            holds=self._holds,
            error=error + (abs(off) - error) * max(1 / 16, 1 / answers) if answers else 1.0,
            answers=min(answers + 1, _MOST_COUNTED),
        )

    def record_first_byte(
        self,
        seconds: float,
        *,
        kilobytes: float,
        concurrency: float,
        before: ReadPrefix = NOTHING_BEFORE,
    ) -> None:
        """Learn from the seconds to the first byte of a stream; they show in `time` after the next whole answer."""
        kilobytes -= before.held(self._holds)
        alone = max(seconds, SHORTEST) / concurrency**self._sharing.exponent
        if not self._first_byte_fit.has_samples:
            self._first_byte_fit.begin(alone, 0.0)
        expected = self._first_byte_fit.predict(kilobytes, 0.0)
        alone = _clamp(alone, expected / _OUTLIER, expected * _OUTLIER)
        self._first_byte_fit.add_sample(alone, kilobytes, 0.0, expected**-2)

    def _estimate_cached(
        self,
        alone: float,
        kilobytes: float,
        tokens: float,
        before: ReadPrefix,
        cached: float | None,
    ) -> float:
        """Return how many kilobytes of a request were in the cache, and learn for how long the cache holds them."""
        if not before.kilobytes:
            return before.shared if cached is None else min(cached, kilobytes)
        if cached is not None:
            self._adjust_cache_half_life(
                before.age, hit=2 * cached >= before.kilobytes + before.shared
            )
            return min(cached, kilobytes)
        unread = self._fit.predict(kilobytes - before.shared, tokens)
        read = self._fit.predict(kilobytes - before.kilobytes, tokens)
        error = self.time.error if self.time else 1.0
        if math.log(unread / read) < _CLEAR * error:
            return before.held(self._holds)
        hit = alone < math.sqrt(unread * read)
        self._adjust_cache_half_life(before.age, hit=hit)
        return before.kilobytes if hit else before.shared

    def _adjust_cache_half_life(self, age: float, *, hit: bool) -> None:
        """Move the half-life of the cache in the direction that makes this hit or miss more likely."""
        halves = _clamp(age, _SHORTEST_HOLD, _MOST_HALVES * self._holds) / self._holds * math.log(2)
        step = min(halves, 1.0) if hit else -halves / math.expm1(halves)
        holds = self._holds * math.exp(_HOLDS_STEP * step)
        self._holds = _clamp(holds, _SHORTEST_HOLD, _LONGEST_HOLD)

    def _detect_change(self, off: float, error: float) -> float:
        """Return the factor by which the machine has become slower: 1, until the median of its last answers shows another."""
        self._recent_errors.append(off)
        if len(self._recent_errors) < JUDGED:
            return 1.0
        change = sorted(self._recent_errors)[JUDGED // 2] - self._centre
        if abs(change) < max(_CHANGE, 1.5 * error):
            return 1.0
        factor = math.exp(change)
        self._fit.scale(factor)
        self._first_byte_fit.scale(factor)
        rest = [past - change for past in self._recent_errors]
        self._recent_errors = deque(rest, maxlen=JUDGED)
        return factor


def _clamp(number: float, least: float, most: float) -> float:
    if number < least:
        return least
    if number > most:
        return most
    return number


class _Fit:
    """Weighted least squares of seconds over 1, kilobytes and tokens: sums of products, and the coefficients fitted to them."""

    __slots__ = ("_sums", "fixed", "kilobyte", "token")

    def __init__(self) -> None:
        self.fixed = self.kilobyte = self.token = 0.0
        # Sums of the products of 1, kilobytes and tokens with each other, then of their products with seconds.
        self._sums = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0

    @property
    def has_samples(self) -> bool:
        """Whether there was an answer."""
        return self._sums[0] > 0

    def begin(self, seconds: float, tokens: float) -> None:
        """Take the first answer: until later ones tell better, its tokens, if any, account for all of its time."""
        self.fixed, self.token = (0.0, seconds / tokens) if tokens >= 1 else (seconds, 0.0)

    def predict(self, kilobytes: float, tokens: float) -> float:
        """Return the seconds of such an answer."""
        return max(self.fixed + self.kilobyte * kilobytes + self.token * tokens, SHORTEST)

    def scale(self, factor: float) -> None:
        """Multiply all times by a factor, and the sums as if past answers had taken that long."""
        self.fixed *= factor
        self.kilobyte *= factor
        self.token *= factor
        n, nk, nt, kk, kt, tt, ns, ks, ts = self._sums
        square = factor**-2
        n, nk, nt = n * square, nk * square, nt * square
        kk, kt, tt = kk * square, kt * square, tt * square
        self._sums = n, nk, nt, kk, kt, tt, ns / factor, ks / factor, ts / factor

    def add_sample(self, seconds: float, kilobytes: float, tokens: float, weight: float) -> None:
        """Add an answer, and update the coefficients one after the other, so that none is negative."""
        k, t = kilobytes, tokens
        n, nk, nt, kk, kt, tt, ns, ks, ts = self._sums
        weight_k, weight_t = weight * k, weight * t
        n = n * _KEPT + weight
        nk = nk * _KEPT + weight_k
        nt = nt * _KEPT + weight_t
        kk = kk * _KEPT + weight_k * k
        kt = kt * _KEPT + weight_k * t
        tt = tt * _KEPT + weight_t * t
        ns = ns * _KEPT + weight * seconds
        ks = ks * _KEPT + weight_k * seconds
        ts = ts * _KEPT + weight_t * seconds
        self._sums = n, nk, nt, kk, kt, tt, ns, ks, ts
        # A quantity that never occurred costs no time.
        kilobyte, token, kk = self.kilobyte, self.token if tt else 0.0, kk or math.inf
        for _ in range(_SWEEPS):
            # Compared without `max`, which takes longer than all the sums.
            if (fixed := (ns - nk * kilobyte - nt * token) / n) <= 0:
                fixed = 0.0
            if (kilobyte := (ks - nk * fixed - kt * token) / kk) <= 0:
                kilobyte = 0.0
            if tt and (token := (ts - nt * fixed - kt * kilobyte) / tt) <= 0:
                token = 0.0
        self.fixed, self.kilobyte, self.token = fixed, kilobyte, token


class _Sharing:
    """Exponent of concurrency by which answers take longer: the slope of ln(seconds) over ln(concurrency)."""

    __slots__ = ("_sums", "exponent")

    def __init__(self, exponent: float) -> None:
        self.exponent = exponent
        # Count, and sums of ln(concurrency), ln(seconds), ln(concurrency) squared, and the product of both logarithms. The
        # initial values are a weak prior, from which answers have to lead away.
        self._sums = 0.0, 0.0, 0.0, 1.0, exponent

    def add_sample(self, crowd: float, longer: float) -> float:
        """Take in by how much longer an answer took at a concurrency of `crowd`; both are logarithms.

        Return the factor for the times of answers alone with which those at the usual concurrency stay the same.
        """
        count, crowd_sum, longer_sum, square, product = self._sums
        count = count * _SHARING_KEPT + 1
        crowd_sum = crowd_sum * _SHARING_KEPT + crowd
        longer_sum = longer_sum * _SHARING_KEPT + longer
        square = square * _SHARING_KEPT + crowd * crowd
        product = product * _SHARING_KEPT + crowd * longer
        spread = square - crowd_sum**2 / count
        change = 0.0
        if spread >= SHORTEST:
            slope = product - crowd_sum * longer_sum / count
            exponent = _clamp(slope / spread, 0.0, 1.0)
            change = (exponent - self.exponent) * crowd_sum / count
            self.exponent = exponent
            longer_sum += change * count
            product += change * crowd_sum
        self._sums = count, crowd_sum, longer_sum, square, product
        return math.exp(-change)


TOLERATED = 3.0
"""Times as long as reported that an answer may take: load changes meanwhile, and reports of it come late."""

NETWORK_SECONDS = 0.1
"""Seconds beyond those reported that the way there and back may take."""


class ObservedTime:
    """What this node observed of one replica's answers to one kind of request, and whether its node's reports agree.

    A node that reports more speed or room than it has would get nearly all requests. So this compares the seconds of each answer
    with the reported ones, as outlier detection does: if most of the last took far longer, what was observed counts instead.
    """

    __slots__ = ("_estimator", "_recent_late", "contradicts", "evaluated_at")

    def __init__(self) -> None:
        # Its slots are known from its reports alone, so they are left out.
        self._estimator = Estimator(shares=True)
        self._recent_late: deque[bool] = deque(maxlen=JUDGED)
        self.contradicts = False
        """Whether most of the last answers took far longer than reported."""
        self.evaluated_at = 0.0
        """When an answer was last evaluated; set by the caller."""

    def record_answer(
        self,
        seconds: float,
        *,
        kilobytes: float,
        tokens: float,
        ours: int,
        time: ServiceTime | None,
        report: Reported | None,
        before: ReadPrefix = NOTHING_BEFORE,
    ) -> None:
        """Take in an answer that took `seconds` beside `ours` requests of this node, itself included.

        `time` and `report` are what the replica's node reported last.
        """
        self._estimator.record_answer(
            seconds, kilobytes=kilobytes, tokens=tokens, concurrency=max(1, ours), before=before
        )
        if time is not None:
            expected = seconds_by_report(time, report, ours, kilobytes=kilobytes, tokens=tokens)
            self._recent_late.append(seconds > TOLERATED * (expected + NETWORK_SECONDS))
            self.contradicts = 2 * self._recent_late.count(True) > JUDGED

    def choose_figures(
        self, report: Reported | None, time: ServiceTime | None
    ) -> tuple[Reported | None, ServiceTime | None]:
        """Return the load and the service time to go by, given those that its node reported last."""
        if self.contradicts:
            return None, self._estimator.time
        return report, time or self._estimator.time


def seconds_by_report(
    time: ServiceTime, report: Reported | None, ours: int, *, kilobytes: float, tokens: float
) -> float:
    """Return the seconds that such an answer takes by a node's reports, beside `ours` requests of this node."""
    requests, slots = float(max(1, ours)), 0
    if report is not None:
        requests, slots = requests + report.requests_of_others, report.load.slots
    alone = time.seconds_alone(kilobytes=kilobytes, tokens=tokens)
    at_work = min(requests, slots) if slots else requests
    slowed: float = at_work**time.sharing
    return alone * (slowed + (max(0.0, requests / slots - 1) if slots else 0.0))
