"""Links to peers: over HTTPS at a peer's own address, else over a mesh pipe; always bound to the peer's key.

The certificate that a peer's signed record names is the only one that is trusted for it, and its key must be the
peer's. An address is proven by a handshake before a request goes there; one that did not answer is left alone for a while.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping

from yarl import URL

from registry.errors import InvalidSignature
from registry.intake import dialable
from registry.records import PeerId, Reach
from registry.signing import Identity
from registry.task_group import BackgroundTasks
from router.errors import WorkerDied, WorkerTimeout, WorkerUnreachable
from router.http.errors import HttpError
from router.http.heads import header_lines
from router.http.pool import WorkerPools
from router.http.timers import Deadlines
from router.peers.headers import GRANT, HOP
from router.peers.paths import Link, PeerPath
from router.peers.pipes import Peers
from router.peers.tls import client_context, offer_sharing, peer_of_certificate
from router.settings import RouterSettings
from router.slot_wait import LingeringSlots
from router.ssrf_guard import SsrfGuard

MAX_PEERS = 1024
"""Peers to which connections are kept; the least recently used one is evicted."""

JUST_NOW = 1.0
"""Seconds within which the end of a connection explains the end of a request on it."""

MAX_ADDRESSES = 8
"""Addresses of one peer that are tried, all concurrently."""


class Links:
    """All ways from this node to other nodes, and the connections to its own workers. For one event loop."""

    def __init__(
        self,
        *,
        identity: Identity,
        peers: Peers,
        settings: RouterSettings,
        guard: SsrfGuard | None = None,
        grant: str = "",
    ) -> None:
        """Take what a way needs; workers may listen on loopback only, unless `guard` says otherwise.

        `grant` is shown to nodes that require one.
        """
        self.settings = settings
        self.identity = identity
        self.set_introduction(grant)
        self.guard = guard or SsrfGuard()
        self.workers = WorkerPools(settings, self.guard)
        self.deadlines = Deadlines()
        self._peers = peers
        self._paths: dict[PeerId, PeerPath] = {}
        """The ways in the order of their last use."""
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self.tasks = BackgroundTasks()
        self.lingering = LingeringSlots(self.tasks)

    def set_introduction(self, grant: str) -> None:
        """Set the headers by which each request tells this node's id, and its grant if there is one."""
        self.introduction: Mapping[str, str] = {
            HOP: self.identity.peer,
            **({GRANT: grant} if grant else {}),
        }
        """Headers by which other nodes know the calling node."""
        self.introduction_lines = header_lines(self.introduction)

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Register a function that closes, with the rest, what a dialect has opened by itself."""
        self._closers.append(close)

    async def close(self) -> None:
        """Close every connection and end every pump."""
        paths, self._paths = self._paths, {}
        for path in paths.values():
            path.close()
        self.workers.close()
        for close_also in self._closers:
            await close_also()
        await self.tasks.cancel_all()

    def end_waits(self, peer: PeerId) -> None:
        """End every wait for the first byte of an answer from a peer that is lost. Answers that have begun go on."""
        if (path := self._paths.get(peer)) is not None:
            path.deadlines.end_waits()
            path.recheck_address()

    def recheck_address(self, peer: PeerId) -> None:
        """Have the address of a peer proven anew: its node is not reached from here."""
        if (path := self._paths.get(peer)) is not None:
            path.recheck_address()

    def follow(self, peer: PeerId) -> None:
        """Learn from a peer's record which addresses it has left: requests that wait there may wait in vain."""
        path, reach = self._paths.get(peer), self._peers.reach(peer)
        if path is None or reach is None or path.reach.certificate != reach.certificate:
            return
        if path.reach.links != reach.links:
            path.follow(reach, self._usable_addresses(reach))

    def cut_silent(self, peer: PeerId) -> None:
        """Cut the connections to a peer on which nothing comes: it is alive again, and they may have died meanwhile."""
        if (path := self._paths.get(peer)) is not None:
            path.cut_silent()

    def retry_addresses(self, peer: PeerId) -> None:
        """Let requests wait again for addresses that did not answer, of a peer that was lost and is alive."""
        if (path := self._paths.get(peer)) is not None:
            path.retry_addresses()

    def drop_connections(self, peer: PeerId) -> None:
        """Drop the connections to the last run of a restarted peer: they lead nowhere, even if no end was seen."""
        if (path := self._paths.get(peer)) is not None:
            path.close_idle()

    def known_link(self, peer: PeerId) -> Link | None:
        """Return the link to a peer whose address is proven and unchanged since; `None` if `visit` has to find one."""
        path, version = self._paths.get(peer), self._peers.version
        if path is None:
            return None
        if version is None or path.version != version:
            if path.reach != self._peers.reach(peer):
                return None
            path.version = version
        return path.proven_link()

    def visit(self, peer: PeerId) -> "Visit":
        """Return the context manager that gives a link to a peer."""
        return Visit(self, peer)

    async def ask(
        self,
        peer: PeerId,
        path: str,
        request_id: str,
        *,
        within: float,
        at_most: int,
        body: bytes = b"",
    ) -> tuple[int, bytes]:
        """Get a short answer from a peer, or post JSON for one; return status and answer.

        Raise `WorkerError` or `OSError`, such as `TimeoutError` after `within` seconds.
        """
        headers = {**self.introduction, "x-request-id": request_id}
        if body:
            headers["content-type"] = "application/json"
        async with asyncio.timeout(within), self.visit(peer) as link:
            return await link.ask(path, headers, body, at_most=at_most)

    async def find_link(self, peer: PeerId) -> tuple[PeerPath, Link]:
        """Find the way to a peer, and the link that it takes now; raise `WorkerUnreachable`."""
        if (link := self.known_link(peer)) is not None:
            path = self._paths[peer] = self._paths.pop(peer)
            return path, link
        path = await self._path_to(peer)
        try:
            return path, await path.choose_link(self._usable_addresses(path.reach))
        except (WorkerUnreachable, WorkerTimeout, HttpError):
            path.recheck_address()
            raise

    def has_heard(self, peer: PeerId, within: float) -> bool:
        """Return whether bytes came over a connection to a peer within the last seconds."""
        path = self._paths.get(peer)
        return path is not None and path.hears(within)

    def is_cut_off(self, peer: PeerId) -> bool:
        """Return whether the direct way to a peer that is alive is shut."""
        return self._peers.is_cut_off(peer)

    async def _path_to(self, peer: PeerId) -> PeerPath:
        reach = self._peers.reach(peer)
        current = self._paths.get(peer)
        if reach is None or not reach.certificate:
            self._drop([peer])
            raise WorkerUnreachable("no address of this node is known")
        if current is not None and current.reach.certificate == reach.certificate:
            self._paths[peer] = self._paths.pop(peer)
            current.update_reach(reach)
            return current
        context = await asyncio.to_thread(self._context, peer, reach.certificate)
        if (other := self._paths.get(peer)) is not None and other is not current:
            return other  # made by another request in the meantime
        self._drop([peer, *self._unknown_peers()])
        self._drop(list(self._paths)[: max(0, len(self._paths) - MAX_PEERS + 1)])
        path = self._paths[peer] = PeerPath(
            reach,
            context,
            peers=self._peers,
            peer=peer,
            tasks=self.tasks,
            settings=self.settings,
            objection=self._objection,
        )
        return path

    def _context(self, peer: PeerId, certificate: bytes) -> ssl.SSLContext:
        try:
            if peer_of_certificate(certificate) != peer:
                raise WorkerUnreachable("the node's record contains a certificate of another key")
            context = client_context(self.identity, certificate)
        except InvalidSignature as error:
            raise WorkerUnreachable("the node's record contains no valid certificate") from error
        offer_sharing(context)
        return context

    def _unknown_peers(self) -> list[PeerId]:
        return [peer for peer in self._paths if self._peers.reach(peer) is None]

    def _drop(self, peers: list[PeerId]) -> None:
        for peer in peers:
            if (path := self._paths.pop(peer, None)) is not None:
                path.retire()

    def _is_one_machine(self) -> bool:
        # Another machine's loopback address is this machine's, so it leads to strangers unless all nodes are on one machine.
        reach = self._peers.reach(self.identity.peer)
        return reach is not None and dialable.is_local_only(reach)

    def _objection(self, address: str, _port: int) -> str:
        credible = dialable.is_credible_host(address, together=self._is_one_machine())
        return (
            ""
            if credible
            else "a peer's name resolves to an address that no other machine can have"
        )

    def _usable_addresses(self, reach: Reach) -> list[URL]:
        together = self._is_one_machine()
        addresses = [address for link in reach.links if (address := _address(link)) is not None]
        credible = [
            a for a in addresses if dialable.is_credible_host(a.host or "", together=together)
        ]
        return credible[:MAX_ADDRESSES]


class Visit:
    """Use of the way to a peer: entering raises `WorkerUnreachable` if nothing is known of how to reach it.

    Leaving with a failure to connect makes the next request look for an address anew. If the connection broke because the way to
    a live node was cut or loses packets, its worker does not count as dead.
    """

    __slots__ = ("_links", "_path", "_peer")

    def __init__(self, links: Links, peer: PeerId) -> None:
        self._links = links
        self._peer = peer
        self._path: PeerPath | None = None

    async def __aenter__(self) -> Link:
        self._path, link = await self._links.find_link(self._peer)
        return link

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.record_failure(error)

    def record_failure(self, error: BaseException) -> None:
        """Learn from the error with which it is left; raise `WorkerUnreachable` if only the way broke, not the worker."""
        if isinstance(error, (WorkerUnreachable, WorkerTimeout, HttpError)):
            if self._path is not None:
                self._path.recheck_address()
        elif isinstance(error, WorkerDied) and error.hung_up:
            stuck = self._path is not None and self._path.was_stuck(JUST_NOW)
            if stuck or self._links.is_cut_off(self._peer):
                raise WorkerUnreachable(
                    "its node is alive, but the connection to it broke", sent=stuck
                ) from error


def _address(link: str) -> URL | None:
    """Parse a `host:port` that a peer claims; return `None` for what no listener can have."""
    try:
        url = URL(f"https://{link}")
        host = url.host  # decoded when it is read
    except (ValueError, IndexError):
        return None
    if (
        not host
        or url.explicit_port is None
        or url.user is not None
        or url.raw_path_qs != "/"
        or url.fragment
    ):
        return None
    return url
