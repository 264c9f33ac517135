"""Links to peers: over HTTPS at an address of its own, else over a mesh pipe; always bound to its key.

The certificate that a peer's signed record names is the only one that is trusted for it, and its key must be the
peer's. An address is proven by a handshake before a request goes there; what did not answer is left alone for a while.
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
from router.http.deadlines import Deadlines
from router.http.errors import HttpError
from router.http.heads import header_lines
from router.http.pool import Places
from router.peers.alpn import offer
from router.peers.certificate import client_context, peer_of_certificate
from router.peers.headers import GRANT, HOP
from router.peers.paths import Link, Way
from router.peers.pipes import Peers, serve_pipe
from router.settings import RouterSettings
from router.slot_wait import Lingering
from router.ssrf_guard import Premises

__all__ = ["Link", "Links", "serve_pipe"]

MAX_PEERS = 1024
"""Peers to which connections are kept; the one that was used longest ago makes room."""

MAX_ADDRESSES = 8
"""Addresses of one peer that are tried, all at once."""


class Links:
    """Every way from this node to others, and the connections to its own workers. Lives on one event loop."""

    def __init__(
        self,
        *,
        identity: Identity,
        peers: Peers,
        settings: RouterSettings,
        premises: Premises | None = None,
        grant: str = "",
    ) -> None:
        """Take what a way needs; workers may stand on loopback only unless `premises` says otherwise.

        `grant` is what this node shows where others want one.
        """
        self.settings = settings
        self.identity = identity
        self.introduce(grant)
        self.premises = premises or Premises()
        self.workers = Places(settings, self.premises)
        self.deadlines = Deadlines()
        self._peers = peers
        self._ways: dict[PeerId, Way] = {}
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self.crew = BackgroundTasks()
        self.lingering = Lingering(self.crew)

    def introduce(self, grant: str) -> None:
        """Say with each request who asks, and show a grant where there is one."""
        self.introduction: Mapping[str, str] = {
            HOP: self.identity.peer,
            **({GRANT: grant} if grant else {}),
        }
        """Headers by which other nodes know who asks."""
        self.introduction_lines = header_lines(self.introduction)

    def also_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close with the rest what a dialect opens by itself."""
        self._closing.append(close)

    async def close(self) -> None:
        """Close every connection and end every pump."""
        ways, self._ways = self._ways, {}
        for way in ways.values():
            way.close()
        self.workers.close()
        for close_also in self._closing:
            await close_also()
        await self.crew.dismiss()

    def give_up(self, peer: PeerId) -> None:
        """End every wait for the first byte of a peer's answer: it is lost. Answers that have begun go on."""
        if (way := self._ways.get(peer)) is not None:
            way.deadlines.give_up()
            way.doubt()

    def doubt(self, peer: PeerId) -> None:
        """An address of a peer that was proven has to be proven anew: its node is not reached from here."""
        if (way := self._ways.get(peer)) is not None:
            way.doubt()

    def forgive(self, peer: PeerId) -> None:
        """A peer that was lost lives: addresses of its that did not answer are waited for once more."""
        if (way := self._ways.get(peer)) is not None:
            way.forgive()

    def restarted(self, peer: PeerId) -> None:
        """A peer was started anew: what was connected to its last run leads nowhere, even where nothing said so."""
        if (way := self._ways.get(peer)) is not None:
            way.let_go()

    def at_hand(self, peer: PeerId) -> Link | None:
        """Return the way to a peer whose address is proven and not changed since; `None` where `to` has to see to it."""
        way, reach = self._ways.get(peer), self._peers.reach(peer)
        if way is None:
            return None
        # Mostly it is the very word that the way was learnt from.
        return way.proven() if way.reach is reach or way.reach == reach else None

    def to(self, peer: PeerId) -> "Visit":
        """Return what gives a way to a peer when it is entered."""
        return Visit(self, peer)

    async def found(self, peer: PeerId) -> tuple[Way, Link]:
        """Find a way to a peer, and how it is gone now; raise `WorkerUnreachable`."""
        # What is at hand is asked for first: `_way` takes in what has changed.
        link = self.at_hand(peer)
        way = await self._way(peer)
        try:
            return way, await way.link(self._usable(way.reach)) if link is None else link
        except (WorkerUnreachable, WorkerTimeout, HttpError):
            way.doubt()
            raise

    def cut_off(self, peer: PeerId) -> bool:
        """Say whether the direct way to a peer that lives is shut."""
        return self._peers.cut_off(peer)

    async def _way(self, peer: PeerId) -> Way:
        reach = self._peers.reach(peer)
        known = self._ways.get(peer)
        if reach is None or not reach.certificate:
            self._drop([peer])
            raise WorkerUnreachable("no address of this node is known")
        if known is not None and known.reach.certificate == reach.certificate:
            self._ways[peer] = self._ways.pop(peer)  # the dictionary's order is the order of use
            known.learn(reach)
            return known
        context = await asyncio.to_thread(self._context, peer, reach.certificate)
        if (other := self._ways.get(peer)) is not None and other is not known:
            return other  # made by another request, while we were making ours
        self._drop([peer, *self._vanished()])
        self._drop(list(self._ways)[: max(0, len(self._ways) - MAX_PEERS + 1)])
        way = self._ways[peer] = Way(
            reach,
            context,
            peers=self._peers,
            peer=peer,
            crew=self.crew,
            settings=self.settings,
            objection=self._objection,
        )
        return way

    def _context(self, peer: PeerId, certificate: bytes) -> ssl.SSLContext:
        try:
            if peer_of_certificate(certificate) != peer:
                raise WorkerUnreachable("the node's record contains a certificate of another key")
            context = client_context(self.identity, certificate)
        except InvalidSignature as error:
            raise WorkerUnreachable("the node's record contains no valid certificate") from error
        offer(context)
        return context

    def _vanished(self) -> list[PeerId]:
        return [peer for peer in self._ways if self._peers.reach(peer) is None]

    def _drop(self, peers: list[PeerId]) -> None:
        for peer in peers:
            if (way := self._ways.pop(peer, None)) is not None:
                way.retire()

    def _together(self) -> bool:
        # Another machine's loopback is our own: its claims lead to strangers, unless all of us are on one machine.
        ours = self._peers.reach(self.identity.peer)
        return ours is not None and dialable.among_ourselves(ours)

    def _objection(self, address: str, _port: int) -> str:
        credible = dialable.credible(address, together=self._together())
        return (
            ""
            if credible
            else "a peer's name resolves to an address that no other machine can have"
        )

    def _usable(self, reach: Reach) -> list[URL]:
        together = self._together()
        addresses = [address for link in reach.links if (address := _address(link)) is not None]
        credible = [a for a in addresses if dialable.credible(a.host or "", together=together)]
        return credible[:MAX_ADDRESSES]


class Visit:
    """A use of the way to a peer: entering raises `WorkerUnreachable` when nothing is known of how to reach it.

    A failure to connect with which it is left makes the next caller look for an address anew. A connection that was cut with the
    way to a node that lives is no death of its worker.
    """

    __slots__ = ("_links", "_peer", "_way")

    def __init__(self, links: Links, peer: PeerId) -> None:
        self._links = links
        self._peer = peer
        self._way: Way | None = None

    async def __aenter__(self) -> Link:
        self._way, link = await self._links.found(self._peer)
        return link

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Learn from what it is left with; raise `WorkerUnreachable` in place of a death that is none."""
        if isinstance(error, (WorkerUnreachable, WorkerTimeout, HttpError)):
            if self._way is not None:
                self._way.doubt()
        elif isinstance(error, WorkerDied) and error.hung_up and self._links.cut_off(self._peer):
            raise WorkerUnreachable("its node is alive, but the connection to it broke") from error


def _address(link: str) -> URL | None:
    """Read a `host:port` that a peer claims; `None` for what no listener has."""
    try:
        url = URL(f"https://{link}")
    except ValueError:
        return None
    if url.explicit_port is None or url.user is not None or url.raw_path_qs != "/" or url.fragment:
        return None
    return url
