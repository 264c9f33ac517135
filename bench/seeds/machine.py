"""Machine of a simulation: a whole node, which is started, killed, frozen and stopped, and a persistent disk.

The node is composed as in `node.run`: its registry, agent, router, links and both HTTP listeners are the real ones.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from contextvars import copy_context
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, cast

from bench.seeds.gossip import Gossip
from bench.seeds.loop import PROCESS, SeedProcess
from bench.seeds.mesh import SeedMesh
from bench.seeds.wires import SeedPort, Wires, address_of
from node.assembly import Environment, NodeInputs, NodeParts, assemble
from node.auth.access import Access
from node.auth.quotas import Quotas
from node.config.settings import KeylessAccess, Settings
from node.faces import Context, Listening
from node.faces.app import link_app, public_app
from node.faces.v1.topology import Topology
from node.inspection import Inspection
from node.listeners import serve, trust_known_nodes
from node.observe.aggregate import Aggregate
from node.observe.host import Host
from node.observe.log_writer import RecentLines
from node.observe.samples import LoopLag
from registry.errors import StoreUnavailable
from registry.mesh import Pipe
from registry.records import PeerId, Reach, Standing
from registry.signing import Identity
from registry.store import Change, Put, Space, check_limits
from router.peers.tls import certificate_of, server_context

HTTP, LINK = 6100, 6102
TOKEN = "the-token-of-all-nodes"
YEAR_2026 = 1_800_000_000.0


class Disk:
    """Data that a machine keeps without power."""

    def __init__(self) -> None:
        self.spaces: dict[Space, dict[str, bytes]] = {space: {} for space in Space}


class SeedStore:
    """Store of a node. Writes take a moment; those of a killed process fail or have succeeded, at random."""

    shared = False

    def __init__(self, disk: Disk, process: SeedProcess, rng: random.Random) -> None:
        self._disk = disk
        self._process = process
        self._rng = rng

    async def read(self, space: Space) -> Mapping[str, bytes]:
        """Return everything in one space."""
        return dict(self._disk.spaces[space])

    async def write(self, *changes: Change) -> None:
        """Apply all changes or none."""
        check_limits(changes)
        late = self._rng.random() < 0.5
        if late:
            await self._moment()
        if self._process.gone:
            raise StoreUnavailable("this process is gone")
        for change in changes:
            rows = self._disk.spaces[change.space]
            if isinstance(change, Put):
                rows[change.key] = change.value
            else:
                rows.pop(change.key, None)
        if not late:
            await self._moment()

    async def close(self) -> None:
        """Do nothing."""

    async def _moment(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.0005, 0.01))


@dataclass
class SeedMachine:
    """One machine; `number` is its position among all."""

    number: int
    identity: Identity
    wires: Wires
    gossip: Gossip
    settings: Settings
    data_dir: Path
    rng: random.Random
    wall_offset: float = 0.0
    """Error of its wall clock, in seconds."""
    disk: Disk = field(default_factory=Disk)
    process: SeedProcess | None = None
    parts: NodeParts | None = None
    """The node's parts, while it serves."""
    mesh: SeedMesh | None = None
    served: float = inf
    """Time since which its node serves."""
    lives: int = 0
    failures: list[BaseException] = field(default_factory=list)
    """Errors that ended the node unexpectedly."""
    _task: "asyncio.Task[None] | None" = None

    @property
    def peer(self) -> PeerId:
        """The node's id."""
        return self.identity.peer

    @property
    def serves(self) -> bool:
        """Whether its node is up, and not frozen."""
        process = self.process
        return self.parts is not None and process is not None and not process.frozen

    def start(self) -> None:
        """Start the node."""
        self.lives += 1
        process = self.process = SeedProcess(f"n{self.number}.{self.lives}", self.number)
        context = copy_context()
        context.run(PROCESS.set, process)
        self._task = self.wires.create_task(self._live(process), context=context)
        self._task.add_done_callback(self._ended)

    def kill(self) -> None:
        """End the node at once, and lose its memory."""
        process, self.process, self.parts = self.process, None, None
        if process is None:
            return
        mesh, self.mesh = self.mesh, None
        if mesh is not None:
            self.gossip.end(mesh)
        process.gone = True
        process.frozen = 0
        self.wires.thaw(process)
        self.wires.end(process)
        for task in self.wires.tasks_of(process):
            task.cancel()
        self.wires.call_later(5.0, _over, process)

    async def stop(self) -> None:
        """Stop the node cleanly: it tells the other nodes that it leaves, and ends."""
        task, process, self.parts = self._task, self.process, None
        if task is not None and process is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=10.0)
            if self.process is process:
                self.kill()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    async def _live(self, process: SeedProcess) -> None:
        async with AsyncExitStack() as closing:
            here = address_of(self.number)
            listening = Listening(http=f"{here}:{HTTP}", link=f"{here}:{LINK}")
            parts = await assemble(self._given(process), listening, closing)
            context = self._context(parts, listening)
            await self._serve_link(context, process, closing)
            await parts.registry.start(_no_pipe)
            closing.push_async_callback(parts.registry.stop)
            await parts.registry.publish_first_record(
                services=parts.agent.workers.services(),
                reach=Reach(
                    mesh=parts.registry.mesh.addresses(),
                    links=(listening.link,),
                    certificate=certificate_of(self.identity),
                ),
                agent="modelvine/seeds",
                name=f"n{self.number}",
            )
            closing.push_async_callback(parts.registry.set_standing, Standing.LEFT)
            settings, counts = self.settings.web, parts.metrics.connections
            await serve(public_app(context), _port(process, HTTP), closing, settings, counts)
            if process.gone:
                return
            self.parts, self.served = parts, self.wires.time()
            async with asyncio.TaskGroup() as group:
                for run in (parts.registry.run, context.inspection.run, context.inspection.watch):
                    group.create_task(run())

    def _given(self, process: SeedProcess) -> NodeInputs:
        rng = random.Random(self.rng.random())

        def mesh(inputs: NodeInputs) -> SeedMesh:
            self.mesh = SeedMesh(inputs.identity.peer, self.gossip, inputs.settings.mesh)
            return self.mesh

        outside = Environment(
            now=self.wires.time,
            wall=lambda: YEAR_2026 + self.wires.time() + self.wall_offset,
            chance=rng.random,
            mesh=mesh,
            store=lambda _: SeedStore(self.disk, process, rng),
        )
        return NodeInputs(self.settings, self.identity, None, self.data_dir, outside=outside)

    def _context(self, parts: NodeParts, listening: Listening) -> Context:
        loop_lag, now = LoopLag(), self.wires.time
        aggregate = Aggregate(parts.router, parts.metrics, loop_lag, RecentLines())
        return Context(
            peer=self.peer,
            settings=self.settings,
            registry=parts.registry,
            router=parts.router,
            agent=parts.agent,
            keys=parts.keys,
            quotas=Quotas(now, now),
            usage=parts.usage.book,
            usage_log=parts.usage,
            audit=parts.audit,
            receipts=parts.receipts.book,
            receipt_log=parts.receipts,
            node_events=parts.node_events,
            inspection=Inspection(parts.agent, parts.router, now),
            access=Access(token=TOKEN, keyless=KeylessAccess.EVERYBODY),
            metrics=parts.metrics,
            loop_lag=loop_lag,
            aggregate=aggregate,
            loads=aggregate,
            links=parts.links,
            topology=Topology(parts.registry, parts.links),
            bootstrap=parts.bootstrap,
            host=Host(now=now),
            listening=listening,
            swarm_key="",
            started=now(),
            now=now,
        )

    async def _serve_link(
        self, context: Context, process: SeedProcess, closing: AsyncExitStack
    ) -> None:
        tls, registry = server_context(self.identity), context.registry
        registry.on_change(trust_known_nodes(tls, registry, at_most=1_000))
        app, counts = link_app(context, registry.replica, context.keys), context.metrics.connections
        await serve(app, _port(process, LINK), closing, self.settings.web, counts, tls=tls)


def _over(process: SeedProcess) -> None:
    process.over = True


def _port(process: SeedProcess, number: int) -> Any:
    return cast("Any", SeedPort(process, number))


async def _no_pipe(pipe: Pipe) -> None:
    await pipe.reset()
