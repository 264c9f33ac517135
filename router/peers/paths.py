"""Paths to one peer, with their connections, and the choice among them: an address that has proven itself, else a pipe."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from yarl import URL

from registry.records import PeerId, Reach
from registry.task_group import BackgroundTasks
from router.answer import Route
from router.http.dial import Objection, tcp_dialer
from router.http.errors import HttpError, NotHttp
from router.http.heads import request_head
from router.http.pool import request_start
from router.http.timers import Deadlines
from router.peers.muxed import CHECK_SECONDS
from router.peers.pipes import Peers, pipe_dialer
from router.peers.shared_pool import PIPE_STREAMS, SharedPool
from router.requests import Kind
from router.settings import RouterSettings

_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 320.0
_BESIDE_ANOTHER_WAY = 0.5
_TRIED = 64  # tried addresses of one peer, beyond which earlier ones are waited for again
_PIPED = URL("https://peer.invalid")  # RFC 2606: a name that never resolves


@dataclass(frozen=True, slots=True)
class Link:
    """A way to a peer that is ready for use: append a path to `base`."""

    pool: SharedPool
    base: URL
    route: Route
    deadlines: Deadlines
    starts: dict[Kind, bytes] = field(default_factory=dict)

    def start(self, kind: Kind) -> bytes:
        """Return the start of the head of requests of a kind, made once for the link."""
        start = self.starts.get(kind)
        if start is None:
            start = self.starts[kind] = request_start(self.base.with_path(f"/v1/{kind.value}"))
        return start

    async def ask(
        self, path: str, headers: Mapping[str, str], body: bytes = b"", *, at_most: int
    ) -> tuple[int, bytes]:
        """Get a short answer, or post a body for one; return status and answer, or raise `HttpError`."""
        start = request_start(self.base.with_path(path), "POST" if body else "GET")
        reply = await self.pool.ask(request_head(start, headers, len(body)), body)
        try:
            answer = b""
            while piece := await reply.read_some():
                answer += piece
                if len(answer) > at_most:
                    raise NotHttp("the answer is too long")
            return reply.status, answer
        finally:
            reply.close()


@dataclass(frozen=True, slots=True)
class Untried:
    """No address of the peer has been tried yet."""


@dataclass(frozen=True, slots=True)
class Proven:
    """The peer answered there, and showed its key."""

    link: Link


@dataclass(frozen=True, slots=True)
class NoneAnswered:
    """No address answered. From `until` on they are tried again in the background, and then left alone for twice the pause."""

    until: float
    pause: float
    tried: frozenset[URL] = frozenset()


Direct = Untried | Proven | NoneAnswered


class PeerPath:
    """State of the way to one peer, and its open connections."""

    def __init__(
        self,
        reach: Reach,
        context: ssl.SSLContext,
        *,
        peers: Peers,
        peer: PeerId,
        tasks: BackgroundTasks,
        settings: RouterSettings,
        objection: Objection = lambda address, port: "",  # noqa: ARG005
    ) -> None:
        """Take what ways need; `objection` is called for each address to which a peer's claims lead."""
        self.reach = reach
        self.version: int | None = None
        """Version of the peers in which the peer still had this `reach`."""
        self.deadlines = Deadlines()
        self._context = context
        self._peers = peers
        self._peer = peer
        self._tasks = tasks
        self._settings = settings
        self._objection = objection
        self._direct: Direct = Untried()
        self._trial_lock = asyncio.Lock()
        self._pools: dict[URL, SharedPool] = {}
        self._pipe_dial = pipe_dialer(peers, peer, context=context, tasks=tasks)
        self._pipe_links: dict[Route, Link] = {}

    def update_reach(self, reach: Reach) -> None:
        """Take in a newer statement of the peer's addresses."""
        self.reach = reach
        self.version = None

    def follow(self, reach: Reach, named: list[URL]) -> None:
        """Take in newer addresses; connections to one that is not among them answer soon or are cut: the peer may have moved."""
        self.update_reach(reach)
        if isinstance(self._direct, Proven) and self._direct.link.base not in named:
            self._direct = Untried()
        for address, pool in self._pools.items():
            if address not in named:
                self._tasks.spawn(pool.cut_silent(self._settings.connect_timeout))

    def cut_silent(self) -> None:
        """Cut the connections on which nothing comes, not even the answer to a ping."""
        for pool in self._all_pools():
            self._tasks.spawn(pool.cut_silent(CHECK_SECONDS))

    def retry_addresses(self) -> None:
        """Wait once more for the addresses of a peer that was lost and is alive, unless it is reached in another way."""
        if isinstance(self._direct, NoneAnswered) and not self._peers.is_cut_off(self._peer):
            self._direct = Untried()

    def recheck_address(self) -> None:
        """Have a proven address proven anew, and pipes answer a ping, since a request could not connect."""
        if isinstance(self._direct, Proven):
            self._direct = Untried()
        for link in self._pipe_links.values():
            self._tasks.spawn(link.pool.check())

    def close_idle(self) -> None:
        """Cut the idle connections: the peer was restarted, and may not have told the end of its last run."""
        for pool in self._all_pools():
            pool.close_idle()

    def retire(self) -> None:
        """Keep no connection any more: each ends with its requests."""
        for pool in self._all_pools():
            pool.retire()

    def close(self) -> None:
        """Close the connections."""
        for pool in self._all_pools():
            pool.close()

    def hears(self, within: float) -> bool:
        """Return whether bytes came from the peer within the last seconds."""
        since = asyncio.get_running_loop().time() - within
        return any(pool.heard_at >= since for pool in self._all_pools())

    def was_stuck(self, within: float) -> bool:
        """Return whether a connection ended within the last seconds because bytes to or from the peer did not arrive."""
        since = asyncio.get_running_loop().time() - within
        return any(pool.stuck_at >= since for pool in self._all_pools())

    def _all_pools(self) -> list[SharedPool]:
        return [*(link.pool for link in self._pipe_links.values()), *self._pools.values()]

    def proven_link(self) -> Link | None:
        """Return the link over a proven address, if there is one."""
        direct = self._direct
        return direct.link if isinstance(direct, Proven) else None

    async def choose_link(self, addresses: list[URL]) -> Link:
        """Choose between the ways. Requests wait for addresses that were never tried, but not for those that failed."""
        if not addresses:
            return await self._pipe_link()
        if isinstance(self._direct, Proven) and self._direct.link.base not in addresses:
            self._direct = Untried()
        if self._never_tried(addresses):
            async with self._trial_lock:
                if fresh := self._never_tried(addresses):
                    await self._try(fresh, _FIRST_PAUSE)
        elif isinstance(self._direct, NoneAnswered):
            self._retry(self._direct, addresses)
        return self.proven_link() or await self._pipe_link()

    def _never_tried(self, addresses: list[URL]) -> list[URL]:
        match self._direct:
            case Proven():
                return []
            case NoneAnswered(tried=tried):
                return [address for address in addresses if address not in tried]
            case Untried():
                return addresses

    def _retry(self, shut: NoneAnswered, addresses: list[URL]) -> None:
        now = asyncio.get_running_loop().time()
        if now >= shut.until:
            pause = min(2 * shut.pause, _LONGEST_PAUSE)
            self._direct = replace(shut, until=now + self._settings.connect_timeout)
            self._tasks.spawn(self._try(addresses, pause))

    async def _try(self, addresses: list[URL], pause: float) -> None:
        before = self._direct.tried if isinstance(self._direct, NoneAnswered) else frozenset()
        proven = await self._first_that_answers(addresses)
        self._pools = {a: p for a, p in self._pools.items() if not p.is_unused}
        if proven is not None:
            self._direct = proven
            return
        tried = before.union(addresses) if len(before) < _TRIED else frozenset(addresses)
        self._direct = NoneAnswered(asyncio.get_running_loop().time() + pause, pause, tried)

    async def _first_that_answers(self, addresses: list[URL]) -> Proven | None:
        attempts = [self._tasks.spawn(self._prove_address(address)) for address in addresses]
        try:
            async with asyncio.timeout(self._connect_timeout()):
                for done in asyncio.as_completed(attempts):
                    if (proven := await done) is not None:
                        return proven
        except TimeoutError:
            pass
        finally:
            for attempt in attempts:
                attempt.cancel()
        return None

    def _connect_timeout(self) -> float:
        # A peer that names relay addresses cannot be dialled from elsewhere: its own addresses are for nodes beside it.
        relayed = any("/p2p-circuit" in address for address in self.reach.mesh)
        longest = self._settings.connect_timeout
        if relayed or self._peers.is_cut_off(self._peer):
            return min(_BESIDE_ANOTHER_WAY, longest)
        return longest

    async def _prove_address(self, address: URL) -> Proven | None:
        pool = self._pools.get(address)
        if pool is None:
            dial = tcp_dialer(
                address.host or "",
                address.port or 0,
                self._context,
                name="",
                objection=self._objection,
            )
            pool = self._pools[address] = SharedPool(dial, self._settings)
        try:
            await pool.open_spare()
        except HttpError:
            return None
        return Proven(Link(pool, address, Route.DIRECT, self.deadlines))

    async def _pipe_link(self) -> Link:
        route = (
            Route.RELAY if await self._peers.connects_through_relay(self._peer) else Route.DIRECT
        )
        # Pipes through a relay are not for requests that can go directly: once they are closed the relay is released.
        for other in [r for r in self._pipe_links if r is not route]:
            self._pipe_links.pop(other).pool.retire()
        if route not in self._pipe_links:
            pool = SharedPool(self._pipe_dial, self._settings, streams=PIPE_STREAMS)
            self._pipe_links[route] = Link(pool, _PIPED, route, self.deadlines)
        return self._pipe_links[route]
