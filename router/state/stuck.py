"""Detection of a stuck worker, as opposed to a busy one, by its usual times. No I/O, time is an argument.

A worker may compute for minutes before its first byte, and some answer nothing else meanwhile. So a silent worker is sent a small
probe, and a missing answer counts only from a worker that is known to answer while it works, or after far more than its usual
time.
"""

from dataclasses import dataclass

LEARN_AFTER = 0.5
LEARN_AGAIN = 60.0
"""Seconds of waiting after which a probe finds out whether a worker answers while it works, and until the next such probe."""

PATIENCE = 2.0
PATIENCE_FACTOR = 4.0
"""Seconds without a byte, or times its usual wait if longer, after which a worker with waiting requests is probed."""

SURE = 5.0
SURE_FACTOR = 10.0
"""The same, after which a worker counts as stopped even if it never answered while it worked."""

PROBE_AGAIN = 1.0
LONGEST_PAUSE = 4.0
"""Seconds between two probes of one worker; for a stopped one doubled each time, up to `LONGEST_PAUSE`."""

MAX_WORKERS = 4_096
"""Addresses that are remembered; beyond that those without waiting requests are forgotten."""

_WEIGHT = 0.2  # weight of the newest wait in the usual one


@dataclass(slots=True)
class WorkerActivity:
    """State of one worker. `waiting` requests wait for their first bytes, and keep it from being forgotten."""

    waiting: int = 0
    last_activity: float = 0.0
    usual: float = 0.0
    answers_while_busy: bool = False
    probed_at: float = float("-inf")
    probing: bool = False
    silent: bool = False
    pause: float = PROBE_AGAIN

    def record_first_byte(self, seconds: float, now: float) -> None:
        """Note that a wait ended with a first byte after so many seconds."""
        self.waiting -= 1
        self.usual += _WEIGHT * (seconds - self.usual) if self.usual else seconds
        self.last_activity = now
        if self.silent:
            self.silent, self.pause = False, PROBE_AGAIN

    def record_no_answer(self) -> None:
        """Note that a wait ended without a first byte."""
        self.waiting -= 1


class StuckWorkers:
    """States of the workers that were asked, by address."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerActivity] = {}

    def record_request(self, address: str, now: float) -> WorkerActivity:
        """Note that a request waits for its first byte; return the worker's state, which has to be told how that ends."""
        worker = self._workers.get(address) or self._remember(address)
        if not worker.waiting:
            worker.last_activity = now
        worker.waiting += 1
        return worker

    def claim_probe(self, address: str, now: float) -> bool:
        """Return whether it is time to probe a worker, and note it as probed."""
        worker = self._workers.get(address)
        if worker is None or worker.probing:
            return False
        quiet = now - worker.last_activity
        if worker.silent:
            due = now - worker.probed_at >= worker.pause
        elif not worker.waiting:
            due = False
        elif quiet >= _longer(PATIENCE, PATIENCE_FACTOR, worker):
            due = now - worker.probed_at >= PROBE_AGAIN
        else:
            due = (
                not worker.answers_while_busy
                and quiet >= LEARN_AFTER
                and now - worker.probed_at >= LEARN_AGAIN
            )
        if due:
            worker.probed_at, worker.probing = now, True
        return due

    def record_probe(self, address: str, now: float, *, answered: bool) -> None:
        """Note whether a probe was answered."""
        worker = self._workers.get(address)
        if worker is None:
            return
        worker.probing = False
        if answered:
            worker.answers_while_busy = worker.answers_while_busy or worker.waiting > 0
            worker.silent, worker.pause = False, PROBE_AGAIN
        elif worker.silent:
            worker.pause = min(2 * worker.pause, LONGEST_PAUSE)
        elif worker.waiting:
            quiet = now - worker.last_activity
            stopped = worker.answers_while_busy and quiet >= _longer(
                PATIENCE, PATIENCE_FACTOR, worker
            )
            worker.silent = stopped or quiet >= _longer(SURE, SURE_FACTOR, worker)

    def is_silent(self, address: str) -> bool:
        """Return whether a worker has stopped."""
        worker = self._workers.get(address)
        return worker is not None and worker.silent

    def _remember(self, address: str) -> WorkerActivity:
        if len(self._workers) >= MAX_WORKERS:
            self._workers = {a: worker for a, worker in self._workers.items() if worker.waiting}
        worker = self._workers[address] = WorkerActivity()
        return worker


def _longer(seconds: float, factor: float, worker: WorkerActivity) -> float:
    return max(seconds, factor * worker.usual)
