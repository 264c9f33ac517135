"""The verdict of the soak test: what counts as growth, and what does not."""

import math
from dataclasses import replace
from itertools import cycle

import pytest

from bench.soak.gauges import (
    COUNTED,
    OF_A_STREAM,
    OF_A_WIRE,
    PER,
    SPARE,
    Gauge,
    judged,
    read,
    slope,
    told,
)
from tests.node.observe.test_metrics import SIZES, Metrics

REST = Gauge(0, 120.0, 50, 40, 60, 9, 0, 3)


def grown(per: float, *, requests: int = 200_000) -> list[Gauge]:
    """Return gauges of twenty looks while memory grows by `per` MiB in `PER` requests."""
    return [
        Gauge(n, 130.0 + per * n / PER, 50, 40, 60, 9, 0, 3)
        for n in range(0, requests + 1, requests // 20)
    ]


def test_a_gauge_is_read_from_the_metrics_of_a_node() -> None:
    gauge = read(Metrics().text(SIZES).decode(), 7)
    assert (gauge.requests, gauge.threads) == (7, SIZES.threads)
    assert {"http": gauge.tasks, "mesh": gauge.mesh_tasks} == SIZES.tasks
    assert gauge.doubled == SIZES.wires - SIZES.connections
    assert gauge.standing == SIZES.standing
    assert gauge.resident > 1
    assert gauge.descriptors > 1


@pytest.mark.parametrize("per", [-2.0, 0.0, 0.5, 3.0])
def test_the_slope_is_the_growth_of_memory(per: float) -> None:
    assert slope(grown(per)) == pytest.approx((per, 0.0))


def test_memory_that_caches_take_at_first_is_no_growth() -> None:
    gauges = [
        Gauge(0, 90.0, 50, 40, 60, 9, 0, 3),
        Gauge(10_000, 120.0, 50, 40, 60, 9, 0, 3),
        *grown(0.0)[2:],
    ]
    assert slope(gauges) == pytest.approx((0.0, 0.0))
    assert not judged("node", gauges)


def test_several_gauges_at_one_request_count_have_no_slope() -> None:
    gauges = [REST, *[Gauge(2_000, 125.0 + n, 50, 40, 60, 9, 0, 3) for n in range(5)]]
    assert slope(gauges) == (0.0, math.inf)


def test_growth_is_a_failure_unless_it_may_be_noise() -> None:
    assert not judged("node", grown(0.9))
    (wrong,) = judged("node", grown(3.0))
    assert wrong == "node: memory grows by +3.00 ± 0.00 MiB in 50,000 requests"
    noise = cycle((8.0, -8.0, 0.0))
    noisy = [replace(g, resident=g.resident + next(noise)) for g in grown(3.0)]
    assert slope(noisy)[1] > 1
    assert not judged("node", noisy)
    assert told(noisy).endswith("(too few readings to tell)")
    noise = cycle((2.0, -2.0, 0.0))
    assert judged("node", [replace(g, resident=g.resident + next(noise)) for g in grown(3.0)])


@pytest.mark.parametrize("what", COUNTED)
def test_counts_at_rest_may_differ_by_the_allowance_and_no_more(what: str) -> None:
    more = {name: getattr(REST, name) for name in COUNTED}
    few, many = more | {what: more[what] + SPARE}, more | {what: more[what] + SPARE + 1}
    assert not judged("node", [REST, Gauge(1, 120.0, **few, doubled=0, standing=3)])
    (wrong,) = judged("node", [REST, Gauge(1, 120.0, **many, doubled=0, standing=3)])
    assert f"{SPARE + 1} more {what.replace('_', ' ')}" in wrong


def test_a_second_connection_to_one_peer_may_have_tasks_of_its_own() -> None:
    limit = REST.mesh_tasks + SPARE + 2 * OF_A_WIRE
    few = replace(REST, requests=1, doubled=2, mesh_tasks=limit)
    assert not judged("node", [REST, few])
    assert judged("node", [REST, replace(few, mesh_tasks=limit + 1)])
    assert judged("node", [replace(REST, doubled=2), few])


def test_standing_streams_may_have_tasks_of_their_own() -> None:
    limit = REST.mesh_tasks + SPARE + 2 * OF_A_STREAM
    few = replace(REST, requests=1, standing=REST.standing + 2, mesh_tasks=limit)
    assert not judged("node", [REST, few])
    assert judged("node", [REST, replace(few, mesh_tasks=limit + 1)])
    assert not judged("node", [replace(REST, standing=9), replace(few, mesh_tasks=limit - 2)])
