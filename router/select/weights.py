"""Weights of candidates: the seconds that a request would take there, and the part of all requests that each can bear.

Slots are what a worker was registered with or what its node reported; service times are what its node learnt
(`router.state.service_time`). A worker without known slots shares its processor among all its requests. A candidate
of which nothing is known counts as the median of the others: a guess would be a preference for or against it.
"""

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import log
from statistics import median

from registry.clock import RandomSource
from registry.records import PeerId, Service
from registry.values import value_class
from router.requests import Request
from router.select.candidates import Candidate
from router.select.rendezvous import conversation_key, order_by_key
from router.state.service_time import MEMORY, UNKNOWN_SHARING

SLACK = 1.25
"""How much more than its share of all requests a machine may have and still be preferred."""

GRACE = 2.0
"""Requests allowed beyond that, so that among idle machines a single request makes none crowded."""

QUEUEING = 1.5
"""Weight of a second in a queue: it delays later requests as well."""

FILLING = 0.1
"""Part by which a full machine is rated slower than an empty one, so that of equal machines the emptier is taken."""

SHARED = 8
"""Requests that a worker without known slots is assumed to bear at one time."""

FAR = 4.0
"""Times the median of all nodes' mean tokens that one node's may count, or that part of it: one that lies moves little."""

REREAD = 3.0
"""Weight of a second of reading that another's cache would save: it takes a slot from other requests as well."""

MIN_READING_SHARE = 0.15
"""Least part of an answer's time that reading takes for a conversation to be kept together."""

MAX_QUERIED = 6
"""Candidates whose nodes are asked for their load, and how much of a conversation they have read."""

MIN_SAVED_SECONDS = 0.1
"""Fewest seconds of reading that may be saved for which nodes are asked."""

LONG = 0.3
"""Fewest seconds of an answer for which nodes are asked if the best candidate may be busier than is known."""

FRESH = 1.0
"""Seconds for which a report of load is good enough for a long answer."""

_LEAST = 0.01  # least part of an answer's time that remains, whatever is in a cache


@value_class
class Forecast:
    """What to expect of one candidate: `part` is the part of all requests that it can bear, relative to the others'.

    `service` is the seconds that an answer takes in its slot beside the present requests, and `seconds` that plus the wait for a
    slot. `reread` is the weighted seconds in which it reads what another's cache holds. `cost` is what candidates are compared
    by.
    """

    part: float
    service: float
    seconds: float
    cost: float
    reread: float = 0.0


def weights(candidates: Sequence[Candidate]) -> Sequence[int]:
    """Return each candidate's slots, or 1 for all if those of any are unknown."""
    slots = [candidate.slots for candidate in candidates]
    return slots if all(slots) else [1] * len(slots)


def forecasts(request: Request, candidates: Sequence[Candidate]) -> list[Forecast]:
    """Return what to expect of each candidate. If no service time is known, an answer counts as one second everywhere."""
    times = [candidate.time for candidate in candidates]
    # However many answers a node claims to have seen.
    samples = [(time.tokens, min(time.answers, MEMORY)) for time in times if time]
    if not samples:
        slots = weights(candidates)
        return [
            _forecast_in_slots(c.expected_requests, n, 1.0, 1.0)
            for c, n in zip(candidates, slots, strict=True)
        ]
    usual, kilobytes = _usual_tokens(samples), len(request.body) / 1_000
    alone = [t.seconds_alone(kilobytes=kilobytes, tokens=usual) if t else 0.0 for t in times]
    middle = 0.0 if all(alone) else median(filter(None, alone))
    most_cached = max(c.cached_kilobytes for c in candidates) if request.prefixes.chain else 0.0
    return [_forecast(c, s or middle, most_cached) for c, s in zip(candidates, alone, strict=True)]


def _usual_tokens(samples: list[tuple[float, int]]) -> float:
    """Return the tokens of an answer, as the mean of weighted statements; none counts as far from their median."""
    samples.sort()
    weight = sum([w for _, w in samples])
    middle, remaining = 0.0, weight / 2
    for tokens, answers in samples:
        if remaining > 0:
            middle, remaining = tokens, remaining - answers
    most, least = middle * FAR, middle / FAR
    return sum([min(max(tokens, least), most) * answers for tokens, answers in samples]) / weight


def late_candidates(
    request: Request, candidates: Sequence[Candidate]
) -> set[tuple[PeerId, Service]]:
    """Return the candidates whose first byte, or whole unstreamed answer, is not expected within the caller's target time."""
    kilobytes = len(request.body) / 1_000
    late = set()
    for candidate, forecast in zip(candidates, forecasts(request, candidates), strict=True):
        time, seconds = candidate.time, forecast.seconds
        if time is None:
            continue
        fresh = max(0.0, kilobytes - candidate.cached_kilobytes)
        if request.stream and (first := time.seconds_to_first_byte(kilobytes=fresh)):
            at_work = min(candidate.expected_requests + 1, candidate.slots or math.inf)
            seconds = forecast.seconds - forecast.service + first * at_work**time.sharing
        if seconds > request.aim:
            late.add(candidate.key)
    return late


def expectations(
    request: Request, candidate: Candidate, candidates: Sequence[Candidate]
) -> Mapping[str, float]:
    """Return by name what is expected of one of these candidates, for people; empty if its service time is unknown."""
    if candidate.time is None:
        return {}
    forecast = forecasts(request, candidates)[candidates.index(candidate)]
    return {
        "expected_seconds": forecast.seconds,
        "service_seconds": forecast.service,
        "error": candidate.time.error,
    }


def _forecast(candidate: Candidate, alone: float, most_cached: float) -> Forecast:
    """Return what to expect of a candidate that takes `alone` seconds to read all; `most_cached` kilobytes are in some cache."""
    slots, expected, time = candidate.slots, candidate.expected_requests, candidate.time
    service, reread = alone, 0.0
    if time and most_cached:
        cached = candidate.cached_kilobytes
        service = max(_LEAST * alone, alone - time.kilobyte * cached)
        reread = REREAD * time.kilobyte * (most_cached - cached)
    if slots:
        sharing = time.sharing if time else 0.0
        if not sharing:
            return _forecast_in_slots(expected, slots, service, alone, reread)
        longer = min(expected + 1, slots) ** sharing
        return _forecast_in_slots(
            expected, slots, service * longer, alone * slots**sharing, reread * longer
        )
    sharing = time.sharing if time else UNKNOWN_SHARING
    seconds = service * (expected + 1) ** sharing
    # Even if more requests at one time have cost nothing yet, the emptier machine is the better one.
    cost = (
        (service + reread) * (expected + 1) ** max(sharing, UNKNOWN_SHARING)
        if expected
        else service + reread
    )
    return Forecast(SHARED ** (1 - sharing) / alone, seconds, seconds, cost, reread)


def _forecast_in_slots(
    expected: float, slots: int, service: float, others: float, reread: float = 0.0
) -> Forecast:
    """Return what to expect of a machine with slots, in which each other request takes `others` seconds."""
    fullness = (expected + 1) / slots
    if fullness <= 1:
        cost = service * (1 + FILLING * fullness) + reread
        return Forecast(slots / others, service, service, cost, reread)
    queued = fullness - 1
    # It delays all requests that wait there.
    reread *= 1 + queued
    cost = service * (1 + FILLING) + reread + others * QUEUEING * queued
    return Forecast(slots / others, service, service + others * queued, cost, reread)


def draw(parts: Sequence[float], random: RandomSource) -> int:
    """Draw an index with a probability in proportion to its part."""
    until = [*accumulate(parts)]
    return min(bisect(until, random() * until[-1]), len(until) - 1)


def draw_all(parts: Sequence[float], random: RandomSource) -> list[int]:
    """Draw all indices without replacement, each in proportion to its part among those that are left.

    Each gets an exponentially distributed waiting time, and the shortest is drawn first: so one pass draws all.
    """
    arrivals = [-log(1.0 - random()) / part if part else math.inf for part in parts]
    return sorted(range(len(arrivals)), key=arrivals.__getitem__)


def is_affinity_worthwhile(request: Request, candidates: Sequence[Candidate]) -> bool:
    """Return whether reading a request takes long enough, on average over candidates, to keep its conversation together."""
    kilobytes = len(request.body) / 1_000
    parts = [
        c.time.kilobyte
        * kilobytes
        / c.time.seconds_alone(kilobytes=kilobytes, tokens=c.time.tokens)
        for c in candidates
        if c.time
    ]
    return bool(parts) and sum(parts) >= MIN_READING_SHARE * len(parts)


def candidates_to_query(request: Request, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates whose nodes to ask for their load and how much of a conversation they have read; mostly none."""
    kilobytes = len(request.body) / 1_000
    for candidate in candidates:
        time = candidate.time
        if time and time.seconds_alone(kilobytes=kilobytes, tokens=time.tokens) >= LONG:
            break
    else:
        return []
    expected = forecasts(request, candidates)
    prefixes = request.prefixes
    slowest = max(c.time.kilobyte for c in candidates if c.time) if prefixes.goes_on else 0.0
    if prefixes.goes_on and slowest * prefixes.size / 1_000 >= MIN_SAVED_SECONDS:
        reader = max(candidates, key=lambda c: c.before.kilobytes)
        if 2_000 * reader.before.kilobytes > prefixes.size and not _may_be_full(reader):
            return []
        by_its_key = order_by_key(conversation_key(request), candidates, [e.part for e in expected])
        queried = [candidates[index] for index in by_its_key[:MAX_QUERIED]]
        return queried if not reader.before.kilobytes or reader in queried else [reader, *queried]
    costs = [e.cost for e in expected]
    index = costs.index(min(costs))
    best = candidates[index]
    if expected[index].service < LONG or not best.report:
        return []
    if best.report.age <= FRESH and not _may_be_full(best):
        return []
    cheapest = sorted(range(len(costs)), key=costs.__getitem__)
    return [candidates[index] for index in cheapest[:MAX_QUERIED]]


def _may_be_full(candidate: Candidate) -> bool:
    """Return whether a candidate is full by its node's report, not by this node's requests alone, which are known."""
    return not candidate.has_room and candidate.in_flight < candidate.slots


def with_room_first(request: Request, preferred: Sequence[Candidate]) -> list[Candidate]:
    """Move crowded candidates behind the others; otherwise keep the order."""
    full = crowded_candidates(request, preferred)
    return sorted(preferred, key=lambda c: c.key in full) if full else list(preferred)


def crowded_candidates(
    request: Request, candidates: Sequence[Candidate]
) -> set[tuple[PeerId, Service]]:
    """Return candidates with far more than their share of requests, or without a free slot while one with it is faster."""
    expected = forecasts(request, candidates)
    share = (
        SLACK * sum(c.expected_requests for c in candidates) / (sum(p.part for p in expected) or 1)
    )
    pairs = [*zip(candidates, expected, strict=True)]
    # If its slots are unknown, only an idle candidate is sure to have one.
    free = min(
        (p.seconds for c, p in pairs if c.expected_requests < (c.slots or 1)), default=math.inf
    )
    return {
        c.key
        for c, p in pairs
        if c.expected_requests >= share * p.part + GRACE
        or (0 < c.slots <= c.expected_requests and p.seconds > free)
    }


def prefers_free_slot(request: Request) -> bool:
    """Return whether a request should take a free slot anywhere rather than wait: one of a batch's sessions.

    These are as few as there are slots. One that waits would take the slot that has read another session, whose next request
    would then take a third one's.
    """
    return request.background and bool(request.session)


def longest_useful_wait(
    request: Request, candidate: Candidate, others: Sequence[Candidate]
) -> float:
    """Return for how many seconds a request may wait for a slot of a candidate and still be done sooner than at any other.

    0 if the candidate's service time or slots are unknown, or no other candidate is trusted.
    """
    # Without slots, all requests run at one time, so there is nothing to wait for.
    if candidate.time is None or not candidate.slots:
        return 0.0
    trusted = [other for other in others if not other.rank]
    if not trusted:
        return 0.0
    if prefers_free_slot(request) and any(other.has_room for other in trusted):
        return 0.0
    forecast, *rest = forecasts(request, [candidate, *trusted])
    return max(0.0, min(o.seconds + o.reread for o in rest) - forecast.service - forecast.reread)
