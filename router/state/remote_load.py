"""Load of other nodes as they report it: how old it is, and how much of it is ours.

Reports are hints that may be wrong: they come late, get lost, and each node speaks for itself. They change which replica is
tried first, nothing else.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Generic, TypeVar

from registry.records import Load, PeerId, Service
from registry.values import value_class
from registry.wire import MAX_COUNT, MAX_FIGURE

HALF_LIFE = 10.0
"""Seconds in which a report loses half its weight. In `python -m bench.routing` requests wait longer with 2 s, hardly with 30."""

MISSED = 3
"""Repetitions of a report that may get lost before the load counts as ended."""

MAX_NODES = 1_024
"""Nodes whose reports are held; beyond that the one heard longest ago is evicted. In a larger mesh it is outdated by then."""

LOAD_INTERVAL = 0.01
"""Minimum seconds between two reports of one worker's load to one node."""

SERVICE_TIME_INTERVAL = 0.1
"""The same for the service time of a worker, which changes little by little."""

MAX_REPORT_TIMES = 4_096
"""Reports to nodes about workers whose time is remembered; beyond that all are forgotten, and sent again."""

MAX_REPLICAS = 64
"""Replicas of one node whose reports are held; the one heard longest ago is evicted."""

_MAX_CHARACTERS = 100
_WRITTEN = re.compile(
    r"in_flight=(\d{1,5});queued=(\d{1,5});slots=(\d{1,5});rate=(\d{1,7}(?:\.\d{1,3})?)"
    r"(?:;first=(\d{1,7}(?:\.\d{1,3})?))?",
    re.ASCII,
)


@value_class
class Report:
    """Load of one replica as its node said at time `at`. `ours` is how many of our requests were in flight there then."""

    load: Load
    ours: int
    at: float


@value_class
class Reported:
    """A report as of now: `age` in seconds."""

    load: Load
    ours: int
    age: float

    @property
    def requests_of_others(self) -> float:
        """Estimated number of requests there now that this node did not send.

        The reported count includes ours, as many as were there when the report came; this node knows better how many are there
        now. The rest counts less the older it is, half every `HALF_LIFE`, so that an old report is as good as none.
        """
        return max(0, self.load.waiting - self.ours) * math.exp2(-self.age / HALF_LIFE)

    def current_load(self, ours: int, repeated: float) -> Load:
        """Return the load now as far as it is known, for people; `ours` is how many requests of this node are there now.

        A node repeats its load every `repeated` seconds while it has requests. The end of a short one is not reported, and any
        report may get lost; after `MISSED` of them, the requests of others have ended.
        """
        load, outdated = self.load, self.age > MISSED * repeated
        waiting = ours if outdated else max(0, load.waiting - self.ours) + ours
        in_flight = min(waiting, load.slots) if load.slots else waiting
        rate = 0.0 if outdated else load.rate
        return Load(in_flight, waiting - in_flight, load.slots, rate, load.first)


Key = TypeVar("Key")
Statement = TypeVar("Statement")


class NewestOfNodes(Generic[Key, Statement]):
    """The newest statements of nodes about their replicas, by node and by subject."""

    def __init__(self) -> None:
        self._by_node: dict[PeerId, dict[Key, Statement]] = {}

    def record(self, node: PeerId, key: Key, statement: Statement) -> None:
        """Take in what a node says."""
        of_node = self._by_node.pop(node, None)
        if of_node is None:
            of_node = {}
            if len(self._by_node) >= MAX_NODES:
                del self._by_node[next(iter(self._by_node))]
        if of_node.pop(key, None) is None and len(of_node) >= MAX_REPLICAS:
            del of_node[next(iter(of_node))]
        of_node[key] = statement
        # A dictionary keeps the order of insertion, which here is that of hearing.
        self._by_node[node] = of_node

    def forget(self, node: PeerId) -> None:
        """Forget what a node said: it is lost, or has left."""
        self._by_node.pop(node, None)

    def newest(self, node: PeerId, key: Key) -> Statement | None:
        """Return what a node said last about a subject, `None` where it said nothing."""
        of_node = self._by_node.get(node)
        return of_node.get(key) if of_node else None

    def of_node(self, node: PeerId) -> Mapping[Key, Statement]:
        """Return all that a node said last."""
        return self._by_node.get(node, {})


class Reports:
    """The newest report of each replica of other nodes."""

    def __init__(self) -> None:
        self._newest = NewestOfNodes[Service, Report]()
        self.record = self._newest.record
        self.forget = self._newest.forget

    def newest(self, node: PeerId, service: Service, now: float) -> Reported | None:
        """Return the newest report of a replica, `None` where there is none."""
        report = self._newest.newest(node, service)
        return None if report is None else Reported(report.load, report.ours, now - report.at)

    def of_node(self, node: PeerId, now: float) -> Iterator[tuple[Service, Reported]]:
        """Iterate over the newest reports of a node's replicas."""
        for service, report in self._newest.of_node(node).items():
            yield service, Reported(report.load, report.ours, now - report.at)


class ReportTimes:
    """Times of this node's last reports to other nodes on its workers, so that not every answer repeats them."""

    def __init__(self) -> None:
        self._last_times: dict[tuple[str, str, str], float] = {}

    def is_due(
        self, node: str, worker: str, topic: str, now: float, pause: float = LOAD_INTERVAL
    ) -> bool:
        """Return whether a report on a worker is due at a node, `pause` seconds after the last; if so, count it as sent."""
        key = node, worker, topic
        last = self._last_times.get(key)
        if last is not None and now - last < pause:
            return False
        if last is None and len(self._last_times) >= MAX_REPORT_TIMES:
            self._last_times.clear()
        self._last_times[key] = now
        return True


def format_load(load: Load) -> str:
    """Write a load as the value of the header `LOAD`."""
    in_flight, queued = min(load.in_flight, MAX_COUNT), min(load.queued, MAX_COUNT)
    slots, rate = min(load.slots, MAX_COUNT), _decimal(load.rate, 10)
    text = f"in_flight={in_flight};queued={queued};slots={slots};rate={rate}"
    first = load.first
    return text if first is None else f"{text};first={_decimal(first, 1_000)}"


def _decimal(figure: float, scale: int) -> str:
    """Write a figure with as many decimals as `scale` has zeros, in a third of the time that formatting takes."""
    number = int(min(figure, MAX_FIGURE) * scale + 0.5)
    return f"{number // scale}.{str(scale + number % scale)[1:]}"


def parse_load(text: str) -> Load | None:
    """Read the value of the header `LOAD`; return `None` if it is malformed or out of bounds."""
    return _read(text) if len(text) <= _MAX_CHARACTERS else None


@lru_cache(maxsize=1_024)
def _read(text: str) -> Load | None:
    match = _WRITTEN.fullmatch(text)
    if match is None:
        return None
    in_flight, queued, slots = map(int, match.group(1, 2, 3))
    rate, first = float(match[4]), None if match[5] is None else float(match[5])
    if max(in_flight, queued, slots) > MAX_COUNT or max(rate, first or 0.0) > MAX_FIGURE:
        return None
    return Load(in_flight, queued, slots, rate, first)
