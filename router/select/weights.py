"""Weights of candidates: the seconds that a request would take there, and the part of all requests that each can bear.

Slots are what a worker was registered with or what its node reported; service times are what its node learnt
(`router.state.service_time`). A worker without known slots shares its processor among all that it has. Where nothing is known of
one candidate it counts like the middle of the others: a guess would be a preference for or against it.
"""

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from statistics import median

from registry.clock import Chance
from registry.records import PeerId, Service
from registry.values import value_class
from router.requests import Request
from router.select.candidates import Candidate
from router.select.rendezvous import by_key, key_of
from router.state.service_time import MEMORY, UNKNOWN_SHARING, ServiceTime

SLACK = 1.25
"""How much more than its share of all requests a machine may have and still be preferred."""

GRACE = 2.0
"""Requests beyond that, so that among idle machines a single request moves nobody."""

QUEUEING = 1.5
"""How many times a second in a queue counts: it delays whoever comes later as well."""

FILLING = 0.1
"""By which part a full machine looks slower than an empty one, so that of machines alike the emptier is taken."""

SHARED = 8
"""Requests that a worker without known slots is thought to work on at one time, for what it can bear."""

REREAD = 3.0
"""How many times a second of reading again counts that somebody's cache would save: it takes a slot from others as well."""

PAYS = 0.15
"""The part of an answer's time that reading has to take for a conversation to be kept together."""

ASKED = 6
"""Candidates whose nodes are asked how busy they are, and how much of a conversation they have read."""

WORTH_ASKING = 0.1
"""Seconds of reading that may be saved, for which nodes are asked."""

LONG = 0.3
"""Seconds of an answer from which on nodes are asked where the best candidate may be busier than is known."""

FRESH = 1.0
"""Seconds for which a report of load is good enough for a long answer."""

# Of many candidates, a comprehension would take twice as long.
_TIME, _SLOTS = attrgetter("time"), attrgetter("slots")

_LEAST = 0.01  # the part of an answer's time that is left at least, whatever is in a cache


@value_class
class Prospect:
    """What to expect of one candidate: `part` of all requests that it can bear, relative to the others'.

    `service` is the seconds that an answer takes in its slot with as many beside it as there are now, and `seconds` that with the
    wait for a slot. `reread` is the seconds in which it reads what another's cache holds, as often as they count. `cost` is what
    candidates are compared by.
    """

    part: float
    service: float
    seconds: float
    cost: float
    reread: float = 0.0


PART, COST = attrgetter("part"), attrgetter("cost")


def weights(candidates: Sequence[Candidate]) -> Sequence[int]:
    """Return each candidate's slots, or 1 for all when somebody's are not known."""
    found: list[int] = [*map(_SLOTS, candidates)]
    return found if all(found) else [1] * len(found)


def prospects(request: Request, candidates: Sequence[Candidate]) -> list[Prospect]:
    """Return what to expect of each candidate. Where no service time is known, an answer counts as one second everywhere."""
    times: list[ServiceTime | None] = [*map(_TIME, candidates)]
    answers = tokens = 0.0
    for time in times:
        if time:
            # However many answers a node says that it has seen.
            weight = min(time.answers, MEMORY)
            answers += weight
            tokens += weight * time.tokens
    if not answers:
        slots = weights(candidates)
        return [_in_slots(c.expected, n, 1.0, 1.0) for c, n in zip(candidates, slots, strict=True)]
    usual, kilobytes = tokens / answers, len(request.body) / 1_000
    alone = [t.alone(kilobytes=kilobytes, tokens=usual) if t else 0.0 for t in times]
    middle = 0.0 if all(alone) else median(filter(None, alone))
    most = max(c.cached for c in candidates) if request.prefixes.chain else 0.0
    return [_prospect(c, s or middle, most) for c, s in zip(candidates, alone, strict=True)]


def late(request: Request, candidates: Sequence[Candidate]) -> set[tuple[PeerId, Service]]:
    """Return whose first byte is not to be expected within the time that the caller wants; of a whole answer, that is its end."""
    kilobytes = len(request.body) / 1_000
    found = set()
    for candidate, its in zip(candidates, prospects(request, candidates), strict=True):
        time, seconds = candidate.time, its.seconds
        if time is None:
            continue
        fresh = max(0.0, kilobytes - candidate.cached)
        if request.stream and (first := time.until_first(kilobytes=fresh)):
            at_work = min(candidate.expected + 1, candidate.slots or math.inf)
            seconds = its.seconds - its.service + first * at_work**time.sharing
        if seconds > request.aim:
            found.add(candidate.key)
    return found


def expectations(
    request: Request, candidate: Candidate, among: Sequence[Candidate]
) -> Mapping[str, float]:
    """Return by name what is expected of one of these candidates, for people; nothing where its service time is not known."""
    if candidate.time is None:
        return {}
    its = prospects(request, among)[among.index(candidate)]
    return {
        "expected_seconds": its.seconds,
        "service_seconds": its.service,
        "error": candidate.time.error,
    }


def _prospect(candidate: Candidate, alone: float, most: float) -> Prospect:
    """Return what to expect of one that takes so many seconds if it reads all; `most` kilobytes are in somebody's cache."""
    slots, expected, time = candidate.slots, candidate.expected, candidate.time
    its, reread = alone, 0.0
    if time and most:
        cached = candidate.cached
        its = max(_LEAST * alone, alone - time.kilobyte * cached)
        reread = REREAD * time.kilobyte * (most - cached)
    if slots:
        sharing = time.sharing if time else 0.0
        if not sharing:
            return _in_slots(expected, slots, its, alone, reread)
        longer = min(expected + 1, slots) ** sharing
        return _in_slots(expected, slots, its * longer, alone * slots**sharing, reread * longer)
    sharing = time.sharing if time else UNKNOWN_SHARING
    seconds = its * (expected + 1) ** sharing
    # Even where more at one time cost nothing yet, the emptier machine is the better one.
    cost = (
        (its + reread) * (expected + 1) ** max(sharing, UNKNOWN_SHARING)
        if expected
        else its + reread
    )
    return Prospect(SHARED ** (1 - sharing) / alone, seconds, seconds, cost, reread)


def _in_slots(
    expected: float, slots: int, service: float, others: float, reread: float = 0.0
) -> Prospect:
    """Return what to expect of a machine with slots; `others`, who are there or come, have each theirs for so many seconds."""
    fullness = (expected + 1) / slots
    if fullness <= 1:
        cost = service * (1 + FILLING * fullness) + reread
        return Prospect(slots / others, service, service, cost, reread)
    waits = fullness - 1
    # It delays all who wait there.
    reread *= 1 + waits
    cost = service * (1 + FILLING) + reread + others * QUEUEING * waits
    return Prospect(slots / others, service, service + others * waits, cost, reread)


def draw(parts: Sequence[float], random: Chance) -> int:
    """Draw a place, each as often as its part says."""
    until = [*accumulate(parts)]
    return min(bisect(until, random() * until[-1]), len(until) - 1)


def drawn(parts: Sequence[float], random: Chance) -> list[int]:
    """Draw all places, none twice, and of those that are left each as often as its part says.

    Each waits for a time of an exponential distribution, and who has waited is drawn: so all are drawn in one pass.
    """
    waits = [-math.log(1.0 - random()) / part if part else math.inf for part in parts]
    return sorted(range(len(waits)), key=waits.__getitem__)


def worth_keeping(request: Request, candidates: Sequence[Candidate]) -> bool:
    """Say whether reading a request takes long enough for its conversation to be kept together: on average over candidates."""
    kilobytes = len(request.body) / 1_000
    parts = [
        c.time.kilobyte * kilobytes / c.time.alone(kilobytes=kilobytes, tokens=c.time.tokens)
        for c in candidates
        if c.time
    ]
    return bool(parts) and sum(parts) >= PAYS * len(parts)


def worth_asking(request: Request, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return whose nodes are to be asked how busy they are and how much of a conversation they have read; mostly nobody's."""
    kilobytes = len(request.body) / 1_000
    for time in map(_TIME, candidates):
        if time and time.alone(kilobytes=kilobytes, tokens=time.tokens) >= LONG:
            break
    else:
        return []
    expected = prospects(request, candidates)
    said = request.prefixes
    slowest = max(c.time.kilobyte for c in candidates if c.time) if said.goes_on else 0.0
    if said.goes_on and slowest * said.size / 1_000 >= WORTH_ASKING:
        most = max(candidates, key=lambda c: c.before.kilobytes)
        if 2_000 * most.before.kilobytes > said.size and not _may_be_full(most):
            return []
        by_its_key = by_key(key_of(request), candidates, [*map(PART, expected)])
        asked = [candidates[place] for place in by_its_key[:ASKED]]
        return asked if not most.before.kilobytes or most in asked else [most, *asked]
    costs: list[float] = [*map(COST, expected)]
    place = costs.index(min(costs))
    best = candidates[place]
    if expected[place].service < LONG or not best.report:
        return []
    if best.report.age <= FRESH and not _may_be_full(best):
        return []
    cheapest = sorted(range(len(costs)), key=costs.__getitem__)
    return [candidates[place] for place in cheapest[:ASKED]]


def _may_be_full(candidate: Candidate) -> bool:
    """Say whether a candidate is full by what its node said, and not by our own requests alone, which are known."""
    return not candidate.has_room and candidate.in_flight < candidate.slots


def with_room_first(request: Request, preferred: Sequence[Candidate]) -> list[Candidate]:
    """Move those that are crowded behind the others; else the order stays."""
    full = crowded(request, preferred)
    return sorted(preferred, key=lambda c: c.key in full) if full else list(preferred)


def crowded(request: Request, candidates: Sequence[Candidate]) -> set[tuple[PeerId, Service]]:
    """Return who has far more than its share of all requests, or no free slot while somebody with one would be sooner done."""
    expected = prospects(request, candidates)
    share = SLACK * sum(c.expected for c in candidates) / (sum(p.part for p in expected) or 1)
    pairs = [*zip(candidates, expected, strict=True)]
    # Where slots are not known, only who has nothing to do is sure to have one.
    free = min((p.seconds for c, p in pairs if c.expected < (c.slots or 1)), default=math.inf)
    return {
        c.key
        for c, p in pairs
        if c.expected >= share * p.part + GRACE or (0 < c.slots <= c.expected and p.seconds > free)
    }


def keeps_to_slots(request: Request) -> bool:
    """Say whether a request had better go where a slot is free than wait for one: a batch's session, as few as there are slots.

    One that waits would take the slot that has read another session, whose next request then takes a third's.
    """
    return request.background and bool(request.session)


def patience(request: Request, candidate: Candidate, others: Sequence[Candidate]) -> float:
    """Return for how many seconds a request may wait for a slot of a candidate and be done before it would be at any other.

    0 where nothing is known of the candidate, it has no slots, or nobody else is trusted.
    """
    # Without slots all work at one time, so there is nothing to wait for.
    if candidate.time is None or not candidate.slots:
        return 0.0
    trusted = [other for other in others if not other.rank]
    if not trusted:
        return 0.0
    if keeps_to_slots(request) and any(other.has_room for other in trusted):
        return 0.0
    its, *rest = prospects(request, [candidate, *trusted])
    return max(0.0, min(o.seconds + o.reread for o in rest) - its.service - its.reread)
