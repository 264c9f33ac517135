"""Filter for the addresses that a peer claims: those that can be its own, seen from here.

A record is signed, but nothing stops its author from naming our loopback or a foreign multicast group.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from registry.records import PeerId, Reach

_RELAYED = "/p2p-circuit"
_KINDS = frozenset({"ip4", "ip6", "dns", "dns4", "dns6"})
_NUMBERLIKE = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_THIS_MACHINE = frozenset({"localhost", "ip6-localhost"})


def is_local_only(reach: Reach) -> bool:
    """Return whether this node is reached from this machine only, so that a peer's loopback is ours too."""
    hosts = [*map(_host_of_multiaddr, reach.mesh), *map(_host_of_link, reach.links)]
    return all(map(_is_loopback, hosts))


def parse_ip(host: str) -> IPv4Address | IPv6Address | None:
    """Return an IP literal as an address, `None` when it is a name. An IPv4-mapped IPv6 address becomes an IPv4 address."""
    try:
        number = ip_address(host)
    except ValueError:
        return None
    if isinstance(number, IPv6Address) and number.ipv4_mapped is not None:
        return number.ipv4_mapped
    return number


# This and `_is_loopback` are cached: they check each address of a peer for each request that is sent there.
@lru_cache(maxsize=4096)
def is_credible_host(host: str, *, together: bool) -> bool:
    """Return whether a peer may be at a host, a name or an address. Loopback needs all `together` on one machine."""
    if not host or _is_loopback(host):
        return bool(host) and together
    number = parse_ip(host)
    if number is None:
        # No name ends in a number, but resolvers read 127.1 and 0x7f000001 as addresses.
        return not _NUMBERLIKE.fullmatch(host.rstrip(".").rpartition(".")[2])
    return not (
        number.is_unspecified or number.is_multicast or number.is_link_local or number.is_reserved
    )


def direct_addresses(reach: Reach, node: PeerId, *, together: bool) -> tuple[str, ...]:
    """Return the multiaddrs at which a node itself may listen."""
    return tuple(
        a for a in _own_addresses(reach.mesh, node, together=together) if _RELAYED not in a
    )


def relayed_addresses(reach: Reach, node: PeerId, *, together: bool) -> tuple[str, ...]:
    """Return the multiaddrs at which a relay may forward to a node."""
    return tuple(a for a in _own_addresses(reach.mesh, node, together=together) if _RELAYED in a)


def _own_addresses(mesh: Iterable[str], node: PeerId, *, together: bool) -> Iterable[str]:
    for address in mesh:
        # An address without the node's own peer id is not dialled.
        base, _, peer = address.rpartition("/p2p/")
        if not base or peer != node:
            continue
        kind = address.split("/")[1:2]
        host = _host_of_multiaddr(address)
        if kind == ["memory"] or (kind[0] in _KINDS and is_credible_host(host, together=together)):
            yield address


def _host_of_multiaddr(address: str) -> str:
    parts = address.split("/")
    return parts[2] if len(parts) > 2 else ""


def _host_of_link(link: str) -> str:
    host = link.rpartition(":")[0]
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


@lru_cache(maxsize=4096)
def _is_loopback(host: str) -> bool:
    number = parse_ip(host)
    if number is None:
        return host.lower().rstrip(".") in _THIS_MACHINE or host.lower().endswith(".localhost")
    return number.is_loopback
