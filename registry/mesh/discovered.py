"""Discovered addresses for which no known node vouches: claims from a network, checked, bounded, and forgotten in time.

A claim costs its sender nothing, so it is dialled only while a node has too few connections, and a peer that turns out
not to be of our mesh is not dialled again for a while.
"""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address

from registry.bounded import put_newest
from registry.errors import InvalidSignature
from registry.intake import dialable
from registry.mesh import Origin
from registry.records import PeerId
from registry.signing import public_of

MAX_STRANGERS = 32
"""Peers kept from each source; of more, as many are drawn at random."""

MAX_CLAIMED = 4
"""Addresses kept of one stranger; more are ignored."""

MAX_REFUSED = 512
"""Peers remembered as useless; the oldest is evicted."""

MAX_ADDRESS_CHARACTERS = 256

_FIRST_REFUSAL = 30.0
_LONGEST_REFUSAL = 600.0

_FORM = re.compile(
    r"/(?P<kind>ip4|ip6)/(?P<host>[0-9a-fA-F.:]{2,45})/tcp/(?P<port>\d{1,5})/p2p/(?P<peer>\w{1,64})",
    re.ASCII,
)


def claimed_peer(address: str, *, loopback: bool) -> PeerId:
    """Return the peer that an address claims to lead to, empty where it must not be dialled.

    Only numeric TCP addresses are accepted: a name would make this node query a name server on a stranger's behalf.
    Addresses of this very machine (`loopback`) make sense only to a node that is itself reached at no others.
    """
    match = _FORM.fullmatch(address) if len(address) <= MAX_ADDRESS_CHARACTERS else None
    if match is None or not 0 < int(match["port"]) <= 65_535:
        return PeerId("")
    try:
        version = ip_address(match["host"]).version
        public_of(match["peer"])
    except (ValueError, InvalidSignature):
        return PeerId("")
    believed = (
        dialable.is_credible_host(match["host"], together=loopback)
        and match["kind"] == f"ip{version}"
    )
    return PeerId(match["peer"] if believed else "")


def only_loopback(listen: Iterable[str]) -> bool:
    """Return whether a node that listens on these addresses is reached from its own machine only."""
    return all(address.startswith(("/ip4/127.", "/ip6/::1/")) for address in listen)


@dataclass(slots=True)
class _Refusal:
    times: int = 0
    until: float = 0.0


@dataclass(slots=True)
class DiscoveredPeers:
    """The strangers that may be dialled; times are seconds on one clock of the caller's choice."""

    own: PeerId
    loopback: bool
    rng: random.Random = field(default_factory=random.Random)
    _claims: dict[Origin, dict[PeerId, tuple[str, ...]]] = field(default_factory=dict)
    _refusals: dict[PeerId, _Refusal] = field(default_factory=dict)

    def claim(self, origin: Origin, addresses: Iterable[str]) -> None:
        """Replace the addresses that one source claims."""
        claims: dict[PeerId, tuple[str, ...]] = {}
        for address in dict.fromkeys(addresses):
            peer = claimed_peer(address, loopback=self.loopback)
            if peer and peer != self.own and len(claims.get(peer, ())) < MAX_CLAIMED:
                claims[peer] = (*claims.get(peer, ()), address)
        # Drawn at random: if the first were kept, the peer that claims the most would keep all others out for ever.
        sample = self.rng.sample(sorted(claims), min(len(claims), MAX_STRANGERS))
        self._claims[origin] = {peer: claims[peer] for peer in sample}

    def addresses(self, now: float) -> tuple[str, ...]:
        """Return the addresses that may be dialled now."""
        return tuple(
            address
            for claims in self._claims.values()
            for peer, addresses in claims.items()
            if self._refusals.get(peer, _Refusal()).until <= now
            for address in addresses
        )

    def origin(self, peer: PeerId) -> Origin | None:
        """Return the source that claims a peer, if any."""
        return next((o for o, claims in self._claims.items() if peer in claims), None)

    def refuse(self, peer: PeerId, now: float) -> None:
        """Back off from a peer that did not answer or is not of our mesh, longer each time, at most some ten minutes."""
        times = self._refusals.get(peer, _Refusal()).times
        wait = min(_FIRST_REFUSAL * 2 ** min(times, 8), _LONGEST_REFUSAL)
        refusal = _Refusal(times + 1, now + wait * self.rng.uniform(0.75, 1.25))
        put_newest(self._refusals, peer, refusal, limit=MAX_REFUSED)

    def accept(self, peer: PeerId) -> None:
        """Forget the refusals of a peer that proved to be of our mesh."""
        self._refusals.pop(peer, None)
