"""Who asks? The load generator in turns: at a steady rate, as fast as it goes with callers who hang up, and in streams."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.mock import load

CONNECTIONS = 1_000
"""For the steady rate: enough for all who wait until a frozen worker is given up."""

HASTY = 32
STREAMS = 50
CHUNKS = 100


@dataclass(slots=True)
class Seen:
    """What the crowd has seen so far."""

    requests: int = 0
    streams: int = 0
    broken: int = 0
    """Streams that ended in an error event: their worker died under them, and nothing is replayed."""
    failed: int = 0
    slowest: float = 0.0
    last_error: str = ""

    @property
    def asked(self) -> int:
        """How many times something was asked for."""
        return self.requests + self.streams


class Crowd:
    """Asks one node. Everybody who is asked for is waited for, but for those who hang up on purpose."""

    def __init__(self, url: str, bodies: Path) -> None:
        self.seen = Seen()
        self._url = f"{url}/v1/chat/completions"
        self._bodies = bodies

    async def steadily(self, rate: float, seconds: float) -> None:
        """Ask so many times a second, whatever becomes of those before."""
        said = await self._run("req", "chat", r=rate, c=CONNECTIONS, d=seconds, w=0)
        self._note(said)
        self.seen.requests += int(said["requests"] + said["unfinished"])

    async def hastily(self, seconds: float) -> None:
        """Ask as fast as it goes, and hang up on the last requests."""
        said = await self._run("req", "chat", c=HASTY, d=seconds, w=0)
        self._note(said)
        self.seen.requests += int(said["requests"])

    async def streaming(self, seconds: float) -> None:
        """Have streams side by side, each begun anew when it ends."""
        said = await self._run("stream", "paced", c=STREAMS, d=seconds, w=0, e=CHUNKS)
        self._note(said)
        self.seen.streams += int(said["requests"] + said["unfinished"])

    def _note(self, said: Mapping) -> None:
        told = int(said.get("told", 0))
        self.seen.broken += told
        self.seen.failed += int(said["errors"] + said["unfinished"]) - told
        times = said.get("latency_us")
        if times:
            self.seen.slowest = max(self.seen.slowest, times["max"] / 1e6)
        self.seen.last_error = said["last_error"] or self.seen.last_error

    async def _run(self, mode: str, body: str, **options: float) -> Mapping:
        return await load(mode, self._url, self._bodies / body, **options)
