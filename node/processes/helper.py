"""Life of a helper: it is set up by the first process, and serves until that process ends or tells it to leave."""

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

import uvloop

from node import memory
from node.auth import quota_sync
from node.faces.app import application, link_app, model_routes
from node.listeners import TRUSTED_PER_NODE, Listener, serve, trust_known_nodes
from node.observe import logs
from node.processes import forward
from node.processes.assembly import HelperParts, assemble
from node.processes.channel import Channel
from node.processes.forward import DescriptorSender
from node.processes.protocol import (
    Hello,
    KeysHeld,
    Leave,
    LinesAsked,
    LinesTold,
    LoadHeard,
    NodeForgotten,
    NodeSeen,
    NodeSilent,
    QuotaSpent,
    QuotaStandings,
    Ready,
    ReceiptsMade,
    Relayed,
    RequestsObserved,
    SlotGranted,
    SlotRefused,
    StateAsked,
    ToHelper,
    UsageCounted,
    WorkersHeld,
    read_by_helper,
)
from node.runtime import supervise
from node.tls import Certificate, configured_certificate
from router.http.pool import ConnectionPool
from router.peers.tls import server_context

log = logging.getLogger("modelvine.processes")

_LAST_WORDS = 1.0
"""Seconds that callers have to receive the end of their streams, once the first process is gone."""


@dataclass(frozen=True, slots=True)
class InheritedSockets:
    """Sockets that a helper inherits: its ends of two socket pairs, and two listeners."""

    channel: socket.socket
    doors: socket.socket
    http: socket.socket
    link: socket.socket


def main(descriptors: list[str]) -> int:
    """Serve over the inherited descriptors until the first process ends, or tells the helper to."""
    # A signal that stops the node may go to all of its processes; the first one tells its helpers when to end.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()
    channel, doors, http, link = (socket.socket(fileno=int(each)) for each in descriptors)
    uvloop.run(_Helper(InheritedSockets(channel, doors, http, link)).run())
    return 0


class _Helper:
    """One helper, from the first message on."""

    def __init__(self, ends: InheritedSockets) -> None:
        self._ends = ends
        self._descriptor_sender = DescriptorSender(ends.doors)
        self._channel = Channel(read_by_helper, self._handle_message)
        self._parts: HelperParts | None = None
        self._listeners: tuple[Listener, ...] = ()
        self._certificate: Certificate | None = None
        self._has_initial_state = asyncio.Event()
        self._must_stop_accepting = asyncio.Event()
        self._must_exit = asyncio.Event()

    async def run(self) -> None:
        """Serve until the first process ends, or tells the helper to."""
        await self._channel.open(self._ends.channel)
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(self._end_with_the_first())
            await self._has_initial_state.wait()
            if self._parts is None:
                raise RuntimeError("the first process sent a request before its greeting")
            async with AsyncExitStack() as closing:
                await self._serve(self._parts, closing)
                beside: dict[str, Callable[[], Awaitable[None]]] = {
                    "loop lag": partial(self._parts.loop_lag.watch, time.monotonic),
                    "books": self._report_usage_forever,
                    "memory": memory.release_forever,
                }
                if self._certificate is not None:
                    beside["certificate"] = self._certificate.follow
                work = [group.create_task(supervise(name, run)) for name, run in beside.items()]
                memory.configure_collector()
                self._channel.send(Ready())
                await self._must_stop_accepting.wait()
                _, public = self._listeners
                await public.stop_accepting()
                await self._must_exit.wait()
                for task in work:
                    task.cancel()
            self._report_usage()
            ending.cancel()

    async def _report_usage_forever(self) -> None:
        while True:
            await asyncio.sleep(quota_sync.PERIOD)
            self._report_usage()

    def _report_usage(self) -> None:
        if self._parts is None:
            return
        if spendings := tuple(self._parts.quotas.spent()):
            self._channel.send(QuotaSpent(spendings))
        if rows := self._parts.usage.take():
            self._channel.send(UsageCounted(rows))
        if receipts := self._parts.receipts.take():
            self._channel.send(ReceiptsMade(receipts))
        metrics = self._parts.metrics
        refused = metrics.recent.take_refused()
        measured = metrics.measurements.take() if metrics.measurements is not None else ()
        if refused or measured:
            self._channel.send(RequestsObserved(refused, measured))

    async def _end_with_the_first(self) -> None:
        await self._channel.closed.wait()
        # The next run of the node needs the ports; callers in the middle of a stream are told that it ends.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await asyncio.gather(*(served.close(within=0) for served in self._listeners))
        os._exit(1)

    async def _serve(self, parts: HelperParts, closing: AsyncExitStack) -> None:
        if parts.exporter is not None:
            closing.push_async_callback(asyncio.to_thread, parts.exporter.close)
        closing.push_async_callback(parts.links.close)
        settings, serving = parts.settings, parts.serving()
        tls = server_context(parts.identity)
        limit = TRUSTED_PER_NODE * settings.registry.max_nodes
        parts.listeners.append(trust_known_nodes(tls, parts.view, at_most=limit))
        limits, counts = settings.web, parts.metrics.connections
        first = ConnectionPool(self._descriptor_sender.dial(), settings.router)
        app = link_app(serving, parts.view, parts.keys, forward.link_routes(first, settings))
        link = await serve(app, self._ends.link, closing, limits, counts, tls=tls)
        forwarded = forward.routes(first, parts.access, settings)
        public = application(
            [*model_routes(serving), *forwarded], parts.access.admit, leaving=parts.view.draining
        )
        self._certificate = configured_certificate(settings)
        shown = self._certificate
        http = await serve(public, self._ends.http, closing, limits, counts, certificate=shown)
        self._listeners = (link, http)

    def _handle_message(self, message: ToHelper) -> None:
        if isinstance(message, Hello):
            logs.configure_as(message.settings.node)
            self._parts = assemble(message, self._descriptor_sender, self._channel)
        elif self._parts is not None:
            self._apply_message(self._parts, message)

    def _apply_message(self, parts: HelperParts, message: ToHelper) -> None:
        match message:
            case WorkersHeld() | NodeSeen() | NodeForgotten() | NodeSilent():
                if changed := parts.view.apply(message):
                    for listener in parts.listeners:
                        listener(changed)
            case KeysHeld() | QuotaStandings():
                parts.take_over(message)
            case LoadHeard(node, loads):
                parts.router.record_loads(node, dict(loads))
            case SlotGranted() | SlotRefused() | Relayed():
                parts.slots.handle(message)
            case StateAsked(number, beside):
                # This message comes after the whole initial state.
                self._has_initial_state.set()
                parts.beside.clear()
                parts.beside.update(beside)
                self._channel.send(parts.load_report(number))
            case LinesAsked(number, since):
                self._channel.send(LinesTold(number, logs.recent().since(since)))
            case Leave(ends):
                (self._must_exit if ends else self._must_stop_accepting).set()
