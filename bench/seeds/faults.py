"""Faults of a run: they affect machines, workers and cables according to the plan, and record until when each was not well."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from math import inf

from bench.seeds.cables import Cables
from bench.seeds.loop import SeedProcess
from bench.seeds.machine import SeedMachine
from bench.seeds.plan import SECONDS, PlannedFault
from bench.seeds.strangers import HostileNode
from bench.seeds.wires import Wires
from bench.seeds.worker import SeedWorker

Pair = tuple[int, int]


class Ills:
    """Record of which machines, workers and pairs of machines have a fault now, and when each had its last one."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._count: Counter[Hashable] = Counter()
        self._last: dict[Hashable, float] = {}

    def begin(self, whom: Iterable[Hashable]) -> None:
        """Note that a fault begins."""
        self._count.update(whom)

    def end(self, whom: Iterable[Hashable]) -> None:
        """Note that a fault ends; others may last."""
        for key in whom:
            self._count[key] -= 1
            self._last[key] = self._now()

    def last(self, key: Hashable) -> float:
        """Return the end of its last fault: infinity during one, minus infinity if it never had any."""
        return inf if self._count[key] else self._last.get(key, -inf)


class FaultRunner:
    """Runner of faults, each for its duration."""

    def __init__(
        self,
        machines: list[SeedMachine],
        models: list[SeedWorker],
        cables: Cables,
        wires: Wires,
        stranger: HostileNode,
        rng: random.Random,
    ) -> None:
        self.ills = Ills(wires.time)
        self._machines = machines
        self._models = models
        self._cables = cables
        self._wires = wires
        self._stranger = stranger
        self._rng = rng

    async def befall(self, fault: PlannedFault) -> None:
        """Carry out one fault."""
        numbers = range(len(self._machines))
        match fault.kind:
            case "kill" | "power cut" | "stop":
                await self._end(fault)
            case "freeze" | "starve":
                await self._hold_up(fault)
            case "partition":
                await self._part(
                    fault, [(a, b) for a in fault.whom for b in numbers if b not in fault.whom]
                )
            case "one-way cut":
                await self._part(fault, [(fault.whom[0], fault.whom[1])])
            case "loss":
                await self._lose(fault, [(a, b) for a in numbers for b in numbers])
            case "clock jump":
                self._machines[fault.whom[0]].wall_offset += fault.size
            case "strangers":
                await self._stranger.come(fault)
            case _:
                await self._spoil(fault)

    # Machines.

    async def _end(self, fault: PlannedFault) -> None:
        machines = [self._machines[number] for number in fault.whom]
        without_power = fault.kind == "power cut"
        models = [m for m in self._models if without_power and m.host in fault.whom]
        ill = [*fault.whom, *(model.name for model in models)]
        self.ills.begin(ill)
        for machine in machines:
            if without_power:
                self._cables.down[machine.number] += 1
                self._wires.hang_up(machine.number)
            if fault.kind == "stop":
                await machine.stop()
            else:
                machine.kill()
        for model in models:
            model.end()
        if fault.seconds > SECONDS:
            return
        await asyncio.sleep(fault.seconds)
        self.ills.end(ill)
        for machine in machines:
            self._cables.down[machine.number] -= without_power
            if machine.process is None and self.ills.last(machine.number) < inf:
                machine.start()
        self._revive(models)

    async def _hold_up(self, fault: PlannedFault) -> None:
        machine = self._machines[fault.whom[0]]
        process, ends = machine.process, self._wires.time() + fault.seconds
        if process is None:
            return
        self.ills.begin(fault.whom)
        if fault.kind == "freeze":
            await self._frozen(process, fault.seconds)
        while self._wires.time() < ends:
            await self._frozen(process, self._rng.uniform(0.02, fault.size))
            await asyncio.sleep(self._rng.uniform(0.001, 0.1))
        self.ills.end(fault.whom)

    async def _frozen(self, process: SeedProcess, seconds: float) -> None:
        self._wires.freeze(process)
        await asyncio.sleep(seconds)
        self._wires.thaw(process)

    # Cables.

    async def _part(self, fault: PlannedFault, directions: list[Pair]) -> None:
        back = [(b, a) for a, b in directions] if fault.kind == "partition" else []
        pairs = [*directions, *((b, a) for a, b in directions)]
        self._cables.cut.update([*directions, *back])
        self.ills.begin(pairs)
        await asyncio.sleep(fault.seconds)
        self._cables.cut.subtract([*directions, *back])
        self.ills.end(pairs)

    async def _lose(self, fault: PlannedFault, pairs: list[Pair]) -> None:
        self._cables.losses.append(fault.size)
        self.ills.begin(pairs)
        await asyncio.sleep(fault.seconds)
        self._cables.losses.remove(fault.size)
        self.ills.end(pairs)

    # Workers.

    async def _spoil(self, fault: PlannedFault) -> None:
        model = self._models[fault.whom[0]]
        process, temper = model.process, model.temper
        self.ills.begin([model.name])
        match fault.kind:
            case "worker death":
                model.end()
            case "worker freeze" if process is not None:
                self._wires.freeze(process)
            case "worker error":
                temper.fails = "error"
            case "worker dies":
                temper.fails = "dies"
            case "slow worker":
                temper.seconds = fault.size
        await asyncio.sleep(fault.seconds)
        if process is not None and fault.kind == "worker freeze":
            self._wires.thaw(process)
        self.ills.end([model.name])
        self._revive([model])

    def _revive(self, models: list[SeedWorker]) -> None:
        for model in models:
            if self.ills.last(model.name) < inf:
                model.recover()
