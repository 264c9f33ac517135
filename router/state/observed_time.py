"""Service time of another node's replica as this node observes it, and whether its node's reports agree.

A node that reports more speed or room than it has would get nearly all requests. So this compares the seconds of each answer
with the reported ones, as outlier detection does: if most of the last answers took far longer, what was observed counts instead.
"""

from collections import deque

from router.state.estimator import JUDGED, Estimator
from router.state.remote_load import Reported
from router.state.service_time import NOTHING_BEFORE, ReadPrefix, ServiceTime

TOLERATED = 3.0
"""Times as long as reported that an answer may take: load changes meanwhile, and reports of it come late."""

NETWORK_SECONDS = 0.1
"""Seconds beyond those reported that the way there and back may take."""


class ObservedTime:
    """What this node observed of one replica's answers to one kind of request."""

    __slots__ = ("_estimator", "_late", "contradicts", "looked")

    def __init__(self) -> None:
        # Its slots are known from its reports alone, so they are left out.
        self._estimator = Estimator(shares=True)
        self._late: deque[bool] = deque(maxlen=JUDGED)
        self.contradicts = False
        """Whether most of the last answers took far longer than reported."""
        self.looked = 0.0
        """When an answer was last evaluated; set by the caller."""

    def take(
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
        self._estimator.take(
            seconds, kilobytes=kilobytes, tokens=tokens, concurrency=max(1, ours), before=before
        )
        if time is not None:
            most = seconds_by_report(time, report, ours, kilobytes=kilobytes, tokens=tokens)
            self._late.append(seconds > TOLERATED * (most + NETWORK_SECONDS))
            self.contradicts = 2 * self._late.count(True) > JUDGED

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
    there, slots = float(max(1, ours)), 0
    if report is not None:
        there, slots = there + report.others, report.load.slots
    alone = time.alone(kilobytes=kilobytes, tokens=tokens)
    at_work = min(there, slots) if slots else there
    slowed: float = at_work**time.sharing
    return alone * (slowed + (max(0.0, there / slots - 1) if slots else 0.0))
