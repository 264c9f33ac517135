"""Resolver of names in addresses by the machine's own means, as all its programs have it: `/etc/hosts` counts as well as DNS.

multiaddr's, in whose place it stands, asks DNS servers only, with a library that takes 5 MiB.
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
    """Resolver under the name that multiaddr gives it."""

    async def resolve(
        self,
        maddr: Multiaddr,
        options: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> list[Multiaddr]:
        """Return an address with each IP address of its name, the best first; as it is without a name, or with an unknown one."""
        _, kind, host, *rest = str(maddr).split("/")
        family = _FAMILIES.get(kind)
        if family is None:
            return [maddr]
        try:
            # Whoever gives up need not wait for the thread that asks.
            found = await trio.socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)
        except OSError as error:
            # Raised it would have libp2p ask twice more, for a second and a half.
            log.debug("%s does not resolve: %s", host, error)
            return [maddr]
        # An address with a zone, after `%`, is no multiaddr, and means something on one link only.
        known = [
            (_KINDS[of], str(at[0]))
            for of, *_, at in found
            if of in _KINDS and "%" not in str(at[0])
        ]
        return [Multiaddr("/".join(("", *pair, *rest))) for pair in dict.fromkeys(known)]
