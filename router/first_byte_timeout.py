"""Timeout of the first byte: checks a waiting worker, and ends a silent one if another replica may answer.

A worker may compute for minutes before its first byte, but its node answers probes meanwhile. Only a node that does not, or
a local worker that has stopped, is given up, and only before the first byte, so nothing is done twice that a caller has seen.
A node that lives, but whose answers do not arrive here, is given up even if no other replica serves: to be asked again by
another path.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol

from router.answer import Answer
from router.errors import WorkerUnreachable
from router.select.candidates import Candidate

PROBE_AFTER = 0.5
"""Seconds of waiting after which the node is probed; a probe costs one small message."""

GRAIN = 0.25
"""Seconds between two checks of all waits. A node must be silent at two of them: an answer may be about to come."""

CUT_OFF_CHECKS = 5
"""Checks at which a node must be silent to be asked by another path: its connection is cut by then, if it is dead."""


class Liveness(Protocol):
    """Observer of whether candidates that requests wait for are alive."""

    def request_probe(self, candidate: Candidate) -> None:
        """Have a peer or worker probed; the observer limits how often."""

    def is_silent(self, candidate: Candidate) -> bool:
        """Return whether it did not answer."""

    def is_trusted(self, candidate: Candidate) -> bool:
        """Return whether it may be asked instead."""

    def is_cut_off(self, candidate: Candidate) -> bool:
        """Return whether it lives, but its answers do not arrive here."""


class FirstByteWaits:
    """The waits for first bytes, on one event loop."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._waits_by_place: dict[str, dict[_WatchedAnswer, None]] = {}
        self._silent_checks: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(
        self,
        candidate: Candidate,
        others: Sequence[Candidate],
        answer: AbstractAsyncContextManager[Answer],
        *,
        waited: float = 0.0,
        elsewhere: bool = False,
    ) -> AbstractAsyncContextManager[Answer]:
        """Wrap `answer`: entering it raises `WorkerUnreachable` if the candidate falls silent and another is trusted.

        The request has `waited` for so many seconds already. `elsewhere` says that the sender of the request may have others to
        ask, though this node has not.
        """
        since = asyncio.get_running_loop().time() - waited
        return _WatchedAnswer(self, candidate, others, answer, since=since, elsewhere=elsewhere)

    def check_waits(self, now: float) -> None:
        """Check the candidates that are waited for, and give up those that were silent at the last check as well."""
        before, self._silent_checks = self._silent_checks, {}
        for place, waits in self._waits_by_place.items():
            # The first has waited longest.
            first = next(iter(waits))
            if first.since + PROBE_AFTER > now:
                continue
            if self._liveness.is_silent(first.candidate):
                checks = self._silent_checks[place] = before.get(place, 0) + 1
                cut_off = checks >= CUT_OFF_CHECKS and self._liveness.is_cut_off(first.candidate)
                for wait in waits if checks > 1 else ():
                    if wait.elsewhere or any(map(self._liveness.is_trusted, wait.others)):
                        wait.give_up()
                    elif cut_off:
                        wait.give_up(again=True)
            self._liveness.request_probe(first.candidate)

    def _add(self, wait: "_WatchedAnswer") -> None:
        self._waits_by_place.setdefault(wait.place, {})[wait] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRAIN, self._tick)

    def _remove(self, wait: "_WatchedAnswer") -> None:
        waits = self._waits_by_place[wait.place]
        del waits[wait]
        if not waits:
            del self._waits_by_place[wait.place]

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self.check_waits(loop.time())
        # An idle node has no timer.
        self._timer = loop.call_later(GRAIN, self._tick) if self._waits_by_place else None


class _WatchedAnswer:
    """An answer whose entry may be given up."""

    __slots__ = (
        "_answer",
        "_given_up",
        "_may_ask_again",
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
        waits: FirstByteWaits,
        candidate: Candidate,
        others: Sequence[Candidate],
        answer: AbstractAsyncContextManager[Answer],
        *,
        since: float,
        elsewhere: bool,
    ) -> None:
        self.candidate = candidate
        self.place = candidate.place
        self.elsewhere = elsewhere
        self.others = others
        self.since = since
        self._waits = waits
        self._answer = answer
        self._given_up = False
        self._may_ask_again = False

    async def __aenter__(self) -> Answer:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("to be given up, a wait needs a task to cancel")
        self._task, cancelling = task, task.cancelling()
        self._waits._add(self)  # noqa: SLF001 (one mechanism in two classes)
        try:
            answer = await self._answer.__aenter__()
        except asyncio.CancelledError as error:
            # If other code has cancelled the task as well, its cancellation counts.
            if not self._given_up or task.cancelling() > cancelling + 1:
                raise error  # noqa: TRY201 (as mypyc needs it)
            # The answer of a node that is asked again cannot arrive: doing the work twice is better than not at all.
            raise WorkerUnreachable(
                "the worker or node stopped answering", sent=not self._may_ask_again
            ) from error
        finally:
            self._waits._remove(self)  # noqa: SLF001
            if self._given_up:
                task.uncancel()
        return answer

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, bool | None]:
        return self._answer.__aexit__(kind, error, trace)

    def give_up(self, *, again: bool = False) -> None:
        """End the wait now; `again` says that the same candidate may be asked again."""
        # Once only: a second cancellation counts as one by other code.
        if not self._given_up:
            self._given_up, self._may_ask_again = True, again
            self._task.cancel()
