"""Client that keeps sending requests through a fault: each request, its answer, and how long that took."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.swarm.client import Client, Seen
from tests.swarm.nodes import Node
from tests.swarm.waiting import few, percentile, show

SLOW = 1.0
"""Seconds."""

UNTIL_GIVEN_UP = 31.0
"""Seconds."""

UNANSWERED = 0
"""Status noted for a request that the client gave up after 30 s."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when it was sent, what was answered and after how long."""

    at: float
    seen: Seen


@dataclass(slots=True)
class Asking:
    """A client that asks one node for one model again and again, without waiting for the previous answer."""

    client: Client
    node: Node
    model: str
    every: float = 0.2
    asked: list[Asked] = field(default_factory=list)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Ask until told to end; return when the last answer has come."""
        async with asyncio.TaskGroup() as group:
            while not self._ended.is_set():
                group.create_task(self._ask())
                await asyncio.sleep(self.every)

    def end(self) -> None:
        """Send no more requests."""
        self._ended.set()

    async def _ask(self) -> None:
        began = time.monotonic()
        try:
            answer = await self.client.chat(self.node, self.model)
        except TimeoutError:
            answer = Seen(UNANSWERED, {}, b"", time.monotonic() - began)
        self.asked.append(Asked(began, answer))

    def check(self, label: str, *, since: float, routed_round: float = UNTIL_GIVEN_UP) -> None:
        """Check that every request was answered, and show figures.

        Apart from a few by chance, none took more than `routed_round` seconds, and none sent later than that after the
        fault was slow.
        """
        failed = [request for request in self.asked if request.seen.status != 200]
        seconds = [request.seen.seconds for request in self.asked]
        slow = [request.at - since for request in self.asked if request.seen.seconds > SLOW]
        after = [request for request in self.asked if request.at > since + routed_round]
        still_slow = [request for request in after if request.seen.seconds > SLOW]
        show(
            f"{label}: asked at {self.node.name}",
            requests=str(len(seconds)),
            failed=str(dict(Counter(request.seen.status for request in failed))),
            over_1_s=str(len(slow)),
            longest=max(seconds),
            p50=percentile(seconds, 0.5),
            last_slow_one_sent_after=max(slow, default=0.0),
        )
        assert len(seconds) > 5
        assert not failed, (failed[0].at - since, failed[0].seen)
        assert few(sum(took > routed_round for took in seconds), len(seconds)), sorted(seconds)
        assert few(len(still_slow), len(after)), [request.at - since for request in still_slow]


async def watch(
    client: Client, nodes: Sequence[Node], changes: list[tuple[float, str, str]], *, seconds: float
) -> None:
    """Note each change of a node's state (alive, doubted, gone) in the view of each node."""
    names = {node.peer: node.name for node in nodes}
    before: dict[tuple[str, str], str] = {}
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for node in nodes:
            view = await client.states(node)
            for peer, name in names.items():
                state = view.get(peer, "gone")
                was = before.setdefault((node.name, name), state)
                if was != state:
                    changes.append((time.monotonic(), node.name, f"{name} {was} → {state}"))
                    before[node.name, name] = state
        await asyncio.sleep(0.2)
