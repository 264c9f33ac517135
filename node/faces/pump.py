"""Pump of a stream: passes on bytes as they arrive, in turn with other streams; wakes the task only if it must wait."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from router.answer import Flow
from router.errors import AnswerBroken
from router.http.cut_through import CutThrough

if TYPE_CHECKING:
    from node.faces.response_writer import ResponseWriter

PER_TURN = 16
"""Streams that pass on their bytes in one turn of the event loop, which takes them about half a millisecond."""


class PumpQueue:
    """First-come, first-served queue of streams, of which only `PER_TURN` are served in each turn of the event loop.

    Where chunks arrive faster than they can be passed on, a new request waits for the streams of one turn instead of all. What
    arrives for a stream while it is queued is passed on in one piece.
    """

    __slots__ = ("_loop", "_serving", "_skipped", "_waiting")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Callable[[], None]] = deque()
        self._serving = False
        self._skipped = 0
        """Streams that passed on their bytes without queueing since the queue was last served."""

    def may_skip(self) -> bool:
        """Return whether a stream may pass on its bytes now: the queue is empty, and fewer than `PER_TURN` have skipped it."""
        if self._waiting or self._skipped >= PER_TURN:
            return False
        self._skipped += 1
        return True

    def add(self, callback: Callable[[], None]) -> None:
        """Queue a stream: call `callback` when its turn comes."""
        self._waiting.append(callback)
        if not self._serving:
            self._serve_soon()

    def _serve_soon(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._serving = True
        self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        waiting, served, self._skipped = self._waiting, 0, 0
        try:
            while waiting and served < PER_TURN:
                served += 1
                waiting.popleft()()
        finally:
            self._serving = False
            if waiting:
                self._serve_soon()


class Tap(Protocol):
    """Observer and filter that a stream passes through."""

    def inspect(self, cut_through: CutThrough) -> None:
        """Register what the tap needs to see of the bytes that are cut through."""

    def take(self, chunk: bytes) -> bytes:
        """Take in the next bytes and return those that are ready to be passed on, possibly none."""


class Pump:
    """Moves one stream from a flow to its caller."""

    __slots__ = (
        "_cut_through",
        "_flow",
        "_has_ended",
        "_is_queued",
        "_may_skip",
        "_out",
        "_queue",
        "_stopped",
        "_take",
        "_unsent",
    )

    _stopped: asyncio.Future[None]

    def __init__(self, flow: Flow, tap: Tap, out: "ResponseWriter", queue: PumpQueue) -> None:
        self._flow = flow
        self._take = tap.take
        self._out = out
        self._cut_through = cut_through = out.cut_through()
        if cut_through is not None:
            flow.inspect(cut_through)
            tap.inspect(cut_through)
        self._may_skip = flow.can_run_inline
        self._queue = queue
        self._unsent = b""
        self._is_queued = self._has_ended = False
        """Whether the pump is in the queue, and whether the flow is over."""

    async def run(self) -> None:
        """Pass on bytes until the flow is over; raise `AnswerBroken` from it, and `ConnectionError` when the caller is gone."""
        while not self._has_ended:
            self._stopped = asyncio.get_running_loop().create_future()
            try:
                self._flow.listen(self._on_news, self._cut_through)
                self._on_news()
                await self._stopped
            finally:
                self._stop_listening()
            if self._unsent:
                unsent, self._unsent = self._unsent, b""
                await self._out.send(unsent)

    def _stop_listening(self) -> None:
        """Take nothing more from the flow: backpressure, so that a slow caller slows the worker."""
        self._flow.listen(None)
        self._is_queued = False
        self._pause()

    def _on_news(self) -> None:
        if self._is_queued:
            return
        if self._may_skip and self._queue.may_skip():
            self._pass_on()
        else:
            self._is_queued = True
            self._pause()
            self._queue.add(self._take_turn)

    def _take_turn(self) -> None:
        if self._is_queued:
            self._is_queued = False
            self._pass_on()

    def _pass_on(self) -> None:
        if self._stopped.done():
            return
        cut_through = self._cut_through
        if cut_through is not None and cut_through.is_active:
            cut_through.pause()
        try:
            piece, is_over = self._flow.read_nowait()
            ready = self._take(piece) if piece else b""
            sent = not ready or self._out.send_now(ready)
        except (AnswerBroken, ConnectionError) as error:
            self._stopped.set_exception(error)
            return
        self._has_ended = is_over
        if not sent:
            self._unsent = ready
        if is_over or not sent:
            self._stopped.set_result(None)
        elif cut_through is not None and self._out.in_chunks:
            cut_through.resume()

    def _pause(self) -> None:
        if self._cut_through is not None and self._cut_through.is_active:
            self._cut_through.pause()
