"""Figures that workers report: how often they are queried, how long answers are cached, and which are invalid."""

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from registry.records import Service
from router.dialects import Dialect
from router.errors import WorkerFailed
from router.worker_metrics import (
    AGAIN,
    FRESH,
    Figure,
    Figures,
    FigureValues,
    parse_metrics,
    valid_figures,
)
from router.workers import Worker

ONE, TWO = (Worker(Service("p", name), "http://w", dialect="tells") for name in ("one", "two"))
NAMES = {"tgi_queue_size": Figure.QUEUED, "tgi_batch_current_size": Figure.RUNNING}


class Tells:
    """A dialect whose workers return the given figures."""

    def __init__(self) -> None:
        self.told: FigureValues | None = {Figure.QUEUED: 3}
        self.asked: list[Worker] = []

    async def figures(self, worker: Worker) -> FigureValues | None:
        self.asked.append(worker)
        await asyncio.sleep(0)
        return self.told


class Lacking(dict[str, object]):
    """Dialects of which one needs a package that is not installed."""

    def __getitem__(self, name: str) -> object:
        if name == "lacking":
            raise WorkerFailed("needs grpc")
        return super().__getitem__(name)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tells() -> Tells:
    return Tells()


@pytest.fixture
def figures(tells: Tells, clock: Clock) -> Figures:
    dialects = Lacking(tells=tells, mute=object())
    return Figures(cast("Mapping[str, Dialect]", dialects), clock)


async def test_frequent_readers_get_cached_figures(
    figures: Figures, tells: Tells, clock: Clock
) -> None:
    expected = {ONE.service: {Figure.QUEUED: 3}}
    assert await figures.query([ONE]) == expected
    clock.now += FRESH - 0.1
    tells.told = {Figure.QUEUED: 4}
    assert await figures.query([ONE]) == expected
    clock.now += 0.2
    assert await figures.query([ONE]) == {ONE.service: {Figure.QUEUED: 4}}
    assert tells.asked == [ONE, ONE]


async def test_concurrent_readers_share_one_query(figures: Figures, tells: Tells) -> None:
    answers = await asyncio.gather(*(figures.query([ONE, TWO]) for _ in range(20)))
    assert len(tells.asked) == 2
    assert all(set(answer) == {ONE.service, TWO.service} for answer in answers)


async def test_a_worker_without_figures_is_queried_again_much_later(
    figures: Figures, tells: Tells, clock: Clock
) -> None:
    tells.told = None
    assert await figures.query([ONE]) == {}
    clock.now += AGAIN - 1
    assert await figures.query([ONE]) == {}
    assert tells.asked == [ONE]
    clock.now += 2
    tells.told = {Figure.RUNNING: 1}
    assert await figures.query([ONE]) == {ONE.service: {Figure.RUNNING: 1}}


async def test_a_worker_that_does_not_answer_has_no_figures_and_is_queried_again_soon(
    figures: Figures, tells: Tells, clock: Clock
) -> None:
    tells.told = {}
    assert await figures.query([ONE, TWO]) == {}
    clock.now += FRESH
    await figures.query([ONE, TWO])
    assert tells.asked == [ONE, TWO] * 2


async def test_a_worker_that_is_gone_is_forgotten(figures: Figures, tells: Tells) -> None:
    await figures.query([ONE, TWO])
    assert set(await figures.query([TWO])) == {TWO.service}
    await figures.query([ONE, TWO])
    assert tells.asked == [ONE, TWO, ONE]


async def test_dialects_without_figures_are_skipped(figures: Figures) -> None:
    workers = [
        Worker(Service("p", name), "http://w", dialect=name)
        for name in ("mute", "lacking", "absent")
    ]
    assert await figures.query(workers) == {}


def test_figures_are_read_by_their_names() -> None:
    text = b"""# HELP tgi_queue_size how many wait
# TYPE tgi_queue_size gauge
tgi_queue_size 3
tgi_queue_size_max 9
tgi_batch_current_size{model="a b"} 2
tgi_batch_current_size{model="c"} 0.5 1700000000
other 7
"""
    assert parse_metrics(text, NAMES) == {Figure.QUEUED: 3, Figure.RUNNING: 2.5}


@pytest.mark.parametrize(
    "said", [b"", b"<html>", b"tgi_queue_size", b"tgi_queue_size many", b"x tgi_queue_size 3",
             b"tgi_queue_size NaN", b"tgi_queue_size +Inf", b"tgi_queue_size -1", b"tgi_queue_size " + b"9" * 400]
)  # fmt: skip
def test_invalid_metric_lines_are_ignored(said: bytes) -> None:
    parsed = parse_metrics(said, NAMES)
    assert not parsed or said.endswith(b"9" * 40)


def test_figures_are_finite_and_not_negative() -> None:
    reported = {Figure.QUEUED: -1.0, Figure.RUNNING: float("nan"), Figure.SPEED: 0.0}
    assert valid_figures(reported) == {Figure.SPEED: 0.0}
