"""Stranger of a simulation: a hostile node that floods the mesh with identities, heavy records and broken frames."""

import asyncio
import hashlib
import random
from contextlib import suppress
from contextvars import copy_context

from bench.seeds.gossip import Gossip
from bench.seeds.loop import PROCESS, SeedProcess
from bench.seeds.mesh import SeedMesh
from bench.seeds.plan import PlannedFault
from bench.seeds.wires import address_of
from registry import wire
from registry.errors import MeshError
from registry.mesh import Pipe
from registry.records import PeerId, Reach, Record, Service, Version
from registry.settings import MeshSettings
from registry.signing import Identity

HEAVIEST = 60
"""Most services that one of its identities claims; the first 16 weigh nothing."""


class HostileNode:
    """One hostile node on a machine of its own."""

    def __init__(self, host: int, victims: dict[int, PeerId], gossip: Gossip, seed: int) -> None:
        self._host = host
        self._victims = victims
        self._gossip = gossip
        self._seed = seed
        self._rng = random.Random(f"stranger {seed}")

    async def come(self, fault: PlannedFault) -> None:
        """Flood the mesh through one node, with the fault's size as the number of frames, over its seconds."""
        process = SeedProcess("x", self._host)
        context = copy_context()
        context.run(PROCESS.set, process)
        work = self._flood(process, fault)
        await self._gossip.wires.create_task(work, context=context)

    async def _flood(self, process: SeedProcess, fault: PlannedFault) -> None:
        victim, count = fault.whom[0], int(fault.size)
        mesh = SeedMesh(self._identity(0).peer, self._gossip, MeshSettings())
        await mesh.start(_say_nothing, _take_no_pipe)
        address = f"/ip4/{address_of(victim)}/tcp/6101/p2p/{self._victims[victim]}"
        for number in range(1, count + 1):
            with suppress(MeshError):
                await mesh.connect(address, timeout=1.0)
                await mesh.publish(self._frame(number))
            await asyncio.sleep(fault.seconds / count)
        await mesh.stop()
        process.gone = True

    def _identity(self, number: int) -> Identity:
        return Identity(hashlib.sha256(f"stranger {self._seed} {number}".encode()).digest())

    def _frame(self, number: int) -> bytes:
        identity, rng = self._identity(number), self._rng
        services = tuple(Service(f"x{number}", f"x{n}") for n in range(rng.randint(0, HEAVIEST)))
        record = Record(identity.peer, Version(1, 1), services=services, reach=Reach())
        frame = wire.encode_record(record, identity).frame
        if rng.random() < 0.05:
            return frame[:-1] + bytes([frame[-1] ^ 1])
        return frame


async def _say_nothing(_: PeerId, __: bytes) -> bytes:
    return b""


async def _take_no_pipe(pipe: Pipe) -> None:
    await pipe.reset()
