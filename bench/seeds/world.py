"""World of one run: machines, workers, callers and the planned faults, from the first start to the quiet time at the end."""

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.seeds.cables import Cables
from bench.seeds.callers import AskedChat, Registrations, at, chat
from bench.seeds.faults import FaultRunner
from bench.seeds.gossip import Gossip
from bench.seeds.loop import VirtualTask
from bench.seeds.machine import SeedMachine
from bench.seeds.plan import FIRST_PORT, MODELS, QUIET, SECONDS, PlannedFault, SeedPlan
from bench.seeds.strangers import HostileNode
from bench.seeds.wires import Wires, address_of
from bench.seeds.worker import SeedWorker, Work
from node.config.settings import Settings
from registry.members.liveness import Presence
from registry.settings import MeshSettings
from registry.signing import Identity

LAST_EVENTS = 200


@dataclass
class Trace:
    """Trace of events in order: a hash of all of them, and the text of the last ones."""

    clock: Callable[[], float]
    events: int = 0
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_EVENTS))

    def __post_init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, *parts: object) -> None:
        """Record an event."""
        line = f"{self.clock():.6f} {' '.join(map(str, parts))}"
        self._hash.update(line.encode())
        self.events += 1
        self.last.append(line)

    @property
    def digest(self) -> str:
        """The hash of all events."""
        return self._hash.hexdigest()


class SeedWorld:
    """All parts of one run."""

    def __init__(self, plan: SeedPlan, data_dir: Path) -> None:
        self.plan = plan
        self.rng = random.Random(f"world {plan.seed}")
        self.cables = Cables(plan.seed, delay=plan.delay)
        self.wires = Wires(self.cables)
        self.began = self.wires.time()
        self.trace = Trace(lambda: self.wires.time() - self.began)
        self.gossip = Gossip(self.wires, self.trace.note)
        self.registered = Registrations()
        self.asked: list[AskedChat] = []
        self.works: list[Work] = []
        self.machines = self._machines(data_dir)
        self.models = [
            SeedWorker(
                f"w{index}",
                host,
                FIRST_PORT + index,
                self.wires,
                random.Random(f"{plan.seed} {index}"),
                self.works,
            )
            for index, (host, _) in enumerate(plan.workers)
        ]
        victims = {machine.number: machine.peer for machine in self.machines}
        stranger = HostileNode(plan.machines, victims, self.gossip, plan.seed)
        self.faults = FaultRunner(
            self.machines,
            self.models,
            self.cables,
            self.wires,
            stranger,
            random.Random(f"faults {plan.seed}"),
        )

    def _machines(self, data_dir: Path) -> list[SeedMachine]:
        seeds = [
            hashlib.sha256(f"key {self.plan.seed} {n}".encode()).digest()
            for n in range(self.plan.machines)
        ]
        identities = [Identity(seed) for seed in seeds]
        first = tuple(
            f"/ip4/{address_of(n)}/tcp/6101/p2p/{identity.peer}"
            for n, identity in enumerate(identities[:2])
        )
        settings = Settings(mesh=MeshSettings(bootstrap=first))
        return [
            SeedMachine(
                number, identity, self.wires, self.gossip, settings, data_dir,
                random.Random(f"machine {self.plan.seed} {number}"), self.plan.walls[number],
            )
            for number, identity in enumerate(identities)
        ]  # fmt: skip

    def run(self) -> None:
        """Run the plan."""
        asyncio.set_event_loop(self.wires)
        try:
            self.wires.run_until_complete(self._happen())
        finally:
            asyncio.set_event_loop(None)

    def close(self) -> None:
        """Cancel all tasks, and close the loop."""
        for task in asyncio.all_tasks(self.wires):
            if isinstance(task, VirtualTask) and task.process is not None:
                task.process.frozen, task.process.over = 0, False
            task.cancel()
        self.wires.run_until_complete(asyncio.sleep(20.0))
        self.wires.close()

    async def _happen(self) -> None:
        for model in self.models:
            model.start()
        async with asyncio.TaskGroup() as group:
            for machine in self.machines:
                group.create_task(self._begin(machine))
            for fault in self.plan.faults:
                group.create_task(self._befall(fault))
            group.create_task(self._ask())
        await asyncio.sleep(max(0.0, self.began + SECONDS - self.wires.time()))
        self.trace.note("calm")
        await asyncio.sleep(QUIET)

    # Machines, registrations and requests.

    async def _begin(self, machine: SeedMachine) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, 1.5))
        machine.start()
        host = machine.number
        for index, (owner, name) in enumerate(self.plan.workers):
            if owner == host:
                await self._register(host, name, index)
        heavy, count = self.plan.heavy
        if heavy == host and count:
            names = [f"h{host}-{number}" for number in range(count)]
            await self._at(host, self.registered.register_all(self.wires, host, names, FIRST_PORT))
        await self._churn(host)

    async def _register(self, host: int, name: str, index: int) -> None:
        port = FIRST_PORT + index
        while self.wires.time() < self.began + SECONDS:
            if await self._at(host, self.registered.register(self.wires, host, "p", name, port)):
                return
            await asyncio.sleep(1.0)

    async def _churn(self, host: int) -> None:
        rng, number = random.Random(f"churn {self.plan.seed} {host}"), 0
        while True:
            await asyncio.sleep(rng.expovariate(1 / 8.0))
            if self.wires.time() > self.began + SECONDS:
                return
            own = [name for owner, name in self.registered.kept if owner == host and name[0] == "u"]
            if own and rng.random() < 0.4:
                name = rng.choice(own)
                did = await self._at(host, self.registered.withdraw(self.wires, host, "p", name))
                self.trace.note("withdrawn", host, name, did)
            else:
                number += 1
                name = f"u{host}-{number}"
                register = self.registered.register(self.wires, host, "p", name, FIRST_PORT)
                self.trace.note("registered", host, name, await self._at(host, register))

    async def _at(self, host: int, work):  # type: ignore[no-untyped-def]
        return await self.wires.create_task(work, context=at(host))

    async def _ask(self) -> None:
        await asyncio.sleep(4.0)
        async with asyncio.TaskGroup() as group:
            while (now := self.wires.time()) < self.began + SECONDS:
                host, model = self.rng.randrange(len(self.machines)), self.rng.choice(MODELS)
                stream = self.rng.random() < 0.3
                name, listed = f"r{len(self.asked)}", self._listed(self.machines[host], model)
                request = AskedChat(name, host, model, stream, now, listed)
                self.asked.append(request)
                group.create_task(self._asking(request))
                await asyncio.sleep(self.rng.expovariate(self.plan.rate))

    def _listed(self, machine: SeedMachine, model: str) -> frozenset[int]:
        if machine.parts is None:
            return frozenset()
        registry = machine.parts.registry
        held = registry.catalog.held
        return frozenset(
            m.number
            for m in self.machines
            if m.peer in held and registry.presence(m.peer) is Presence.ALIVE
            if any(s.model == model for s in held[m.peer].record.services)
        )

    async def _asking(self, request: AskedChat) -> None:
        await self._at(request.host, chat(self.wires, request))
        self.trace.note(request)
        self.judged(request)

    async def _befall(self, fault: PlannedFault) -> None:
        await asyncio.sleep(fault.at)
        self.trace.note("begins", fault.kind, fault.whom)
        await self.faults.befall(fault)
        self.trace.note("ends", fault.kind, fault.whom)

    def judged(self, request: AskedChat) -> None:
        """Handle the end of a request; `Checks` replaces this method."""
