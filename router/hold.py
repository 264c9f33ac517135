"""Hold of requests until a worker is ready: one waiting request probes for all.

The request that has waited longest probes. If its attempt fails soon, no worker is ready yet; if it lasts longer or is answered,
all other requests continue at once. None waits beyond its time, and one whose caller leaves is dropped.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from registry.clock import Clock
from router.choice import Chooser
from router.errors import NobodyServes, RouterError, WorkerError, WorkerLoading
from router.requests import Request
from router.settings import RouterSettings
from router.state.readiness import Readiness, is_not_ready
from router.world import World

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 0.5
"""Seconds between two tries for one model: doubled by each that found no worker ready, up to this."""

COMES_BACK = 0.25
"""Seconds after which a try that has not come back counts as one that a worker works on."""

MAX_HELD = 1_000
"""Requests that wait on this node for any model; those beyond it, and beyond `router.queue` for one model, do not wait."""

MAX_HELD_BYTES = 256 * 1024 * 1024
"""Bytes of all their bodies; a request that would exceed this does not wait."""

_Result = TypeVar("_Result")


class HeldRequests:
    """The requests that wait for a worker to be ready, on one event loop."""

    def __init__(
        self,
        settings: RouterSettings,
        events: Counter[str],
        now: Clock,
        world: World,
        chooser: Chooser,
    ) -> None:
        """Hold no requests while `world` is draining."""
        self.readiness = Readiness()
        self._settings = settings
        self._events = events
        self._now = now
        self._world = world
        self._chooser = chooser
        self._held_bytes = 0
        self._queues: dict[str, _HeldQueue] = {}

    def may_be_ready_soon(self, request: Request, error: RouterError) -> bool:
        """Return whether a worker that is absent or loading may be ready soon."""
        return isinstance(error, WorkerLoading) or self._chooser.may_return(request)

    async def until_ready(
        self,
        request: Request,
        error: NobodyServes | WorkerError,
        began: float,
        attempt: Callable[[Request], Awaitable[_Result]],
    ) -> _Result:
        """Repeat an attempt that failed because no worker was ready; raise the last error when the time is up.

        `began` is when the request began. Raise at once if waiting is pointless or there is no room.
        """
        self.readiness.record_not_ready(request.model, error, self._now())
        patience = self._settings.ready_timeout - (self._now() - began)
        promising = self.readiness.is_worth_waiting(request.model, self._now())
        error.hopeful = promising and self.may_be_ready_soon(request, error)
        if patience <= 0 or not error.hopeful or self._world.draining:
            raise self._with_eta(request, error)
        queue = self._queue_for(request)
        if queue is None:
            self._events["holds_refused"] += 1
            raise self._with_eta(request, error)
        self._events["held"] += 1
        deadline = asyncio.get_running_loop().time() + patience
        held, found_out = queue.enter(), True
        self._held_bytes += len(request.body)
        try:
            while found_out := await queue.wait_for_turn(held, deadline):
                try:
                    return await attempt(request)
                except (NobodyServes, WorkerError) as again:
                    again.hopeful = is_not_ready(again) and self.may_be_ready_soon(request, again)
                    if not again.hopeful or self._world.draining:
                        raise
                    error = again
                    self.readiness.record_not_ready(request.model, error, self._now())
        except asyncio.CancelledError:
            found_out = False
            raise
        finally:
            self._held_bytes -= len(request.body)
            queue.leave(held, found_out=found_out)
            if not queue.requests:
                self._queues.pop(request.model, None)
        self._events["held_in_vain"] += 1
        raise self._with_eta(request, error)

    def _with_eta(self, request: Request, error: NobodyServes | WorkerError) -> Exception:
        if isinstance(error, WorkerLoading) and error.eta is None:
            error.eta = self.readiness.eta(request.model, self._now())
        return error

    @property
    def held_count(self) -> int:
        """Number of requests that wait now."""
        return sum(len(queue.requests) for queue in self._queues.values())

    def _queue_for(self, request: Request) -> "_HeldQueue | None":
        queue = self._queues.get(request.model)
        full = self.held_count >= MAX_HELD or self._held_bytes + len(request.body) > MAX_HELD_BYTES
        if full or (queue and len(queue.requests) >= self._settings.queue):
            return None
        return queue or self._queues.setdefault(request.model, _HeldQueue())


class _HeldRequest:
    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn: asyncio.Future[None] | None = None


class _HeldQueue:
    """Requests that wait for one model, longest first; at most one of them tries at a time."""

    def __init__(self) -> None:
        self.requests: dict[_HeldRequest, None] = {}
        self._trying: _HeldRequest | None = None
        self._pause = FIRST_PAUSE
        self._timer: asyncio.TimerHandle | None = None

    def enter(self) -> _HeldRequest:
        held = _HeldRequest()
        self.requests[held] = None
        return held

    async def wait_for_turn(self, held: _HeldRequest, deadline: float) -> bool:
        """Wait for this request's turn to try; return whether it came in time."""
        if self._trying is held:
            self._trying = None
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._schedule_try(self._pause)
        elif self._timer is None:
            self._schedule_try(self._pause)
        held.turn = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(deadline):
                await held.turn
        except TimeoutError:
            return False
        finally:
            held.turn = None
        return True

    def leave(self, held: _HeldRequest, *, found_out: bool) -> None:
        """Remove a request; `found_out` says that its try ended otherwise than with no worker ready."""
        del self.requests[held]
        if self._trying is held:
            self._trying = None
        if found_out:
            self._let_all_try()
        if not self.requests and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_try(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._let_next_try)

    def _let_next_try(self) -> None:
        self._timer = None
        if self._trying is not None:
            self._trying = None
            self._let_all_try()
            return
        next_held = next((held for held in self.requests if _is_waiting(held)), None)
        if next_held is not None and next_held.turn is not None:
            self._trying = next_held
            next_held.turn.set_result(None)
            self._schedule_try(COMES_BACK)

    def _let_all_try(self) -> None:
        for held in self.requests:
            if held.turn is not None and not held.turn.done():
                held.turn.set_result(None)


def _is_waiting(held: _HeldRequest) -> bool:
    return held.turn is not None and not held.turn.done()
