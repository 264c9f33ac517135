"""Timeout of the first byte: checks a waiting worker, and ends a silent one if another replica may answer.

A worker may compute for minutes before its first byte, but its node answers probes meanwhile. Only a node that does not, or
a worker of ours that has stopped, is given up, and only before the first byte, so nothing is done twice that a caller has seen.
A node that lives, but whose answers do not come here, is given up where nobody else serves: to be asked again by another way.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol

from router.answer import Answer
from router.errors import WorkerUnreachable
from router.select.candidates import Candidate

LOOK_AFTER = 0.5
"""Seconds of waiting after which we look whether the node lives; looking costs one small question."""

GRAIN = 0.25
"""Seconds between two looks at who waits. A node must be silent at two of them: an answer may be just about to come."""

LOOKS_CUT_OFF = 5
"""Looks at which a node must be silent to be asked by another way: its connection is cut by then, if it is dead."""


class Lookout(Protocol):
    """Whoever sees whether a candidate lives that is waited for."""

    def look_at(self, candidate: Candidate) -> None:
        """Have a peer or worker asked, as often as it thinks fit."""

    def is_silent(self, candidate: Candidate) -> bool:
        """Say that it did not answer."""

    def is_trusted(self, candidate: Candidate) -> bool:
        """Say that it may be asked instead."""

    def is_cut_off(self, candidate: Candidate) -> bool:
        """Say that it lives, but that its answers do not come here."""


class Waits:
    """The waits for first bytes, on one event loop."""

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout
        self._waiting: dict[str, dict[_Watched, None]] = {}
        self._suspected: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(
        self,
        candidate: Candidate,
        others: Sequence[Candidate],
        answer: AbstractAsyncContextManager[Answer],
        *,
        elsewhere: bool = False,
    ) -> AbstractAsyncContextManager[Answer]:
        """Return `answer`, whose entry raises `WorkerUnreachable` when it falls silent and another is trusted.

        `elsewhere` says that whoever sent the request may have others to ask, though we have not.
        """
        return _Watched(self, candidate, others, answer, elsewhere=elsewhere)

    def look_through(self, now: float) -> None:
        """Look for those that are waited for, and give up those that were silent the last time as well."""
        before, self._suspected = self._suspected, {}
        for place, waits in self._waiting.items():
            # The first waits longest.
            first = next(iter(waits))
            if first.since + LOOK_AFTER > now:
                continue
            if self._lookout.is_silent(first.candidate):
                looks = self._suspected[place] = before.get(place, 0) + 1
                lost = looks >= LOOKS_CUT_OFF and self._lookout.is_cut_off(first.candidate)
                for wait in waits if looks > 1 else ():
                    if wait.elsewhere or any(map(self._lookout.is_trusted, wait.others)):
                        wait.give_up()
                    elif lost:
                        wait.give_up(again=True)
            self._lookout.look_at(first.candidate)

    def _add(self, wait: "_Watched") -> None:
        self._waiting.setdefault(wait.place, {})[wait] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRAIN, self._tick)

    def _remove(self, wait: "_Watched") -> None:
        waits = self._waiting[wait.place]
        del waits[wait]
        if not waits:
            del self._waiting[wait.place]

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self.look_through(loop.time())
        # An idle node has no timer.
        self._timer = loop.call_later(GRAIN, self._tick) if self._waiting else None


class _Watched:
    """An answer whose entry may be given up."""

    __slots__ = (
        "_again",
        "_answer",
        "_given_up",
        "_task",
        "_waits",
        "candidate",
        "elsewhere",
        "others",
        "place",
        "since",
    )

    _task: "asyncio.Task[object]"

    def __init__(
        self,
        waits: Waits,
        candidate: Candidate,
        others: Sequence[Candidate],
        answer: AbstractAsyncContextManager[Answer],
        *,
        elsewhere: bool,
    ) -> None:
        self.candidate = candidate
        self.place = candidate.place
        self.elsewhere = elsewhere
        self.others = others
        self.since = asyncio.get_running_loop().time()
        self._waits = waits
        self._answer = answer
        self._given_up = False
        self._again = False

    async def __aenter__(self) -> Answer:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("to be given up, a wait needs a task to cancel")
        self._task, cancelling = task, task.cancelling()
        self._waits._add(self)  # noqa: SLF001 (one mechanism in two classes)
        try:
            return await self._answer.__aenter__()
        except asyncio.CancelledError as error:
            # Somebody else may have cancelled the task as well; then that is what happened.
            if not self._given_up or task.cancelling() > cancelling + 1:
                raise
            # What it may have begun comes to nobody: that it is done twice is better than not at all.
            raise WorkerUnreachable(
                "the worker or node stopped answering", sent=not self._again
            ) from error
        finally:
            self._waits._remove(self)  # noqa: SLF001
            if self._given_up:
                task.uncancel()

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, bool | None]:
        return self._answer.__aexit__(kind, error, trace)

    def give_up(self, *, again: bool = False) -> None:
        """End the wait now; `again` says that the same one may be asked again."""
        # Once only: what is cancelled twice was cancelled by somebody else as well.
        if not self._given_up:
            self._given_up, self._again = True, again
            self._task.cancel()
