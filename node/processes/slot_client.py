"""Client of a helper for slots of workers and the reach of peers."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from node.processes.protocol import (
    Cancel,
    Freed,
    Granted,
    Reach,
    Refused,
    Relayed,
    Said,
    Take,
    Took,
)
from registry.records import PeerId, Service
from router.errors import NobodyServes, NoCapacity
from router.requests import Request

Answer = Granted | Refused | Relayed


class Borrowing:
    """A `router.slot_lending.Lender` whose books are kept by the first process. Lives on one event loop."""

    def __init__(self, tell: Callable[[Said], None]) -> None:
        self._tell = tell
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Answer]] = {}

    async def take(self, services: Sequence[Service]) -> Service | None:
        """Take a slot of the first of these workers that has one."""
        number = next(self._numbers)
        return _service(await self._answer(Take(number, tuple(services))))

    async def turn(self, request: Request, services: Sequence[Service]) -> Service:
        """Wait until a slot of one of these workers is handed to a request; raise `NoCapacity` or `NobodyServes`."""
        asked = Take(
            next(self._numbers),
            tuple(services),
            waiting=True,
            model=request.model,
            caller=request.caller,
            waits=request.waits,
        )
        service = _service(await self._answer(asked))
        if service is None:
            raise NobodyServes(f"{request.model!r} was unregistered")
        return service

    def give_back(self, service: Service) -> None:
        """Give a slot back."""
        self._tell(Freed(service))

    def took(self, model: str, seconds: float) -> None:
        """Say how long a slot was taken."""
        self._tell(Took(model, seconds))

    async def relayed(self, peer: PeerId) -> bool:
        """Have a peer connected, and say whether that is through a relay."""
        answer = await self._answer(Reach(next(self._numbers), peer))
        return isinstance(answer, Relayed) and answer.relayed

    def hear(self, answer: Answer) -> None:
        """Take in an answer. A slot for somebody who has left goes back."""
        asked = self._asked.pop(answer.number, None)
        if asked is None or asked.done():
            self._unwanted(answer)
        else:
            asked.set_result(answer)

    async def _answer(self, question: Take | Reach) -> Answer:
        asked: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked[question.number] = asked
        self._tell(question)
        try:
            return await asked
        except asyncio.CancelledError:
            if asked.done() and not asked.cancelled():
                # It was answered in the very moment in which its caller left.
                self._unwanted(asked.result())
            elif isinstance(question, Take):
                self._tell(Cancel(question.number))
            raise
        finally:
            self._asked.pop(question.number, None)

    def _unwanted(self, answer: Answer) -> None:
        if isinstance(answer, Granted) and answer.service is not None:
            self.give_back(answer.service)


def _service(answer: Answer) -> Service | None:
    """Return the slot's worker; raise what a refusal stands for."""
    match answer:
        case Granted(service=service):
            return service
        case Refused(why=why, retry_after=None):
            raise NobodyServes(why)
        case Refused(why=why, retry_after=float(seconds)):
            raise NoCapacity(why, retry_after=seconds)
        case _:
            return None
