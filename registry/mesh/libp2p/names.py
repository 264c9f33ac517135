"""Resolver for names in multiaddrs that uses the system's resolver, so `/etc/hosts` counts as well as DNS.

It replaces multiaddr's own resolver, which asks only DNS servers, with a library that takes 5 MiB.
"""

import logging
import socket
from collections.abc import Mapping
from typing import Any

import trio
from multiaddr import Multiaddr

log = logging.getLogger("modelvine.mesh")

DNSADDR_TXT_PREFIX = "dnsaddr="

_FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}
_KINDS = {socket.AF_INET: "ip4", socket.AF_INET6: "ip6"}


class DNSResolver:
    """Resolver, under the class name that multiaddr uses."""

    async def resolve(
        self,
        maddr: Multiaddr,
        options: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> list[Multiaddr]:
        """Return an address with each IP address of its name, the best first; unchanged if it has no name or an unknown one."""
        _, kind, host, *rest = str(maddr).split("/")
        family = _FAMILIES.get(kind)
        if family is None:
            return [maddr]
        try:
            # A caller that gives up need not wait for the thread that resolves.
            found = await trio.socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)
        except OSError as error:
            # If this were raised, libp2p would ask twice more, for a second and a half.
            log.debug("%s does not resolve: %s", host, error)
            return [maddr]
        # An address with a zone, after `%`, is no multiaddr, and is valid on one link only.
        known = [
            (_KINDS[of], str(at[0]))
            for of, *_, at in found
            if of in _KINDS and "%" not in str(at[0])
        ]
        return [Multiaddr("/".join(("", *pair, *rest))) for pair in dict.fromkeys(known)]
