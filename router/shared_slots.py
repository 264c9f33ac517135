"""Slots shared by the processes of one node: one process lends them to the others.

So a worker with a limit never has more requests than that, whichever processes they pass: a slot is taken before an attempt and
given back after it, and requests that wait for one wait in the lender's queues.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from registry.records import PeerId, Service, display_name
from router.errors import NobodyServes, WorkerBusy
from router.requests import Request
from router.select.candidates import Candidate
from router.workers import Worker

if TYPE_CHECKING:
    from router.ledger import Ledger


class Lender(Protocol):
    """Giver of slots. The implementation takes back a slot that was granted to a request that has left meanwhile."""

    async def take_slot(self, request: Request, services: Sequence[Service]) -> Service | None:
        """Take a slot of the first of these workers that has one for a request."""

    async def wait_for_slot(self, request: Request, services: Sequence[Service]) -> Service:
        """Wait until a slot of one of these workers is handed to a request; raise `NoCapacity` or `NobodyServes`."""

    def give_back(self, service: Service) -> None:
        """Give a slot back."""

    def record_slot_time(self, model: str, seconds: float) -> None:
        """Report for how many seconds a slot was taken by a request for a model."""


class BorrowedSlots:
    """The borrower's end: it replaces the `router.slot_wait.SlotWaits` of a process that has slots of its own."""

    def __init__(self, lender: Lender, ledger: "Ledger") -> None:
        """`ledger` is this process's own, and counts each granted slot."""
        self._lender = lender
        self._ledger = ledger
        self.held: Counter[Service] = Counter()
        """Number of slots that are borrowed now, by worker."""
        self.claims = self.held
        """Workers whose slots go back to the lender. While there are none, `hand_over` does nothing."""
        self.record_slot_time = lender.record_slot_time

    async def take_first_slot(
        self, request: Request, ordered: list[Candidate]
    ) -> tuple[list[Candidate], bool]:
        """Take a slot for the first candidate that needs one; return which to try, and whether the first's slot is taken.

        Full candidates are left out. None are left if all are full.
        """
        bounded = list(takewhile(needs_slot, ordered))
        if not bounded:
            return ordered, False
        service = await self._lender.take_slot(
            request, [candidate.service for candidate in bounded]
        )
        if service is None:
            return ordered[len(bounded) :], False
        self._count_granted(service)
        index = next(i for i, candidate in enumerate(bounded) if candidate.service == service)
        return ordered[index:], True

    async def take_slot(self, request: Request, candidate: Candidate) -> bool:
        """Take a slot if a candidate needs one, and return whether it did; raise `WorkerBusy` if it is full."""
        remaining, holds_slot = await self.take_first_slot(request, [candidate])
        if not remaining:
            raise WorkerBusy("all slots of this worker are in use", retry_after=1.0)
        return holds_slot

    async def wait_for_slot(self, request: Request, full: Sequence[Candidate]) -> Service:
        """Wait for a slot as `SlotWaits.wait_for_slot` does."""
        service = await self._lender.wait_for_slot(
            request, [candidate.service for candidate in full]
        )
        self._count_granted(service)
        return service

    def hand_over(self, worker: Service, *, beyond: bool, background: bool = True) -> bool:  # noqa: ARG002
        """Give a slot back, and return `False`: the lender knows the next request."""
        if self.held[worker]:
            self.held[worker] -= 1
            if not self.held[worker]:
                del self.held[worker]
            self._lender.give_back(worker)
        return False

    def queue_lengths(self) -> Mapping[Service, int]:
        """Return an empty mapping: no request waits here."""
        return {}

    def _count_granted(self, service: Service) -> None:
        self.held[service] += 1
        self._ledger.count_slot(service)


class LentSlots:
    """The lender, on the ledger of the process that gives the slots out."""

    def __init__(self, ledger: "Ledger", *, own: PeerId) -> None:
        self._ledger = ledger
        self._own = own

    async def take_slot(self, request: Request, services: Sequence[Service]) -> Service | None:
        """Take a slot of the first of these workers that has one for a request."""
        return self.lend(services, background=request.background)

    def lend(self, services: Sequence[Service], *, background: bool) -> Service | None:
        """Do what `take_slot` does, which needs no waiting here."""
        for service in services:
            worker = self._worker(service)
            if worker is None:
                continue
            taken = self._ledger.in_flight[self._own, service]
            if background:
                taken += self._ledger.reserved_slots(worker)
            if not 0 < worker.capacity <= taken:
                self._ledger.count_slot(service)
                return self._record_lent(service, background=background)
        return None

    async def wait_for_slot(self, request: Request, services: Sequence[Service]) -> Service:
        """Wait until a slot of one of these workers is handed to a request; raise `NoCapacity` or `NobodyServes`."""
        # One may have come free since the borrower was told that there is none.
        service = self.lend(services, background=request.background)
        if service is not None:
            return service
        workers = [(service, self._worker(service)) for service in services]
        full = [Candidate(self._own, s, worker) for s, worker in workers if worker is not None]
        if not full:
            raise NobodyServes(f"{display_name(request.model)} was unregistered")
        granted = await self._ledger.waiting.wait_for_slot(request, full)
        return self._record_lent(granted, background=request.background)

    def give_back(self, service: Service) -> None:
        """Hand a slot to the next waiting request, or free it."""
        self._ledger.release(service)

    def record_slot_time(self, model: str, seconds: float) -> None:
        """Learn for how many seconds a slot was taken by a request for a model."""
        self._ledger.waiting.record_slot_time(model, seconds)

    def _record_lent(self, service: Service, *, background: bool) -> Service:
        """Return the worker whose slot is lent. Only the borrower sees the answer, so a foreground request is noted now."""
        if not background:
            self._ledger.record_foreground_request(service)
        return service

    def _worker(self, service: Service) -> Worker | None:
        worker = self._ledger.workers().by_key.get(service.key)
        return worker if worker is not None and worker.service == service else None


def needs_slot(candidate: Candidate) -> bool:
    """Return whether a candidate is a worker of this machine with a bound on its requests at one time."""
    return candidate.worker is not None and candidate.worker.capacity > 0
