"""Which of the ways to one peer is taken? An address that has proven itself, else a pipe; and the connections kept."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import aiohttp
from yarl import URL

from registry.mesh import Pipe
from registry.mesh.crew import Crew
from registry.records import Reach
from router.connections import TcpConnector, session
from router.deadlines import Deadlines
from router.dialects import Route
from router.pipes import PipeConnector
from router.settings import RouterSettings

_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 320.0
_TRIED = 64  # addresses that one peer's records may name before the oldest are waited for again
_PIPED = URL("https://peer.invalid")  # RFC 2606: a name that never resolves


@dataclass(frozen=True, slots=True)
class Link:
    """A way to a peer that is ready for use: append a path to `base`."""

    session: aiohttp.ClientSession
    base: URL
    route: Route
    deadlines: Deadlines


@dataclass(frozen=True, slots=True)
class Untried:
    """No address of the peer has been tried yet."""


@dataclass(frozen=True, slots=True)
class Proven:
    """The peer answered here, and showed its key."""

    base: URL


@dataclass(frozen=True, slots=True)
class Shut:
    """No address answered; they are tried again then, for nobody to wait for, and left alone for twice the pause."""

    until: float
    pause: float
    tried: frozenset[URL] = frozenset()


Direct = Untried | Proven | Shut


class Way:
    """What is known of the way to one peer, and the connections that stand."""

    def __init__(
        self,
        reach: Reach,
        context: ssl.SSLContext,
        *,
        open_pipe: Callable[[], Awaitable[Pipe]],
        relayed: Callable[[], bool],
        crew: Crew,
        settings: RouterSettings,
    ) -> None:
        self.reach = reach
        self.deadlines = Deadlines()
        self.users = 0
        self.retired = False
        self._context = context
        self._open_pipe = open_pipe
        self._relayed = relayed
        self._crew = crew
        self._settings = settings
        self._direct: Direct = Untried()
        self._trying = asyncio.Lock()
        self._tcp: aiohttp.ClientSession | None = None
        self._pipes: aiohttp.ClientSession | None = None

    def learn(self, reach: Reach) -> None:
        """Take in a newer word on the peer's addresses."""
        self.reach = reach

    def forgive(self) -> None:
        """The peer was lost and lives: its addresses deserve to be waited for once more."""
        if isinstance(self._direct, Shut):
            self._direct = Untried()

    def doubt(self) -> None:
        """A request could not connect: an address that was proven has to be proven anew."""
        if isinstance(self._direct, Proven):
            self._direct = Untried()

    async def close(self) -> None:
        """Close the connections."""
        opened, self._tcp, self._pipes = (self._tcp, self._pipes), None, None
        for one in opened:
            if one is not None:
                await one.close()

    async def link(self, addresses: list[URL]) -> Link:
        """Choose between the ways. All callers wait for addresses that were never tried, nobody for those that failed."""
        if not addresses:
            return self._piped()
        if isinstance(self._direct, Proven) and self._direct.base not in addresses:
            self._direct = Untried()
        if self._never_tried(addresses):
            async with self._trying:
                if fresh := self._never_tried(addresses):
                    await self._try(fresh, _FIRST_PAUSE)
        elif isinstance(self._direct, Shut):
            self._retry(self._direct, addresses)
        if isinstance(self._direct, Proven):
            return Link(self._over_tcp(), self._direct.base, Route.DIRECT, self.deadlines)
        return self._piped()

    def _never_tried(self, addresses: list[URL]) -> list[URL]:
        match self._direct:
            case Proven():
                return []
            case Shut(tried=tried):
                return [address for address in addresses if address not in tried]
            case Untried():
                return addresses

    def _retry(self, shut: Shut, addresses: list[URL]) -> None:
        now = asyncio.get_running_loop().time()
        if now >= shut.until:
            pause = min(2 * shut.pause, _LONGEST_PAUSE)
            self._direct = replace(shut, until=now + self._settings.connect_timeout)
            self._crew.spawn(self._try(addresses, pause))

    async def _try(self, addresses: list[URL], pause: float) -> None:
        before = self._direct.tried if isinstance(self._direct, Shut) else frozenset()
        found = await self._first_that_answers(addresses)
        if found is not None:
            self._direct = Proven(found)
            return
        tried = before.union(addresses) if len(before) < _TRIED else frozenset(addresses)
        self._direct = Shut(asyncio.get_running_loop().time() + pause, pause, tried)

    async def _first_that_answers(self, addresses: list[URL]) -> URL | None:
        tries = [self._crew.spawn(self._answers(address)) for address in addresses]
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                for done in asyncio.as_completed(tries):
                    if (found := await done) is not None:
                        return found
        except TimeoutError:
            pass
        finally:
            for attempt in tries:
                attempt.cancel()
        return None

    async def _answers(self, address: URL) -> URL | None:
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol,
                address.host or "",
                address.port or 0,
                ssl=self._context,
                server_hostname="",
            )
        except OSError:
            return None
        transport.abort()
        return address

    def _piped(self) -> Link:
        if self._pipes is None:
            connector = PipeConnector(
                self._open_pipe,
                context=self._context,
                crew=self._crew,
                limit=self._settings.connections_per_worker,
            )
            self._pipes = session(connector, self._settings)
        route = Route.RELAY if self._relayed() else Route.DIRECT
        return Link(self._pipes, _PIPED, route, self.deadlines)

    def _over_tcp(self) -> aiohttp.ClientSession:
        if self._tcp is None:
            connector = TcpConnector(ssl=self._context, limit=self._settings.connections_per_worker)
            self._tcp = session(connector, self._settings)
        return self._tcp
