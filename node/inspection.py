"""Inspection of local workers: what they report about themselves.

Workers are queried when they are registered, and again whenever their answer may have changed.

The answer of one process holds for all models that it was registered with. A process that did not answer is queried with
exponential backoff; the others are queried from time to time, since a worker may be restarted with other settings.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from node.agent import Agent, Reports
from registry.clock import Clock
from router.errors import WorkerError
from router.worker_description import WorkerDescription
from router.workers import Worker, Workers

ASK_SECONDS = 1.0
"""Seconds for which a registration waits for its workers' reports."""

AT_ONCE = 16
"""Processes that are queried concurrently; the others wait for their turn."""

AGAIN = 600.0
"""Seconds after which a worker that answered is queried again."""

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""First and longest backoff, in seconds, for a worker that did not answer; it doubles each time."""

WATCH = 15.0
"""Seconds between two probes of workers that get no requests meanwhile."""

_GRACE = 0.5
"""Seconds that a round of probes may take beyond the time limit of a single worker."""

_NOTHING = WorkerDescription()

Process = tuple[str, str, tuple[tuple[str, str], ...]]


def process_of(worker: Worker) -> Process:
    """Return the process behind a worker, which is queried once for all its models."""
    return worker.dialect, worker.api, worker.headers


@dataclass(frozen=True, slots=True)
class _Turn:
    due: float
    pause: float


class InspectionSchedule:
    """Schedule of the processes to query. No clock: `now` is an argument."""

    def __init__(self) -> None:
        self._schedule: dict[Process, _Turn] = {}

    def due_processes(self, processes: Iterable[Process], now: float) -> list[Process]:
        """Return those of `processes` that are due at `now`, and forget all other processes."""
        self._schedule = {
            process: self._schedule.get(process, _Turn(now, FIRST_PAUSE)) for process in processes
        }
        return [process for process, turn in self._schedule.items() if turn.due <= now]

    def note_queried(self, process: Process, now: float, *, answered: bool) -> None:
        """Note that a process was queried, and whether it answered."""
        if answered:
            self._schedule[process] = _Turn(now + AGAIN, FIRST_PAUSE)
            return
        pause = self._schedule[process].pause if process in self._schedule else FIRST_PAUSE
        self._schedule[process] = _Turn(now + pause, min(2 * pause, LONGEST_PAUSE))

    def seconds_until_due(self, now: float) -> float:
        """Return the seconds until the next is due, at most `AGAIN`."""
        return max(
            0.0, min((turn.due for turn in self._schedule.values()), default=now + AGAIN) - now
        )


class Inspector(Protocol):
    """The part of the router that asks workers. Raises a `WorkerError` where that is not possible."""

    async def describe(self, worker: Worker) -> WorkerDescription | None:
        """Return what a worker reports of itself, `None` if it did not answer."""

    async def check_alive(self, worker: Worker) -> bool:
        """Return whether a worker answers at all."""


class Inspection:
    """Background task that queries the workers. Lives on one event loop."""

    def __init__(
        self, agent: Agent, inspector: Inspector, now: Clock, *, within: float = ASK_SECONDS
    ) -> None:
        """Query each worker through `inspector`; a round ends after `within` seconds."""
        self._agent = agent
        self._inspector = inspector
        self._now = now
        self._within = within
        self._schedule = InspectionSchedule()
        self._changed = asyncio.Event()
        agent.on_change(self._wake)

    async def query_reports(self, workers: Iterable[Worker]) -> Mapping[Worker, WorkerDescription]:
        """Return the reports of these workers that arrive in time, without those of workers that did not answer.

        Processes that were not queried in time stay due.
        """
        descriptions: dict[Process, WorkerDescription] = {}
        queried: set[Process] = set()
        workers = [*workers]

        async def one(process: Process, worker: Worker) -> None:
            queried.add(process)
            if description := await self._inspector.describe(worker):
                descriptions[process] = description

        await _of_each(workers, one, self._within)
        now = self._now()
        for process in queried:
            self._schedule.note_queried(process, now, answered=process in descriptions)
        return {w: descriptions[process_of(w)] for w in workers if process_of(w) in descriptions}

    async def run(self) -> None:
        """Query the processes that are due, forever."""
        while True:
            self._changed.clear()
            registered = self._agent.registered
            due = {*self._schedule.due_processes(map(process_of, registered), self._now())}
            if due:
                await self._agent.update_reports(
                    await self.query_reports([w for w in registered if process_of(w) in due])
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(self._schedule.seconds_until_due(self._now())):
                    await self._changed.wait()

    async def query_and_probe(self, workers: Sequence[Worker]) -> tuple[Reports, list[Worker]]:
        """Return the reports of these workers that arrive in time, and the workers that do not answer at all."""
        reports = await self.query_reports(workers)
        # A worker without a report may have a protocol that has none.
        return reports, await self.find_silent(
            w for w in workers if reports.get(w, _NOTHING) == _NOTHING
        )

    async def find_silent(self, workers: Iterable[Worker]) -> list[Worker]:
        """Return those of these workers that do not answer, as far as that is known in time."""
        answers: dict[Process, bool] = {}
        workers = [*workers]

        async def one(process: Process, worker: Worker) -> None:
            answers[process] = False
            answers[process] = await self._inspector.check_alive(worker)

        await _of_each(workers, one, self._within + _GRACE)
        return [w for w in workers if answers.get(process_of(w)) is False]

    async def watch(self) -> None:
        """Probe the workers every `WATCH` seconds, forever."""
        while True:
            await self.find_silent(self._agent.registered)
            await asyncio.sleep(WATCH)

    async def _wake(self, _: Workers) -> None:
        self._changed.set()


async def _of_each(
    workers: Sequence[Worker], work: Callable[[Process, Worker], Awaitable[None]], within: float
) -> None:
    """Do `work` with the first worker of each process, `AT_ONCE` of them concurrently, for at most `within` seconds."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(process: Process, worker: Worker) -> None:
        async with slots:
            with suppress(WorkerError):
                await work(process, worker)

    with suppress(TimeoutError):
        async with asyncio.timeout(within), asyncio.TaskGroup() as group:
            for process, worker in {process_of(w): w for w in reversed(workers)}.items():
                group.create_task(one(process, worker))
