"""World as a helper knows it: what the first told it last. No I/O.

The records are the frames that their owners signed, and are checked here as they are everywhere.

Evidence about other nodes, from a helper to the first process: what requests have shown, but not every answer anew.

Client of a helper for slots of workers and the reach of peers.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from node.processes.protocol import (
    Cancel,
    EvidenceShown,
    Forgotten,
    Freed,
    ReachAsked,
    Relayed,
    Said,
    Seen,
    Silent,
    SlotGranted,
    SlotRefused,
    Stale,
    Table,
    Take,
    Took,
    Unreadable,
)
from registry import wire
from registry.catalog import Catalog, Signed
from registry.clock import Clock
from registry.errors import InvalidFrame
from registry.intake.access_list import guests
from registry.members.liveness import Evidence, Presence
from registry.records import PeerId, Service, Standing
from registry.settings import RegistrySettings
from router.errors import NobodyServes, NoCapacity
from router.outcome import Outcome
from router.requests import Request
from router.workers import Workers

PAUSE = 0.5
"""Seconds within which another answer of a node is no news."""

MAX_NODES = 10_000
"""Nodes whose last answer is remembered; beyond that all are forgotten, and told of once more."""


class Witness:
    """Tells what attempts showed; time is an argument of what it is given."""

    def __init__(self, own: PeerId, tell: Callable[[Said], None], now: Clock) -> None:
        self.own = own
        self._tell = tell
        self._now = now
        self._answered: dict[PeerId, float] = {}

    def observe(self, outcome: Outcome) -> None:
        """Take in how an attempt went."""
        node, shown = outcome.candidate.node, outcome.shows
        if outcome.stale:
            self._tell(Stale(node))
        if node == self.own or shown is None:
            return
        if shown is Evidence.FAILED:
            self._answered.pop(node, None)
            self._tell(EvidenceShown(node, shown))
        else:
            self._alive(node)

    def _alive(self, node: PeerId) -> None:
        now = self._now()
        last = self._answered.get(node)
        if last is not None and now - last < PAUSE:
            return
        if len(self._answered) >= MAX_NODES:
            self._answered.clear()
        self._answered[node] = now
        self._tell(EvidenceShown(node, Evidence.ANSWERED))


Answer = SlotGranted | SlotRefused | Relayed


class Borrowing:
    """A `router.slot_lending.Lender` whose books are kept by the first process. Lives on one event loop."""

    def __init__(self, tell: Callable[[Said], None]) -> None:
        self._tell = tell
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Answer]] = {}

    async def take(self, request: Request, services: Sequence[Service]) -> Service | None:
        """Take a slot of the first of these workers that has one for a request."""
        number = next(self._numbers)
        asked = Take(number, tuple(services), background=request.background)
        return _service(await self._answer(asked))

    async def turn(self, request: Request, services: Sequence[Service]) -> Service:
        """Wait until a slot of one of these workers is handed to a request; raise `NoCapacity` or `NobodyServes`."""
        asked = Take(
            next(self._numbers),
            tuple(services),
            waiting=True,
            model=request.model,
            caller=request.caller,
            waits=request.waits,
            patience=request.patience,
            background=request.background,
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
        answer = await self._answer(ReachAsked(next(self._numbers), peer))
        return isinstance(answer, Relayed) and answer.relayed

    def hear(self, answer: Answer) -> None:
        """Take in an answer. A slot for somebody who has left goes back."""
        asked = self._asked.pop(answer.number, None)
        if asked is None or asked.done():
            self._unwanted(answer)
        else:
            asked.set_result(answer)

    async def _answer(self, question: Take | ReachAsked) -> Answer:
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
        if isinstance(answer, SlotGranted) and answer.service is not None:
            self.give_back(answer.service)


def _service(answer: Answer) -> Service | None:
    """Return the slot's worker; raise what a refusal stands for."""
    match answer:
        case SlotGranted(service=service):
            return service
        case SlotRefused(why=why, retry_after=None):
            raise NobodyServes(why)
        case SlotRefused(why=why, retry_after=float(seconds)):
            raise NoCapacity(why, retry_after=seconds)
        case _:
            return None


class View:
    """The newest of everything, for a router to read."""

    def __init__(self, own: PeerId, settings: RegistrySettings) -> None:
        self.catalog = Catalog()
        self.workers = Workers()
        self._own = own
        self._guests = guests(own, allow=settings.allow, deny=settings.deny)
        self._presence: dict[PeerId, Presence] = {}
        self._silent: set[PeerId] = set()

    def take(self, word: Table | Seen | Forgotten | Silent) -> frozenset[PeerId]:
        """Take in what the first tells; return whose record or presence that changed. Raise `Unreadable`."""
        match word:
            case Table(workers):
                self.workers = Workers.of(workers)
            case Silent(node, silent):
                (self._silent.add if silent else self._silent.discard)(node)
            case Seen(node, presence, frame):
                self._presence[node] = presence
                if frame:
                    self.catalog = self.catalog.merge([_record(frame)])
                return frozenset({node})
            case Forgotten(node):
                self._presence.pop(node, None)
                self._silent.discard(node)
                self.catalog = self.catalog.without(node)
                return frozenset({node})
        return frozenset()

    def presence(self, node: PeerId) -> Presence:
        """Say what a node is to us."""
        return self._presence.get(node, Presence.LOST)

    def silent(self, node: PeerId) -> bool:
        """Say whether a node was silent when it was looked at last."""
        return node in self._silent

    def admits(self, peer: PeerId) -> bool:
        """Say whether a peer may take part here."""
        return self._guests.admits(peer)

    def draining(self) -> bool:
        """Say whether this node takes nothing new."""
        held = self.catalog.held.get(self._own)
        return held is not None and held.record.standing is not Standing.SERVING


def _record(frame: bytes) -> Signed:
    try:
        word = wire.decode(frame)
    except InvalidFrame as error:
        raise Unreadable("the first process sent a record with a bad signature") from error
    if not isinstance(word, Signed):
        raise Unreadable("the first process sent an invalid record")
    return word
