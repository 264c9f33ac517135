"""Forwarded callers: their addresses, as trusted proxies report them in X-Forwarded-For. Other senders' headers have no effect.

The right-most address that is not a trusted proxy's counts: any client can have written what is left of it.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from router.ssrf_guard import Network

FORWARDED_FOR = "x-forwarded-for"

MAX_HOPS = 32
"""Longest chain of proxies that is believed; of a longer one only the last proxy's own address is."""

_SITE_BITS = 64  # a site that has one address of such a network has them all (RFC 6177)
# A zone has no meaning outside the machine that wrote it (RFC 4007 11.2).
_IPV6 = r"([0-9A-Fa-f.]*:[0-9A-Fa-f:.]{1,44})(?:%[A-Za-z0-9._~-]{1,32})?"
_PORT = r"(?::[0-9]{1,5})?"
_HOP = re.compile(rf"([0-9.]{{7,15}}){_PORT}|\[{_IPV6}\]{_PORT}|{_IPV6}")


class TrustedProxies:
    """Proxies that are trusted to report the addresses of their callers."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Take addresses and networks; raise `ValueError`."""
        self._networks: tuple[Network, ...] = tuple(map(ip_network, networks))

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: str) -> bool:
        return bool(self._networks) and _is_within(address, self._networks)

    def caller_of(self, address: str, forwarded: Iterable[str]) -> str:
        """Return the caller's address; `address` is the connection's peer, `forwarded` the values of X-Forwarded-For."""
        if address not in self:
            return address
        hops = ",".join(forwarded).rsplit(",", MAX_HOPS)
        caller = ""
        for hop in reversed(hops[-MAX_HOPS:]):
            caller = _read(hop)
            # A header with an unreadable hop is not believed at all.
            if not caller:
                return address
            if caller not in self:
                return caller
        return caller if len(hops) <= MAX_HOPS else address


NO_PROXIES = TrustedProxies()


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 network of an IPv6 address."""
    read = _address(address)
    if not isinstance(read, IPv6Address):
        return address if read is None else str(read)
    return str(ip_network((int(read), _SITE_BITS), strict=False))


def _read(hop: str) -> str:
    """Return the address of one hop; empty if it is not an address."""
    match = _HOP.fullmatch(hop.strip(" \t"))
    read = _address(match[1] or match[2] or match[3]) if match else None
    return "" if read is None else str(read)


@lru_cache(maxsize=4096)
def _is_within(address: str, networks: tuple[Network, ...]) -> bool:
    read = _address(address)
    return read is not None and any(read in network for network in networks)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Read an IP literal, without its zone; an IPv4-mapped IPv6 address counts as the IPv4 address."""
    try:
        read = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = read.ipv4_mapped if isinstance(read, IPv6Address) else None
    return mapped or read
