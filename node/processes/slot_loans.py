"""Loans of slots to one helper: its questions for more are answered, and what it holds is given back when it ends."""

import asyncio
from collections import Counter
from collections.abc import Callable

from node.processes.protocol import Cancel, Freed, Granted, Refused, Take, Told, Took
from registry.mesh.libp2p.task_group import Crew
from registry.records import Service
from router.errors import NobodyServes, NoCapacity
from router.requests import Kind, Request
from router.slot_lending import Lending

MAX_WAITING = 100_000
"""Requests of one helper that may wait for a slot; the queues of the models are far shorter. More are refused."""


class Loans:
    """The slots of one helper, and its requests that wait for one."""

    def __init__(self, lending: Lending, crew: Crew, tell: Callable[[Told], None]) -> None:
        """`crew` is dismissed before `end` is called."""
        self._lending = lending
        self._crew = crew
        self._tell = tell
        self._turns: dict[int, asyncio.Task[None]] = {}
        self._lent: Counter[Service] = Counter()

    def hear(self, word: Take | Cancel | Freed | Took) -> None:
        """Take in what the helper says."""
        match word:
            case Take(waiting=False):
                self._grant(word.number, self._lending.lend(word.services))
            case Take():
                self._queue(word)
            case Cancel(number):
                if (turn := self._turns.get(number)) is not None:
                    turn.cancel()
            case Freed(service):
                # What was never lent cannot be had back.
                if self._lent[service] > 0:
                    self._lent[service] -= 1
                    self._lending.give_back(service)
            case Took(model, seconds):
                self._lending.took(model, seconds)

    def lent(self, service: Service) -> int:
        """Return how many slots of a worker the helper has."""
        return self._lent[service]

    def end(self) -> None:
        """Give back what the helper has."""
        for service in self._lent.elements():
            self._lending.give_back(service)
        self._lent.clear()

    def _grant(self, number: int, service: Service | None) -> None:
        if service is not None:
            self._lent[service] += 1
        self._tell(Granted(number, service))

    def _queue(self, word: Take) -> None:
        if len(self._turns) >= MAX_WAITING:
            self._tell(Refused(word.number, "too many requests wait", 1.0))
            return
        turn = self._turns[word.number] = self._crew.spawn(self._turn(word))
        turn.add_done_callback(lambda _: self._turns.pop(word.number, None))

    async def _turn(self, word: Take) -> None:
        request = Request(
            id="",
            kind=Kind.CHAT,
            model=word.model,
            body=b"",
            content_type="",
            caller=word.caller,
            waits=word.waits,
        )
        try:
            service = await self._lending.turn(request, word.services)
        except NoCapacity as error:
            self._tell(Refused(word.number, str(error), error.retry_after))
        except NobodyServes as error:
            self._tell(Refused(word.number, str(error), None))
        else:
            self._grant(word.number, service)
