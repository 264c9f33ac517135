"""Wait for a slot of this machine's workers: in a place of `router.state.queue`, until a slot is handed to it.

A slot that comes free goes from hand to hand: it is never free between two requests, so nobody who comes later takes it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from registry.records import Service
from router.errors import NoCapacity
from router.requests import Request
from router.select.candidates import Candidate
from router.settings import RouterSettings
from router.state.queue import Queues, Ticket


class Waiting:
    """The requests that wait, on one event loop."""

    def __init__(self, settings: RouterSettings, release: Callable[[Service], None]) -> None:
        """`release` takes back a slot that was handed to somebody who has left."""
        self._queues = Queues(places=settings.queue)
        self._patience = settings.queue_timeout
        self._release = release
        self._turns: dict[Ticket, asyncio.Future[Service]] = {}

    def lengths(self) -> Mapping[Service, int]:
        """Return how many wait for each worker; one that would do with several counts at each."""
        return Counter(service for ticket in self._turns for service in ticket.accepts)

    async def turn(self, request: Request, full: Sequence[Candidate]) -> Service:
        """Wait until a slot of one of these workers is handed to this request, and return whose; raise `NoCapacity`."""
        slots = sum(c.worker.capacity for c in full if c.worker)
        if not request.waits:
            raise self._queues.refusal(request.model, slots=slots)
        accepts = frozenset(candidate.service for candidate in full)
        joined = self._queues.join(request.model, request.caller, accepts, slots=slots)
        if joined.displaced is not None:
            refusal = self._queues.refusal(request.model, slots=slots)
            displaced = self._turns.pop(joined.displaced)
            if not displaced.done():
                displaced.set_exception(refusal)
        turn: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
        self._turns[joined.ticket] = turn
        try:
            async with asyncio.timeout(self._patience):
                return await turn
        except TimeoutError as error:
            if _came(turn):
                return turn.result()
            refusal = self._queues.refusal(request.model, slots=slots)
            raise NoCapacity(
                f"no slot came free within {self._patience:g} s", retry_after=refusal.retry_after
            ) from error
        except asyncio.CancelledError:
            if _came(turn):
                # Its turn came in the very moment in which its caller left.
                self._release(turn.result())
            raise
        finally:
            self._queues.leave(joined.ticket)
            self._turns.pop(joined.ticket, None)

    def hand_over(self, worker: Service, *, beyond: bool = False) -> bool:
        """Give a slot that would be free to whoever is next; return whether there was somebody.

        `beyond` says that it is none: its request came on top of what the worker takes at one time.
        """
        while not beyond and (ticket := self._queues.freed(worker)) is not None:
            turn = self._turns.pop(ticket)
            # Whoever was cancelled has not had the time to leave the queue.
            if not turn.done():
                turn.set_result(worker)
                return True
        return False

    def took(self, model: str, seconds: float) -> None:
        """Learn how long a slot was taken by a request for a model."""
        self._queues.took(model, seconds)


def _came(turn: asyncio.Future[Service]) -> bool:
    return turn.done() and not turn.cancelled() and turn.exception() is None
