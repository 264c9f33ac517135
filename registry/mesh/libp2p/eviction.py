"""Eviction policy for inbound peers beyond the connection limits. No I/O.

Peers that have shown no record are evicted first: the oldest one of the fullest network. If all have shown one, the newest peer
of the fullest network is evicted where that network holds more peers than the newcomer's; otherwise the newcomer is evicted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from registry.records import PeerId

NEW_SECONDS = 3.0
"""Seconds within which a new peer's record has to arrive before it may be evicted for a newcomer."""

_NETWORK_BITS = {4: 24, 6: 48}


@dataclass(frozen=True, slots=True)
class InboundPeer:
    """A peer that connected to us, with its IP address, and its arrival in seconds on the caller's clock."""

    peer: PeerId
    address: str
    came: float

    @property
    def network(self) -> str:
        """The /24 of an IPv4 address, the /48 of an IPv6 address."""
        return network_of(self.address)


def network_of(address: str) -> str:
    """Return the network that counts as one: the /24 of IPv4, the /48 of IPv6, any other text itself."""
    try:
        bits = _NETWORK_BITS[ip_address(address).version]
    except ValueError:
        return address
    return str(ip_network(f"{address}/{bits}", strict=False))


def find_excess(
    callers: Sequence[InboundPeer],
    now: float,
    *,
    places: int,
    per_address: int,
    knows: Callable[[PeerId], bool],
) -> Iterator[PeerId]:
    """Yield the peers to evict, in order, until at most `places` stay in all and `per_address` of each address."""
    staying = sorted(callers, key=lambda caller: caller.came)
    while True:
        held = Counter(caller.address for caller in staying)
        crowd = (
            staying
            if len(staying) > places
            else [caller for caller in staying if held[caller.address] > per_address]
        )
        if not crowd:
            return
        gone = _choose_evicted(crowd, now, held, knows)
        staying.remove(gone)
        yield gone.peer


def _choose_evicted(
    crowd: Sequence[InboundPeer], now: float, held: Counter[str], knows: Callable[[PeerId], bool]
) -> InboundPeer:
    networks = Counter(caller.network for caller in crowd)
    idle = [c for c in crowd if now - c.came >= NEW_SECONDS and not knows(c.peer)]
    if idle:
        return max(idle, key=lambda c: (networks[c.network], held[c.address], -c.came))
    newest = crowd[-1]
    fullest = max(crowd, key=lambda c: (networks[c.network], c.came))
    return fullest if networks[fullest.network] > networks[newest.network] else newest
