"""Steady load of so many requests a second, whatever becomes of the earlier ones."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from tests.swarm.client import Client, Seen
from tests.swarm.nodes import Node
from tests.swarm.waiting import percentile, show


@dataclass(frozen=True, slots=True)
class Shot:
    """One request: when it was sent on the monotonic clock, and what came of it."""

    at: float
    seen: Seen | None
    error: str = ""

    @property
    def good(self) -> bool:
        """Whether it was answered."""
        return self.seen is not None and self.seen.status == 200


class Load:
    """Load that asks one node for one model until it is told to stop. Its requests are in `shots`."""

    def __init__(self, client: Client, node: Node, model: str, *, rate: float = 20.0) -> None:
        self.shots: list[Shot] = []
        self._client = client
        self._node = node
        self._model = model
        self._pause = 1 / rate
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Send nothing more; requests under way are waited for."""
        self._ended.set()

    async def run(self) -> None:
        """Send until `end`."""
        async with asyncio.TaskGroup() as group:
            due = time.monotonic()
            while not self._ended.is_set():
                group.create_task(self._shoot())
                due += self._pause
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _shoot(self) -> None:
        sent_at = time.monotonic()
        try:
            answer = await self._client.chat(self._node, self._model)
        except (aiohttp.ClientError, TimeoutError) as error:
            self.shots.append(Shot(sent_at, None, type(error).__name__))
        else:
            self.shots.append(Shot(sent_at, answer))


def report(label: str, shots: Sequence[Shot], *, since: float) -> None:
    """Print what the load saw, and fail unless every request was answered. `since` is when the harm was done."""
    answers = [shot.seen for shot in shots if shot.seen is not None]
    attempts = Counter(answer.headers.get("x-modelvine-attempts", "?") for answer in answers)
    after = [s.seen.seconds for s in shots if s.seen is not None and since <= s.at < since + 2]
    seconds = [answer.seconds for answer in answers]
    bad = [shot for shot in shots if not shot.good]
    show(
        label,
        requests=str(len(shots)),
        failed=str(len(bad)),
        p50=percentile(seconds, 0.5),
        p99=percentile(seconds, 0.99),
        max=max(seconds),
        p99_of_the_2_s_after=percentile(after, 0.99),
        answered_at_attempt=", ".join(f"{n}: {count}" for n, count in sorted(attempts.items())),
    )
    assert not bad, [shot.error or (shot.seen and shot.seen.body) for shot in bad]
