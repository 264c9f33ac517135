"""Sums over the processes of a node."""

from collections import Counter

from node.connection_limits import ConnectionCounts
from node.observe.aggregate import Aggregate, together
from node.observe.counters import Counts, LabelledCount
from node.observe.log_writer import LogLine, RecentLines
from node.observe.metrics import Metrics
from node.observe.samples import LoopLag
from node.processes.protocol import LoadReport
from registry.records import Load, Service
from router.workers import Worker
from tests.router.test_dispatch import World
from tests.router.world import links

ONE, TWO = Service("p", "one"), Service("p", "two")


class Sibling:
    def __init__(self, state: LoadReport, *, answers: bool = True) -> None:
        self.state = state
        self.answers = answers
        self.asked = 0

    async def ask(self) -> LoadReport:
        self.asked += 1
        if not self.answers:
            raise TimeoutError
        return self.state

    async def lines_since(self, time: float) -> tuple[LogLine, ...]:
        if not self.answers:
            raise TimeoutError
        return tuple(line for line in LINES if line.time >= time)


LINES = (LogLine(1.5, "INFO", "x", "older", 7, 1), LogLine(3.5, "INFO", "x", "newer", 7, 2))


def report(served: int, in_flight: int, lag: float = 0.0, busy: float = 0.0) -> LoadReport:
    requests, routed = (LabelledCount("chat", "200", served),), (("held", in_flight + 1),)
    events = (("evicted_by_all", served),)
    counts = Counts(
        requests, routed=routed, connection_events=events, connections=2, in_flight=in_flight
    )
    return LoadReport(1, in_flight, ((ONE, Load(in_flight)),), counts, lag, busy)


async def test_the_sums_of_a_node_with_one_process_are_those_of_that_process() -> None:
    async with links() as peer_links:
        aggregate = Aggregate(World(peer_links).router, Metrics(), LoopLag(), RecentLines())
        assert (aggregate.processes, await aggregate.at_work(), aggregate.busy_loads()) == (
            1,
            0,
            {},
        )
        assert aggregate.loop_lag(0.0) == 0.0


async def test_several_processes_are_added_up_and_one_that_ended_still_counts() -> None:
    async with links() as peer_links:
        aggregate = Aggregate(World(peer_links).router, Metrics(), LoopLag(), RecentLines())
        one, two = Sibling(report(3, 1)), Sibling(report(4, 2, lag=0.5, busy=0.25), answers=False)
        aggregate.join(one)
        aggregate.join(two)
        assert (aggregate.processes, await aggregate.at_work()) == (3, 3)
        assert (one.asked, two.asked) == (1, 1)
        assert aggregate.busy_loads() == {ONE: Load(3)}
        assert aggregate.loop_lag(0.0) == 0.5
        assert aggregate.loop_busy(0.0) == 0.25
        worker = Worker(ONE, "http://127.0.0.1:1", capacity=5)
        assert aggregate.load_of(worker) == Load(3, slots=5)
        assert aggregate.connections() == ConnectionCounts(4, Counter(evicted_by_all=7))
        aggregate.part(two)
        past, present = aggregate.others()
        assert (past.requests, past.in_flight) == ((LabelledCount("chat", "200", 4),), 0)
        assert present == one.state.counts
        assert aggregate.in_flight() == 1
        assert aggregate.connections() == ConnectionCounts(2, Counter(evicted_by_all=7))
        assert aggregate.routed()["held"] == 5


async def test_lines_of_all_processes_are_in_order_without_those_of_a_process_that_is_silent() -> (
    None
):
    recent = RecentLines()
    recent.add(
        2.0,
        "INFO",
        "x",
        "mine",
    )
    async with links() as peer_links:
        aggregate = Aggregate(World(peer_links).router, Metrics(), LoopLag(), recent)
        aggregate.join(Sibling(report(0, 0)))
        aggregate.join(Sibling(report(0, 0), answers=False))
        assert [line.message for line in await aggregate.lines_since(0.0)] == [
            "older",
            "mine",
            "newer",
        ]
        assert [line.message for line in await aggregate.lines_since(3.0)] == ["newer"]


def test_loads_of_one_worker_are_added_and_the_newest_first_byte_counts() -> None:
    mine = {ONE: Load(1, 2, slots=4, rate=1.5, first=0.1), TWO: Load(1)}
    theirs = {ONE: Load(2, 1, slots=4, rate=2.0, first=None)}
    assert together([mine, theirs]) == {ONE: Load(3, 3, slots=4, rate=3.5, first=0.1), TWO: Load(1)}
