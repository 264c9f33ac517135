"""Dialler: plans which peers to dial next, and dials an address directly over TCP or through a relay.

A direct connection is also dialled beside a relayed one. A node that lacks peers dials any peer, bootstrap peers first; a node
with enough peers dials only those that it misses, ever more rarely. Missed are bootstrap peers, and peers whose connection was
lost: they are the first connections across a healed partition. A failed dial is repeated after a pause that doubles, up to ten
times `redial` for a node that lacks peers, else up to `RAREST`. A node that lacks peers dials its missed peers every second for
a minute, then ever more rarely as they stay away. Every node does so with a relay where it held a reservation.
"""

import os
import random
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import trio
from libp2p.abc import IHost
from libp2p.exceptions import MultiError
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from multiaddr import Multiaddr

from registry.bounded import put_newest
from registry.errors import PeerUnreachable
from registry.mesh import peer_in
from registry.mesh.libp2p.circuit import Circuits
from registry.mesh.libp2p.guards import as_unreachable, ignore_errors
from registry.mesh.libp2p.stand_ins import DNSResolver
from registry.mesh.libp2p.watch import Watch
from registry.records import PeerId

RAREST = 300.0
"""Longest pause in seconds between dials of a missed peer, for a node that has enough peers."""

GIVEN_UP = 1800.0
"""Seconds after which a lost peer is no longer missed; a bootstrap peer always is."""

URGENT = 1.0
"""Seconds between the first dials of a missed peer by a node that lacks peers; `redial` where that is less."""

PATIENCE = 60.0
"""Divisor of a peer's absence that gives the later pauses: after an absence of 2 min, the next dial waits 2 s."""

SILENT = 2.5
"""Seconds without any TCP answer that end a dial: its retries become rare, while a new dial sends at once.

Long enough for a round trip of a second and a lost packet. A handshake that has begun keeps the full timeout.
"""

HOST_PAUSE = 1.0
"""Seconds between two dials to a host where no peer was met: any node may sign a record that names a foreign host."""

NAME_TIMEOUTS = 3
"""Time limits of a dial that resolving a name may take: the system asks a second DNS server after 5 s, a third after 10."""

MAX_NUMERIC = 8
"""IP addresses of one name that are dialled."""

MAX_HOSTS = 4_096
"""Hosts that are remembered, of those with a peer and of those dialled without one; the oldest is evicted."""


@dataclass(frozen=True, slots=True)
class DialTarget:
    """A peer that may be dialled, at any of its addresses."""

    peer: PeerId
    addresses: tuple[str, ...]
    bootstrap: bool


@dataclass(slots=True)
class _Pause:
    """Pause before a peer is dialled again: its start, its random jitter, the start of the absence, and the failures.

    `had` says whether the peer was connected, `relay` whether it is a relay that held a reservation for us.
    """

    since: float
    chance: float
    away: float
    failures: int = 0
    had: bool = False
    relay: bool = False

    def ends(self, redial: float, longest: float, *, urgent: bool) -> float:
        # Jitter: two nodes that dial each other, or many that lost the same peer, must not stay in step.
        if urgent:
            wait = max(min(redial, URGENT), (self.since - self.away) / PATIENCE)
            return self.since + min(wait, 10 * redial) * (1.0 + self.chance / 4)
        wait = redial * 2.0 ** min(max(self.failures - 1, 0), 16)
        return self.since + min(wait, longest) * (0.75 + self.chance / 2)


@dataclass(slots=True)
class Dialer:
    """Planner that chooses dial targets; times are seconds on one clock of the caller's choice."""

    own: PeerId
    degree: int
    redial: float
    rng: random.Random = field(default_factory=random.Random)
    _targets: dict[PeerId, DialTarget] = field(default_factory=dict)
    _pauses: dict[PeerId, _Pause] = field(default_factory=dict)
    _met: dict[str, None] = field(default_factory=dict)
    _tried: dict[str, float] = field(default_factory=dict)

    def set_targets(self, bootstrap: Collection[str], neighbours: Collection[str]) -> None:
        """Replace the candidates; addresses that name no peer, or this node, are left out."""
        targets: dict[PeerId, DialTarget] = {}
        for address in dict.fromkeys((*bootstrap, *neighbours)):
            peer = peer_in(address)
            if not peer or peer == self.own:
                continue
            target = targets.get(peer, DialTarget(peer, (), bootstrap=False))
            is_bootstrap = target.bootstrap or address in bootstrap
            targets[peer] = DialTarget(peer, (*target.addresses, address), is_bootstrap)
        self._targets = targets
        self._pauses = {peer: pause for peer, pause in self._pauses.items() if peer in targets}

    def due_targets(self, connected: Collection[PeerId], now: float) -> list[DialTarget]:
        """Return the targets to dial now: enough to reach `degree`, bootstrap peers first; at `degree`, the missed ones."""
        missing = self.degree - len(connected)
        if missing <= 0:
            missed = self.missed_targets(connected)
            due = (t for t in missed if self._is_ready(t, now, lacking=False))
            return [*self._allowed(due, now)]
        ready = [
            target
            for peer, target in self._targets.items()
            if peer not in connected and self._is_ready(target, now, lacking=True)
        ]
        # A random choice: if all nodes took the first, it would carry the whole mesh.
        self.rng.shuffle(ready)
        ready.sort(key=lambda target: not target.bootstrap)
        return [*islice(self._allowed(ready, now), missing)]

    def missed_targets(self, connected: Collection[PeerId]) -> list[DialTarget]:
        """Return the targets that are dialled sooner or later although there are enough peers."""
        return [
            target
            for peer, target in self._targets.items()
            if peer not in connected and (target.bootstrap or self._is_missed(target))
        ]

    def note_failure(self, peer: PeerId, now: float) -> None:
        """Note a failed dial; the next one waits longer."""
        pause = self._pauses.setdefault(peer, _Pause(now, 0.0, now))
        pause.since, pause.chance = now, self.rng.random()
        pause.failures += 1

    def note_lost(self, peer: PeerId, now: float, *, relay: bool = False) -> None:
        """Note that a connection ended: its peer is dialled again after `redial`. `relay`: it held a reservation for us."""
        self._pauses[peer] = _Pause(now, self.rng.random(), now, had=True, relay=relay)

    def note_connected(self, peer: PeerId, host: str) -> None:
        """Note that a peer is connected at a host.

        If it was missed, the pauses of other lost peers become short again: they may be back as well.
        """
        if host:
            put_newest(self._met, host, None, limit=MAX_HOSTS)
        pause = self._pauses.pop(peer, None)
        if pause and pause.had and pause.failures:
            for other in self._pauses.values():
                if other.had:
                    other.failures, other.away = 0, other.since

    def _is_ready(self, target: DialTarget, now: float, *, lacking: bool) -> bool:
        pause = self._pauses.get(target.peer)
        if pause is None:
            return True
        urgent = pause.relay or (lacking and (pause.had or target.bootstrap))
        longest = 10 * self.redial if lacking else RAREST
        return pause.ends(self.redial, longest, urgent=urgent) <= now

    def _allowed(self, targets: Iterable[DialTarget], now: float) -> Iterator[DialTarget]:
        """Yield targets with the addresses that may be dialled now, rotated after each failure; count them as dialled."""
        for target in targets:
            if target.bootstrap:
                yield target
                continue
            pause = self._pauses.get(target.peer)
            first = pause.failures % len(target.addresses) if pause else 0
            turned = (*target.addresses[first:], *target.addresses[:first])
            if addresses := tuple(a for a in turned if self._may_try(host_of(a), now)):
                yield replace(target, addresses=addresses)

    def _may_try(self, host: str, now: float) -> bool:
        if host in self._met:
            return True
        if now - self._tried.get(host, float("-inf")) < HOST_PAUSE:
            return False
        put_newest(self._tried, host, now, limit=MAX_HOSTS)
        return True

    def _is_missed(self, target: DialTarget) -> bool:
        pause = self._pauses.get(target.peer)
        if pause is None or not pause.had or pause.since - pause.away >= GIVEN_UP:
            return False
        # Only a node that lacks peers dials through a relay: an idle circuit is closed on purpose.
        return not all("/p2p-circuit/" in address for address in target.addresses)


def host_of(address: str) -> str:
    """Return the name or IP address that a multiaddr begins with."""
    return address.split("/", 3)[2] if address.startswith("/") and address.count("/") > 1 else ""


_CIRCUIT = "/p2p-circuit"
# How the library's error text names the peer whose key answered.
_ANSWERER = re.compile(r"from_pubkey=(12D3KooW\w{40,50})")


class NobodyAnswered(PeerUnreachable):
    """None of a peer's addresses answered: `reasons` says why, by address."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("no address answers")
        self.reasons = reasons


class Dials:
    """Makes connections, one address at a time; the caller bounds the time. Every method runs in trio."""

    def __init__(self, host: IHost, watch: Watch, circuits: Circuits, *, private: bool) -> None:
        self._host = host
        self._watch = watch
        self._circuits = circuits
        self._private = private
        # Peers whose host accepted our connection in the current or latest dial.
        self._accepted_addresses: set[str] = set()
        self._patience: dict[str, tuple[trio.CancelScope, float]] = {}
        network: Any = host.get_network()
        network.upgrade_outbound_raw_conn = self._note_accepted(network.upgrade_outbound_raw_conn)

    @property
    def relays(self) -> Collection[PeerId]:
        """Relays that hold a reservation for this node, as of the latest check."""
        return self._circuits.relays

    async def dial(self, address: str) -> PeerId:
        """Connect to the peer that an address ends in; raise `PeerUnreachable`."""
        with as_unreachable(f"{address!r} cannot be dialled"):
            base, _, last = address.rpartition("/p2p/")
            target = ID.from_string(last)
            if not base or target == self._host.get_id():
                raise PeerUnreachable("this address is this node's own, or invalid")
            self._accepted_addresses.discard(last)
            peer = PeerId(str(target))
            if base.endswith(_CIRCUIT):
                await self._dial_through(base.removesuffix(_CIRCUIT), peer)
            else:
                await self._dial_directly(target, peer, Multiaddr(base))
            return peer

    async def dial_in_turn(
        self, addresses: Sequence[str], timeout: float, *, to_resolve: float
    ) -> str:
        """Dial the addresses of one peer in turn, each for `timeout` seconds, and return the one that answered.

        A name may take `to_resolve` seconds before. Given all addresses, the library would dial only the first. A numeric
        address is given up after `SILENT` seconds without a TCP answer, also one that a name stands for. Raise
        `NobodyAnswered` when none answers.
        """
        reasons: dict[str, str] = {}
        for address in addresses:
            numerics = await _numeric(address, to_resolve)
            if not numerics:
                reasons[address] = "the name does not resolve in time"
            for numeric in numerics:
                try:
                    with as_unreachable(address), self._with_deadline(numeric, timeout):
                        await self.dial(numeric)
                except PeerUnreachable as error:
                    reasons[address] = self.reason(numeric, error)
                else:
                    return address
        raise NobodyAnswered(reasons)

    @contextmanager
    def _with_deadline(self, address: str, timeout: float) -> Iterator[None]:
        by_number = address.startswith(("/ip4/", "/ip6/")) and _CIRCUIT not in address
        peer, ends = str(peer_in(address)), trio.current_time() + timeout
        try:
            with trio.fail_after(min(timeout, SILENT) if by_number else timeout) as scope:
                self._patience[peer] = scope, ends
                yield
        finally:
            self._patience.pop(peer, None)

    def _note_accepted(
        self, upgrade: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def upgrade_and_note(raw: Any, peer: ID, *positional: Any) -> Any:
            self._accepted_addresses.add(str(peer))
            if str(peer) in self._patience:
                scope, ends = self._patience[str(peer)]
                scope.deadline = ends
            return await upgrade(raw, peer, *positional)

        return upgrade_and_note

    def reason(self, address: str, error: PeerUnreachable) -> str:
        """Return in a few words why a dial failed, as far as that is known."""
        peer = address.rpartition("/p2p/")[2]
        accepted = peer in self._accepted_addresses
        self._accepted_addresses.discard(peer)
        causes = [*_causes(error)]
        for cause in causes:
            if isinstance(cause, PeerIDMismatchesPubkey):
                return self._wrong_peer_text(str(cause))
        if accepted:
            # If the swarm keys differ, or only one side has one, each side receives garbage or nothing.
            keys = (
                "the swarm keys differ"
                if self._private
                else "it has a swarm key, which this node lacks"
            )
            return f"it listens, but does not answer as a node: {keys}, it hangs, or it is no node"
        for cause in causes:
            if isinstance(cause, OSError) and cause.errno:
                return os.strerror(cause.errno).lower()
        if any(isinstance(cause, trio.TooSlowError) for cause in causes):
            return "timed out"
        if address.startswith("/dns"):
            return "the name does not resolve"
        # The text of a `PeerUnreachable` is ours; the library's texts are meant for its own developers.
        return (
            str(causes[-1])
            if isinstance(causes[-1], PeerUnreachable)
            else type(causes[-1]).__name__
        )

    def _wrong_peer_text(self, error_text: str) -> str:
        match = _ANSWERER.search(error_text)
        if match and match[1] == str(self._host.get_id()):
            return "this node itself answers there, but the address names another"
        other = f", {match[1]}" if match else ""
        return f"wrong peer id: another node answers there{other}"

    async def _dial_directly(self, target: ID, peer: PeerId, address: Multiaddr) -> None:
        network: Any = self._host.get_network()
        # In the library, a failed dial blocks its peer for a minute, and old addresses are tried before new ones.
        network.unblock_peer(target)
        if peer in self._watch.peers() - self._watch.peers(directly=True):
            # `connect` of the library does not dial a peer that is already connected.
            await network.dial_addr(address, target)
        else:
            self._host.get_peerstore().clear_addrs(target)
            await self._host.connect(PeerInfo(target, [address]))

    async def _dial_through(self, relay: str, peer: PeerId) -> None:
        if peer in self._watch.peers():
            return
        through = PeerId(relay.rpartition("/p2p/")[2])
        if through not in self._watch.peers(directly=True):
            await self.dial(relay)
        await self._circuits.dial(through, peer)


async def _numeric(address: str, timeout: float) -> tuple[str, ...]:
    """Return an address with each IP address of its name; unchanged if it has none, nothing if that does not resolve in time.

    The library would give all of them one time limit together: one that is silent would hide the others.
    """
    resolved: Sequence[Multiaddr] = ()
    if address.startswith("/dns") and _CIRCUIT not in address:
        with ignore_errors(), trio.move_on_after(timeout) as scope:
            resolved = await DNSResolver().resolve(Multiaddr(address))
        if scope.cancelled_caught:
            return ()
    return tuple(map(str, resolved[:MAX_NUMERIC])) or (address,)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that led to it; the library, like trio, hides causes in groups."""
    yield error
    inner: Sequence[BaseException] = ()
    if isinstance(error, MultiError):
        inner = error.errors
    elif isinstance(error, BaseExceptionGroup):
        inner = error.exceptions
    for each in inner:
        yield from _causes(each)
    if error.__cause__ is not None:
        yield from _causes(error.__cause__)
