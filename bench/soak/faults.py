"""Faults of a soak test, one at a time: a node or its worker is killed, frozen or stopped, and then recovers.

In addition, hostile strangers and members attack the node that takes the requests.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle

from bench.mock import Mock
from tests.swarm.attacks.attacker import Attacker
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm

FROZEN = 3.0
"""Seconds for which a process is frozen."""


ATTACKS = (
    "102 heavy identities pushed",
    "a loud member",
    "19,900 made-up nodes listed by a member",
    "newer words of 100 strangers",
    "records of the worst shapes",
)


@dataclass(slots=True)
class Place:
    """Node that serves, and its worker."""

    node: Node
    worker: Mock


@dataclass(slots=True)
class Harm:
    """Injector of faults into the `victims` in turn; `others` have none, but one of them is attacked."""

    swarm: Swarm
    client: Client
    others: list[Node]
    victims: list[Place]
    attacker: Attacker
    done: int = 0
    _order: Iterator[tuple[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        kinds = ("worker killed", "node frozen", "worker frozen", "node killed", "node stopped")
        places = range(len(self.victims))
        # An attack after each round over the places.
        self._order = cycle(
            step
            for kind, attack in zip(kinds, ATTACKS, strict=True)
            for step in (*((kind, n) for n in places), (attack, 0))
        )

    async def next(self) -> str:
        """Inject the next fault and undo it; return its kind once all nodes are well."""
        kind, number = next(self._order)
        if kind in ATTACKS:
            return await self.attack(kind)
        place = self.victims[number]
        does: dict[str, Callable[[Place], Awaitable[None]]] = {
            "worker killed": self._kill_worker,
            "worker frozen": self._freeze_worker,
            "node killed": self._kill_node,
            "node frozen": self._freeze_node,
            "node stopped": self._stop_node,
        }
        await does[kind](place)
        await self.client.met([*self.others, *(victim.node for victim in self.victims)])
        self.done += 1
        return f"{kind}: {place.node.name}"

    async def attack(self, kind: str) -> str:
        """Attack the node that takes the requests; return the attack, once all nodes see each other as alive."""
        report = await asyncio.to_thread(self.attacker.do, kind)
        await self.client.met([*self.others, *(victim.node for victim in self.victims)])
        self.done += 1
        return f"{kind}: {report['seconds']:.0f} s"

    async def _kill_worker(self, place: Place) -> None:
        await asyncio.to_thread(place.worker.kill)
        await asyncio.sleep(1)
        place.worker.again()

    async def _freeze_worker(self, place: Place) -> None:
        place.worker.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(FROZEN)
        finally:
            place.worker.send(signal.SIGCONT)

    async def _kill_node(self, place: Place) -> None:
        await asyncio.to_thread(self.swarm.kill, place.node.actor)
        await self._start(place)

    async def _freeze_node(self, place: Place) -> None:
        process = place.node.actor.process
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(FROZEN)
        finally:
            process.send_signal(signal.SIGCONT)

    async def _stop_node(self, place: Place) -> None:
        code = await asyncio.to_thread(self.swarm.stop, place.node)
        if code != 0:
            raise RuntimeError(f"{place.node.name} was told to stop and ended with {code}")
        await self._start(place)

    async def _start(self, place: Place) -> None:
        again = asyncio.to_thread(self.swarm.again, place.node, known=self.others)
        place.node = await again
