"""Service time of a replica: how long an answer takes once it has a slot, and its form in a header. No I/O, no clock.

An answer takes a fixed time, plus some for each kilobyte of the request and for each token of the answer; the time to its first
byte depends on the request alone. Beside other requests both take longer, by `concurrency ** sharing`, where `sharing` is 0 for
a machine with independent slots and 1 for one whose slots share a processor. Kilobytes in the replica's cache need not be read.
The node of a worker learns this (`router.state.estimator`), and sends it in the head of each answer to another node.
"""

import math
import re
from functools import lru_cache
from operator import attrgetter

from registry.values import value_class

MEMORY = 32
"""Number of newer answers after which an answer counts a third."""

UNKNOWN_SHARING = 0.5
"""The `sharing` that is assumed of a machine without known slots until its answers show it."""

HOLDS = 300.0
"""Seconds for which a cache is assumed to hold half of what was read, until answers show it."""

SHORTEST = 1e-4
"""Minimum seconds that an answer counts as taking, however quick it was."""

_LARGEST = 1e6

_FIGURES = (
    "fixed",
    "kilobyte",
    "token",
    "tokens",
    "first",
    "first_kilobyte",
    "sharing",
    "holds",
    "error",
)
_figures_of = attrgetter(*_FIGURES)
_MOST = (_LARGEST,) * len(_FIGURES)
_WRITING = "".join(f"{name}=%.6f;" for name in _FIGURES) + "answers=%d"
_MAX_CHARACTERS = 400
_NUMBER = r"(\d{1,7}(?:\.\d{1,6})?)"
_WRITTEN = re.compile(
    ";".join(f"{name}={_NUMBER}" for name in _FIGURES) + r";answers=(?P<answers>\d{1,7})", re.ASCII
)


@value_class
class ServiceTime:
    """Seconds that a replica takes for an answer: `fixed`, for each `kilobyte` it reads, and for each `token` it generates.

    The first byte of a stream takes `first`, and `first_kilobyte` for each kilobyte; both are 0 until there was a stream. Beside
    other requests all takes `concurrency ** sharing` times as long. Answers have `tokens` on average. After `holds` seconds half
    of what the replica has read is gone from its cache. `error` is how far the last expectations were off, as the mean of
    |ln(seconds ÷ expected)|; `answers` is the number of answers it was learnt from.
    """

    fixed: float
    kilobyte: float = 0.0
    token: float = 0.0
    tokens: float = 0.0
    first: float = 0.0
    first_kilobyte: float = 0.0
    sharing: float = 0.0
    holds: float = HOLDS
    error: float = 1.0
    answers: int = 1

    def seconds_alone(self, *, kilobytes: float, tokens: float) -> float:
        """Return the seconds that an answer takes with no other request beside it."""
        seconds = self.fixed + self.kilobyte * kilobytes + self.token * tokens
        return max(seconds, SHORTEST)

    def seconds_to_first_byte(self, *, kilobytes: float) -> float | None:
        """Return the seconds to the first byte with no other request beside it, `None` if the replica never streamed."""
        return (self.first + self.first_kilobyte * kilobytes) or None


@value_class
class ReadPrefix:
    """What a replica had read of a request before it came: so many `kilobytes`, `age` seconds ago.

    `shared` kilobytes are common to all conversations, and read all the time.
    """

    kilobytes: float = 0.0
    age: float = 0.0
    shared: float = 0.0

    def held(self, holds: float) -> float:
        """Return the expected kilobytes in a cache that loses half of its content in `holds` seconds."""
        if not self.kilobytes:
            return self.shared
        return max(self.shared, self.kilobytes * math.exp2(-self.age / holds))


NOTHING_BEFORE = ReadPrefix()


@lru_cache(maxsize=1_024)
def format_service_time(time: ServiceTime) -> str:
    """Write a service time as the value of the header `SERVICE_TIME`."""
    return _WRITING % (*map(min, _figures_of(time), _MOST), time.answers)


def parse_service_time(text: str) -> ServiceTime | None:
    """Read the value of the header `SERVICE_TIME`; return `None` if it is malformed or out of bounds."""
    return _read(text) if len(text) <= _MAX_CHARACTERS else None


@lru_cache(maxsize=1_024)
def _read(text: str) -> ServiceTime | None:
    match = _WRITTEN.fullmatch(text)
    if match is None:
        return None
    *figures, answers = match.groups()
    fixed, kilobyte, token, tokens, *rest = map(float, figures)
    first, first_kilobyte, sharing, holds, error = rest
    learnt = fixed, kilobyte, token, tokens, first, first_kilobyte, sharing, holds, error
    time = ServiceTime(*learnt, int(answers))
    return time if time.sharing <= 1 and time.holds and time.answers else None
