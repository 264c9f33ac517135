"""World as a helper knows it: the newest state that the first process has sent. No I/O.

Records come as the frames that their owners signed, and are verified here too. In return, the helper reports evidence about
other nodes from requests, though not each answer, and asks for workers' slots and for connections to peers.
"""

import asyncio
from collections.abc import Sequence
from itertools import count

from node.processes.protocol import (
    EvidenceShown,
    NodeForgotten,
    NodeSeen,
    NodeSilent,
    ProbeAsked,
    ReachAsked,
    RecordStale,
    Relayed,
    Sender,
    SlotAsked,
    SlotCancelled,
    SlotFreed,
    SlotGranted,
    SlotRefused,
    SlotUsed,
    ToFirst,
    Unreadable,
    WorkersHeld,
)
from registry import wire
from registry.catalog import Catalog, Signed
from registry.clock import Clock
from registry.errors import InvalidFrame
from registry.intake.access_list import access_list_of
from registry.members.liveness import Evidence, Presence
from registry.records import PeerId, Service, Standing, display_name
from registry.settings import RegistrySettings
from router.errors import NobodyServes, NoCapacity
from router.outcome import Outcome
from router.requests import Request
from router.workers import Workers

PAUSE = 0.5
"""Seconds within which a further answer of a node is not reported."""

MAX_NODES = 10_000
"""Nodes whose last answer is remembered; beyond that all are forgotten, so their next answers are reported again."""


class EvidenceReporter:
    """Reporter of what attempts show about other nodes, to the first process."""

    def __init__(self, own_peer: PeerId, first: Sender[ToFirst], now: Clock) -> None:
        self.own = own_peer
        self._first = first
        self._now = now
        self._answered_at: dict[PeerId, float] = {}

    def observe(self, outcome: Outcome) -> None:
        """Report what an attempt's outcome shows, if it is news."""
        node, evidence = outcome.candidate.node, outcome.evidence
        if outcome.is_stale:
            self._first.send(RecordStale(node))
        if node == self.own or evidence is None:
            return
        if evidence is Evidence.FAILED:
            self._answered_at.pop(node, None)
            self._first.send(EvidenceShown(node, evidence))
        else:
            self._alive(node)

    def request_probe(self, node: PeerId) -> None:
        """Ask for a probe of a node."""
        self._first.send(ProbeAsked(node))

    def _alive(self, node: PeerId) -> None:
        now = self._now()
        last = self._answered_at.get(node)
        if last is not None and now - last < PAUSE:
            return
        if len(self._answered_at) >= MAX_NODES:
            self._answered_at.clear()
        self._answered_at[node] = now
        self._first.send(EvidenceShown(node, Evidence.ANSWERED))


Answer = SlotGranted | SlotRefused | Relayed


class SlotClient:
    """A `router.shared_slots.Lender` whose slots the first process manages. Bound to one event loop."""

    def __init__(self, first: Sender[ToFirst]) -> None:
        self._first = first
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[Answer]] = {}

    async def take_slot(self, request: Request, services: Sequence[Service]) -> Service | None:
        """Take a slot for a request at the first of these workers that has one free; return `None` if none has."""
        number = next(self._numbers)
        question = SlotAsked(number, tuple(services), background=request.background)
        return _service(await self._query(question))

    async def wait_for_slot(self, request: Request, services: Sequence[Service]) -> Service:
        """Wait until a request gets a slot of one of these workers; raise `NoCapacity` or `NobodyServes`."""
        question = SlotAsked(
            next(self._numbers),
            tuple(services),
            waiting=True,
            model=request.model,
            caller=request.caller,
            waits=request.waits,
            patience=request.patience,
            background=request.background,
        )
        service = _service(await self._query(question))
        if service is None:
            raise NobodyServes(f"{display_name(request.model)} was unregistered")
        return service

    def give_back(self, service: Service) -> None:
        """Give a slot back."""
        self._first.send(SlotFreed(service))

    def record_slot_time(self, model: str, seconds: float) -> None:
        """Report how long a request for a model held its slot."""
        self._first.send(SlotUsed(model, seconds))

    async def connects_through_relay(self, peer: PeerId) -> bool:
        """Ask the first process to connect to a peer, and return whether that is through a relay."""
        answer = await self._query(ReachAsked(next(self._numbers), peer))
        return isinstance(answer, Relayed) and answer.relayed

    def handle(self, answer: Answer) -> None:
        """Handle an answer. A slot for a request that was cancelled is given back."""
        future = self._pending.pop(answer.number, None)
        if future is None or future.done():
            self._return_unwanted(answer)
        else:
            future.set_result(answer)

    async def _query(self, question: SlotAsked | ReachAsked) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[question.number] = future
        self._first.send(question)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                # The answer came at the moment of the cancellation.
                self._return_unwanted(future.result())
            elif isinstance(question, SlotAsked):
                self._first.send(SlotCancelled(question.number))
            raise
        finally:
            self._pending.pop(question.number, None)

    def _return_unwanted(self, answer: Answer) -> None:
        if isinstance(answer, SlotGranted) and answer.service is not None:
            self.give_back(answer.service)


def _service(answer: Answer) -> Service | None:
    """Return the slot's worker; raise `NobodyServes` or `NoCapacity` for a refusal."""
    match answer:
        case SlotGranted(service=service):
            return service
        case SlotRefused(why=reason, retry_after=None):
            raise NobodyServes(reason)
        case SlotRefused(why=reason, retry_after=float(seconds)):
            raise NoCapacity(reason, retry_after=seconds)
        case _:
            return None


class WorldView:
    """The newest state, for a router to read."""

    def __init__(self, own_peer: PeerId, settings: RegistrySettings) -> None:
        self.catalog = Catalog()
        self.workers = Workers()
        self._own = own_peer
        self._access = access_list_of(own_peer, allow=settings.allow, deny=settings.deny)
        self._presence: dict[PeerId, Presence] = {}
        self._silent: set[PeerId] = set()

    def apply(
        self, message: WorkersHeld | NodeSeen | NodeForgotten | NodeSilent
    ) -> frozenset[PeerId]:
        """Handle a message of the first process; return the nodes whose record or presence it concerns. Raise `Unreadable`."""
        match message:
            case WorkersHeld(workers):
                self.workers = Workers.of(workers)
            case NodeSilent(node, silent):
                (self._silent.add if silent else self._silent.discard)(node)
            case NodeSeen(node, presence, frame):
                self._presence[node] = presence
                if frame:
                    self.catalog = self.catalog.merge([_record(frame)])
                return frozenset({node})
            case NodeForgotten(node):
                self._presence.pop(node, None)
                self._silent.discard(node)
                self.catalog = self.catalog.without(node)
                return frozenset({node})
        return frozenset()

    def presence(self, node: PeerId) -> Presence:
        """Return a node's presence, `LOST` for an unknown node."""
        return self._presence.get(node, Presence.LOST)

    def is_silent(self, node: PeerId) -> bool:
        """Return whether a node left the last reported probe unanswered."""
        return node in self._silent

    def admits(self, peer: PeerId) -> bool:
        """Return whether a peer is admitted to this node."""
        return self._access.admits(peer)

    def draining(self) -> bool:
        """Return whether this node takes no new requests."""
        signed = self.catalog.held.get(self._own)
        return signed is not None and signed.record.standing is not Standing.SERVING


def _record(frame: bytes) -> Signed:
    try:
        signed = wire.decode(frame)
    except InvalidFrame as error:
        raise Unreadable("the first process sent a record with a bad signature") from error
    if not isinstance(signed, Signed):
        raise Unreadable("the first process sent an invalid record")
    return signed
