"""Estimator of one replica's service time, from its answers to one kind of request. No I/O, no clock.

Least squares of relative errors, in which older answers count less; no coefficient is negative. One answer out of all
proportion changes little. Where the median of the last few is off, all is scaled by it: the machine is another one now.
For how long a cache holds what was read follows from the gaps between turns of conversations, by likelihood.
"""

import math
from collections import deque

from router.state.service_time import (
    HOLDS,
    MEMORY,
    NOTHING_BEFORE,
    SHORTEST,
    UNKNOWN_SHARING,
    Before,
    ServiceTime,
)

JUDGED = 5
"""Answers whose median shows that a machine has become quicker or slower: three in a row are no accident."""

PAUSE = 0.01
"""Seconds between two answers of one worker that are looked at: who answers more often than that costs nothing more."""

_OUTLIER = 4.0  # an answer counts as at most so many times what was expected
_MOST_OFF = math.log(_OUTLIER)
_CHANGE = math.log(1.5)
_KEPT = 1 - 1 / MEMORY
_SHARING_KEPT = 1 - 1 / (4 * MEMORY)  # a machine seldom begins to share
_SWEEPS = 3
_HOLDS_STEP = 0.1
_SHORTEST_HOLD, _LONGEST_HOLD = 0.5, 86_400.0
_CLEAR = 1.5  # which of two expectations an answer meets is clear where they are so many times the usual error apart
_MOST_COUNTED = 1_000_000


class Estimator:
    """What one replica's answers to one kind of request have shown."""

    __slots__ = (
        "_centre",
        "_first",
        "_fit",
        "_holds",
        "_lately",
        "_sharing",
        "_tokens",
        "looked",
        "looked_first",
        "time",
    )

    def __init__(self, *, shares: bool) -> None:
        """`shares` says what to expect of several requests at one time until answers show it."""
        self.time: ServiceTime | None = None
        self._fit = _Fit()
        self._first = _Fit()
        self._sharing = _Sharing(UNKNOWN_SHARING if shares else 0.0)
        self._tokens = 0.0
        self._holds = HOLDS
        self._lately: deque[float] = deque(maxlen=JUDGED)
        self._centre = 0.0
        self.looked = self.looked_first = -math.inf
        """When an answer, or a first byte, was looked at last, by whoever looks: what comes within `PAUSE` tells the same."""

    def take(
        self,
        seconds: float,
        *,
        kilobytes: float,
        tokens: float,
        concurrency: float,
        before: Before = NOTHING_BEFORE,
        cached: float | None = None,
    ) -> None:
        """Take in an answer: how long it took in its slot, and how many requests were there on average, itself included.

        `before` is what was read of its request before; `cached` is how many kilobytes the cache held, where the worker tells.
        """
        known, crowd, fit = self.time, math.log(concurrency), self._fit
        answers, error = (known.answers, known.error) if known else (0, 0.0)
        alone = max(seconds, SHORTEST) / concurrency**self._sharing.exponent
        if known is None:
            fit.begin(alone, tokens)
        if before is not NOTHING_BEFORE or cached is not None:
            kilobytes -= self._held(alone, kilobytes, tokens, before, cached)
        expected = fit.expected(kilobytes, tokens)
        off = math.log(alone / expected)
        if answers >= JUDGED:
            expected *= self._change(off, error)
            alone = _within(alone, expected / _OUTLIER, expected * _OUTLIER)
        off = _within(off, -_MOST_OFF, _MOST_OFF)
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
            holds=self._holds,
            error=error + (abs(off) - error) * max(1 / 16, 1 / answers) if answers else 1.0,
            answers=min(answers + 1, _MOST_COUNTED),
        )

    def take_first(
        self,
        seconds: float,
        *,
        kilobytes: float,
        concurrency: float,
        before: Before = NOTHING_BEFORE,
    ) -> None:
        """Take in how long the first byte of a stream took; it is told with the next whole answer."""
        kilobytes -= before.held(self._holds)
        alone = max(seconds, SHORTEST) / concurrency**self._sharing.exponent
        if not self._first.known:
            self._first.begin(alone, 0.0)
        expected = self._first.expected(kilobytes, 0.0)
        alone = _within(alone, expected / _OUTLIER, expected * _OUTLIER)
        self._first.take(alone, kilobytes, 0.0, expected**-2)

    def _held(
        self, alone: float, kilobytes: float, tokens: float, before: Before, cached: float | None
    ) -> float:
        """Return how many kilobytes of a request were in the cache, and learn from it for how long it holds them."""
        if not before.kilobytes:
            return before.shared if cached is None else min(cached, kilobytes)
        if cached is not None:
            self._hold(before.age, hit=2 * cached >= before.kilobytes + before.shared)
            return min(cached, kilobytes)
        unread = self._fit.expected(kilobytes - before.shared, tokens)
        read = self._fit.expected(kilobytes - before.kilobytes, tokens)
        error = self.time.error if self.time else 1.0
        if math.log(unread / read) < _CLEAR * error:
            return before.held(self._holds)
        hit = alone < math.sqrt(unread * read)
        self._hold(before.age, hit=hit)
        return before.kilobytes if hit else before.shared

    def _hold(self, age: float, *, hit: bool) -> None:
        """Follow the likelihood of what was seen: half is gone after `holds` seconds."""
        halves = max(age, _SHORTEST_HOLD) / self._holds * math.log(2)
        step = min(halves, 1.0) if hit else -halves / math.expm1(halves)
        holds = self._holds * math.exp(_HOLDS_STEP * step)
        self._holds = _within(holds, _SHORTEST_HOLD, _LONGEST_HOLD)

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


def _within(number: float, least: float, most: float) -> float:
    if number < least:
        return least
    if number > most:
        return most
    return number


class _Fit:
    """Weighted least squares of seconds over 1, kilobytes and tokens: sums of products, and coefficients that follow them."""

    __slots__ = ("_sums", "fixed", "kilobyte", "token")

    def __init__(self) -> None:
        self.fixed = self.kilobyte = self.token = 0.0
        # Those of the products of 1, kilobytes and tokens with each other, and then with seconds.
        self._sums = (0.0,) * 9

    @property
    def known(self) -> bool:
        """Whether there was an answer."""
        return self._sums[0] > 0

    def begin(self, seconds: float, tokens: float) -> None:
        """Take the first answer: until others tell better, it took long because it is long."""
        self.fixed, self.token = (0.0, seconds / tokens) if tokens >= 1 else (seconds, 0.0)

    def expected(self, kilobytes: float, tokens: float) -> float:
        """Return the seconds of such an answer."""
        return max(self.fixed + self.kilobyte * kilobytes + self.token * tokens, SHORTEST)

    def scale(self, factor: float) -> None:
        """All takes so many times as long; what was seen counts as if it had."""
        self.fixed *= factor
        self.kilobyte *= factor
        self.token *= factor
        n, nk, nt, kk, kt, tt, ns, ks, ts = self._sums
        square = factor**-2
        seen = n * square, nk * square, nt * square, kk * square, kt * square, tt * square
        self._sums = *seen, ns / factor, ks / factor, ts / factor

    def take(self, seconds: float, kilobytes: float, tokens: float, weight: float) -> None:
        """Add an answer, and mend the coefficients one after the other, so that none is negative."""
        k, t, n, nk, nt, kk, kt, tt, ns, ks, ts = kilobytes, tokens, *self._sums
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
        # What was never there takes no time.
        kilobyte, token, kk = self.kilobyte, self.token if tt else 0.0, kk or math.inf
        for _ in range(_SWEEPS):
            # Not by `max`, which takes longer than all the sums.
            if (fixed := (ns - nk * kilobyte - nt * token) / n) <= 0:
                fixed = 0.0
            if (kilobyte := (ks - nk * fixed - kt * token) / kk) <= 0:
                kilobyte = 0.0
            if tt and (token := (ts - nt * fixed - kt * kilobyte) / tt) <= 0:
                token = 0.0
        self.fixed, self.kilobyte, self.token = fixed, kilobyte, token


class _Sharing:
    """By which exponent answers take longer beside others: the slope of ln(seconds) over ln(concurrency)."""

    __slots__ = ("_sums", "exponent")

    def __init__(self, exponent: float) -> None:
        self.exponent = exponent
        # How many, ln(concurrency), ln(seconds), the square of the one, and both multiplied. As if a little had been seen
        # already, from which answers have to lead away.
        self._sums = 0.0, 0.0, 0.0, 1.0, exponent

    def take(self, crowd: float, longer: float) -> float:
        """Take in by how much longer an answer took in a crowd; both are logarithms.

        Return by which factor answers are quicker alone than was thought, so that in the usual crowd they take as long.
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
            exponent = _within(slope / spread, 0.0, 1.0)
            change = (exponent - self.exponent) * crowd_sum / count
            self.exponent = exponent
            longer_sum += change * count
            product += change * crowd_sum
        self._sums = count, crowd_sum, longer_sum, square, product
        return math.exp(-change)
