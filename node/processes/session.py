"""Session of one helper at the first process: it answers the helper's messages, and takes back its slots when it ends."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

from node.auth.books import ReceiptBook, UsageBook
from node.auth.quota_sync import QuotaSync
from node.listeners import Listener
from node.observe.counters import Counts
from node.observe.log_writer import LogLine
from node.observe.metrics import Metrics
from node.processes.channel import Channel
from node.processes.forward import ConnectionUse, DescriptorReceiver, lend_pipe
from node.processes.protocol import (
    EvidenceShown,
    Leave,
    LinesAsked,
    LinesTold,
    LoadReport,
    NodeSilent,
    ProbeAsked,
    QuotaSpent,
    ReachAsked,
    Ready,
    ReceiptsMade,
    RecordStale,
    Relayed,
    RequestsObserved,
    Sender,
    SlotAsked,
    SlotCancelled,
    SlotFreed,
    SlotGranted,
    SlotRefused,
    SlotUsed,
    StateAsked,
    ToFirst,
    ToHelper,
    UsageCounted,
    read_by_first,
)
from registry.records import PeerId, Service
from registry.service import Registry
from registry.task_group import BackgroundTasks
from router.errors import NobodyServes, NoCapacity
from router.peers.pipes import Peers
from router.requests import Kind, Request
from router.shared_slots import LentSlots

MAX_WAITING = 100_000
"""Requests of one helper that may wait for a slot; further ones are refused. The queues of the models are far shorter."""


class HelperSlots:
    """The slots of one helper, and its requests that wait for one."""

    def __init__(
        self, lending: LentSlots, tasks: BackgroundTasks, helper: Sender[ToHelper]
    ) -> None:
        """`tasks` is dismissed before `end` is called."""
        self._lending = lending
        self._tasks = tasks
        self._helper = helper
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._lent: Counter[Service] = Counter()

    def handle(self, message: SlotAsked | SlotCancelled | SlotFreed | SlotUsed) -> None:
        """Handle a message of the helper."""
        match message:
            case SlotAsked(number, services, waiting=False, background=background):
                self._grant(number, self._lending.lend(services, background=background))
            case SlotAsked():
                self._queue(message)
            case SlotCancelled(number):
                if (task := self._waiting.get(number)) is not None:
                    task.cancel()
            case SlotFreed(service):
                # Only a slot that was lent can be given back.
                if self._lent[service] > 0:
                    self._lent[service] -= 1
                    self._lending.give_back(service)
            case SlotUsed(model, seconds):
                self._lending.record_slot_time(model, seconds)

    def lent_count(self, service: Service) -> int:
        """Return the number of a worker's slots that the helper holds."""
        return self._lent[service]

    def end(self) -> None:
        """Give back the slots that the helper holds."""
        for service in self._lent.elements():
            self._lending.give_back(service)
        self._lent.clear()

    def _grant(self, number: int, service: Service | None) -> None:
        if service is not None:
            self._lent[service] += 1
        self._helper.send(SlotGranted(number, service))

    def _queue(self, message: SlotAsked) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._helper.send(SlotRefused(message.number, "too many requests wait", 1.0))
            return
        task = self._waiting[message.number] = self._tasks.spawn(self._wait_for_slot(message))
        task.add_done_callback(lambda _: self._waiting.pop(message.number, None))

    async def _wait_for_slot(self, message: SlotAsked) -> None:
        request = Request(
            id="",
            kind=Kind.CHAT,
            model=message.model,
            body=b"",
            content_type="",
            caller=message.caller,
            waits=message.waits,
            patience=message.patience,
            background=message.background,
        )
        try:
            service = await self._lending.wait_for_slot(request, message.services)
        except NoCapacity as error:
            self._helper.send(SlotRefused(message.number, str(error), error.retry_after))
        except NobodyServes as error:
            self._helper.send(SlotRefused(message.number, str(error), None))
        else:
            self._grant(message.number, service)


log = logging.getLogger("modelvine.processes")

FROZEN = 10.0
"""Seconds within which a helper reports its state; one that does not is ended and restarted."""


@dataclass(frozen=True, slots=True)
class HelperServices:
    """Parts of the node that helpers may use."""

    registry: Registry
    lending: LentSlots
    peers: Peers
    quotas: QuotaSync
    usage: UsageBook
    receipts: ReceiptBook
    metrics: Metrics
    control: Listener
    """Answers the requests that helpers pass on."""

    def handle(self, message: QuotaSpent | UsageCounted | ReceiptsMade | RequestsObserved) -> None:
        """Add the spending, usage, receipts, refusals or measurements of a helper's requests."""
        match message:
            case QuotaSpent(spendings):
                self.quotas.hear(spendings)
            case UsageCounted(rows):
                for row in rows:
                    self.usage.add(row)
            case ReceiptsMade(receipts):
                for receipt in receipts:
                    self.receipts.take_in(receipt)
            case RequestsObserved(refused, measured):
                for model, node, times in refused:
                    self.metrics.recent.found_no_room(model, node, times)
                if self.metrics.measurements is not None:
                    self.metrics.measurements.add(measured)


class HelperSession:
    """One helper, as the first process sees it."""

    def __init__(self, services: HelperServices) -> None:
        self._services = services
        self._tasks = BackgroundTasks()
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._channel = Channel(read_by_first, self._handle_message)
        self._slots = HelperSlots(services.lending, self._tasks, self._channel)
        self._receiver: DescriptorReceiver | None = None
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()
        self.other_requests: Mapping[Service, int] = {}
        """Requests of other processes in flight at each worker."""
        self.state = LoadReport(0, 0, (), Counts(), 0.0, 0.0)

    async def begin(self, end: socket.socket, doors: socket.socket) -> None:
        """Connect to a helper over this process's ends of its socket pairs."""
        await self._channel.open(end)
        self._receiver = DescriptorReceiver(doors, self._accept_connection)

    async def wait_closed(self) -> None:
        """Wait until the helper is gone, and take back its slots."""
        await self._channel.closed.wait()
        await self.end()

    async def end(self) -> None:
        """Disconnect the helper, and take back its slots."""
        self._channel.close()
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionResetError("a helper has ended"))
        await self._tasks.cancel_all()
        self._slots.end()

    def send(self, message: ToHelper) -> None:
        """Send a message to the helper."""
        self._channel.send(message)

    async def ask(self, *, within: float = FROZEN) -> LoadReport:
        """Query the helper's state, once it has taken in all earlier messages.

        Raise `TimeoutError` if it does not answer `within` so many seconds, and `ConnectionError` if it has ended.
        """
        number = next(self._numbers)
        question = StateAsked(number, tuple(self.other_requests.items()))
        return cast("LoadReport", await self._query(question, within=within))

    async def lines_since(self, time: float) -> tuple[LogLine, ...]:
        """Query the last lines of the helper's log; raise `TimeoutError`, or `ConnectionError` if it has ended."""
        question = LinesAsked(next(self._numbers), time)
        return cast("tuple[LogLine, ...]", await self._query(question, within=FROZEN))

    def requests_at(self, service: Service) -> int:
        """Return the known number of this helper's requests at a worker."""
        in_flight = (load.in_flight for s, load in self.state.loads if s == service)
        return self._slots.lent_count(service) + sum(in_flight)

    def request_exit(self, *, ends: bool = True) -> None:
        """Tell the helper to end, or only to accept no more connections of callers."""
        self.send(Leave(ends))

    async def _query(self, question: StateAsked | LinesAsked, *, within: float) -> object:
        if self._channel.closed.is_set():
            raise ConnectionResetError("a helper has ended")
        future = self._pending[question.number] = asyncio.get_running_loop().create_future()
        self.send(question)
        try:
            async with asyncio.timeout(within):
                return await future
        finally:
            del self._pending[question.number]

    def _resolve(self, number: int, answer: object) -> None:
        future = self._pending.get(number)
        if future is not None and not future.done():
            future.set_result(answer)

    def _handle_message(self, message: ToFirst) -> None:
        match message:
            case SlotAsked() | SlotCancelled() | SlotFreed() | SlotUsed():
                self._slots.handle(message)
            case LoadReport():
                self.state = message
                self._resolve(message.number, message)
            case LinesTold(number, lines):
                self._resolve(number, lines)
            case QuotaSpent() | UsageCounted() | ReceiptsMade() | RequestsObserved():
                self._services.handle(message)
            case EvidenceShown() | RecordStale() | ProbeAsked():
                self._handle_evidence(message)
            case ReachAsked(number, node):
                self._tasks.spawn(self._reach(number, node))
            case Ready():
                self.ready.set()

    def _handle_evidence(self, message: EvidenceShown | RecordStale | ProbeAsked) -> None:
        registry = self._services.registry
        match message:
            case EvidenceShown(node, evidence):
                registry.observe(node, evidence)
            case RecordStale(node):
                registry.refresh_record(node)
            case ProbeAsked(node):
                registry.request_probe(node)
                self.send(NodeSilent(node, registry.is_silent(node)))

    async def _reach(self, number: int, node: PeerId) -> None:
        self.send(Relayed(number, await self._services.peers.connects_through_relay(node)))

    def _accept_connection(self, door: ConnectionUse, connection: socket.socket) -> None:
        match door:
            case ConnectionUse.HTTP:
                self._tasks.spawn(self._services.control.serve_connection(connection))
            case ConnectionUse.PIPE:
                self._tasks.spawn(lend_pipe(connection, self._services.peers))
