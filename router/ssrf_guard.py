"""SSRF guard: the addresses that workers may have.

Workers may be on this machine or in a network that the operator named, but never at a port of the node's own.

The guard checks when a worker is registered, and again the very address that is about to be connected to: what a name resolves
to may have changed since, and so may this machine's addresses and the node's own ports.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network

from registry.intake.dialable import parse_ip

ELSEWHERE = (
    "the url and the node are not on the same machine: register the worker at its own machine's node, "
    "or by an IP address in a network of router.worker_networks"
)
OURSELVES = "the api is this node itself, not a worker"

Network = IPv4Network | IPv6Network


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read networks such as `192.0.2.0/28` or a single address; raise `ValueError`."""
    return tuple(ip_network(text) for text in texts)


@lru_cache(maxsize=1024)
def is_loopback(address: str) -> bool:
    """Return whether an IP literal is loopback, including an IPv4-mapped IPv6 address."""
    read = parse_ip(address)
    return read is not None and read.is_loopback


@dataclass(frozen=True, slots=True)
class SsrfGuard:
    """The allowed addresses: `is_own` knows this machine's names and addresses, `own_ports` where this node listens now."""

    is_own: Callable[[str], bool] = is_loopback
    own_ports: Callable[[], Iterable[int]] = tuple
    networks: tuple[Network, ...] = ()

    def objection(self, host: str, port: int) -> str:
        """Return why no worker may be at a host and port, empty if one may; no name is resolved."""
        if not self.is_own(host) and not self._listed(host):
            return ELSEWHERE
        # At any of the addresses: a listener may be bound to all of them.
        return OURSELVES if port in self.own_ports() else ""

    def _listed(self, host: str) -> bool:
        address = parse_ip(host)
        return address is not None and any(address in network for network in self.networks)
