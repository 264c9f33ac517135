"""Wait for a slot of a local worker, in the queue of `router.state.queue`.

A slot that comes free is handed directly to the next request: it is never free between two, so no later request takes it.

Some workers finish requests that were cancelled. `LingeringSlots` keeps the slots of those until the worker is free, or for a
bounded time: another request would only wait at the worker, where this node cannot see it.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from registry.records import Service
from registry.task_group import BackgroundTasks
from router.errors import NoCapacity
from router.requests import Request
from router.select.candidates import Candidate
from router.settings import RouterSettings
from router.state.queue import Queues, Ticket

LONGEST_LINGER = 30.0
"""Seconds after which a slot is given back whatever its worker does."""

MAX_NOTES = 4_096
"""Cancelled requests that are noted before their slots are kept; beyond that, their slots come free at once."""

Free = Callable[[], Awaitable[object]]
"""Returns once a worker is free again."""


class LingeringSlots:
    """Slots of requests that dialects left early, kept while their workers go on with them. Lives on one event loop."""

    def __init__(self, tasks: BackgroundTasks, longest: float = LONGEST_LINGER) -> None:
        """`tasks` runs tasks until they end or the node does."""
        self._tasks = tasks
        self._longest = longest
        self.noted: defaultdict[Service, list[Free]] = defaultdict(list)
        self.kept_count = 0
        """Number of slots that are taken now by requests that no caller waits for."""

    def note_cancelled(self, service: Service, free: Free) -> None:
        """Note that a request was left before its end, and that its worker may go on with it until `free` returns."""
        if sum(map(len, self.noted.values())) < MAX_NOTES:
            self.noted[service].append(free)

    def keep_slot(self, service: Service, slots: "Slots") -> bool:
        """Return whether the slot of an ended request stays taken; if so, it is released later."""
        if service not in self.noted:
            return False
        free = self.noted[service].pop()
        if not self.noted[service]:
            del self.noted[service]
        self.kept_count += 1
        self._tasks.spawn(self._wait(service, free, slots))
        return True

    async def _wait(self, service: Service, free: Free, slots: "Slots") -> None:
        try:
            async with asyncio.timeout(self._longest):
                await free()
        except TimeoutError:
            pass  # it was long enough
        finally:
            self.kept_count -= 1
            slots.release(service)


class Slots(Protocol):
    """The slots of this machine's workers."""

    def release(self, service: Service) -> None:
        """Hand a slot to the next waiting request, or free it."""


class SlotWaits:
    """The requests that wait for a slot, on one event loop."""

    def __init__(self, settings: RouterSettings, slots: Slots) -> None:
        """`slots` takes back a slot that was handed to a request that has left."""
        self._queues = Queues(places=settings.queue)
        self._timeout = settings.queue_timeout
        self._slots = slots
        self.claims: dict[Ticket, asyncio.Future[Service]] = {}
        """The waiting requests. While there are none, `hand_over` does nothing."""
        self.record_slot_time = self._queues.record_slot_time

    def queue_lengths(self) -> Mapping[Service, int]:
        """Return how many requests wait for each worker; one that accepts several counts at each, a background one nowhere.

        Readers need to know how many requests come before a foreground one.
        """
        foreground = (ticket.accepts for ticket in self.claims if not ticket.background)
        return Counter(service for accepts in foreground for service in accepts)

    async def wait_for_slot(self, request: Request, full: Sequence[Candidate]) -> Service:
        """Wait until a slot of one of these workers is handed to this request, and return which; raise `NoCapacity`."""
        slots = sum(c.worker.capacity for c in full if c.worker)
        model, background = request.model, request.background
        expected = self._queues.expected_wait(model, slots=slots, background=background)
        if not request.waits and expected > request.patience:
            raise self._queues.refusal(model, slots=slots)
        accepts = frozenset(candidate.service for candidate in full)
        joined = self._queues.join(
            model, request.caller, accepts, slots=slots, background=background
        )
        if joined.displaced is not None:
            refusal = self._queues.refusal(request.model, slots=slots)
            displaced = self.claims.pop(joined.displaced)
            if not displaced.done():
                displaced.set_exception(refusal)
        claim: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
        self.claims[joined.ticket] = claim
        try:
            async with asyncio.timeout(self._timeout):
                return await claim
        except TimeoutError as error:
            if _was_granted(claim):
                return claim.result()
            refusal = self._queues.refusal(request.model, slots=slots)
            raise NoCapacity(
                f"no slot came free within {self._timeout:g} s", retry_after=refusal.retry_after
            ) from error
        except asyncio.CancelledError:
            if _was_granted(claim):
                # Its turn came at the very moment at which its caller left.
                self._slots.release(claim.result())
            raise
        finally:
            self._queues.leave(joined.ticket)
            self.claims.pop(joined.ticket, None)

    def hand_over(self, worker: Service, *, beyond: bool = False, background: bool = True) -> bool:
        """Hand a slot that would come free to the next waiting request; return whether there was one.

        `beyond` says that it is no slot: its request was one more than the worker takes at one time. `background` says whether
        a background request may have it.
        """
        while not beyond and (ticket := self._queues.pop_next(worker, background=background)):
            claim = self.claims.pop(ticket)
            # A cancelled request may not have had the time to leave the queue.
            if not claim.done():
                claim.set_result(worker)
                return True
        return False


def _was_granted(claim: asyncio.Future[Service]) -> bool:
    return claim.done() and not claim.cancelled() and claim.exception() is None
