"""Stand-ins for parts of libp2p 0.8.1: those that no node uses, name resolution, and private networks.

The unused parts, and what only they need, would be a fifth of a node's memory: transports, a relay, a distributed hash table,
certificates, two HTTP clients, and keys of other types than Ed25519. This module is imported before libp2p, and imports none
of it.
"""

import logging
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import trio

if TYPE_CHECKING:
    from libp2p.abc import IRawConnection
    from libp2p.security.pnet.psk_conn import PskConn
    from multiaddr import Multiaddr

log = logging.getLogger("modelvine.mesh")

UNUSED = (
    "libp2p.crypto.ecc",
    "libp2p.crypto.key_exchange",
    "libp2p.crypto.rsa",
    "libp2p.crypto.secp256k1",
    "libp2p.discovery.mdns",
    "libp2p.discovery.upnp",
    "libp2p.kad_dht",
    "libp2p.peer.persistent",
    "libp2p.rcmgr.prometheus_exporter",
    "libp2p.relay.circuit_v2.dcutr",
    "libp2p.relay.circuit_v2.discovery",
    "libp2p.relay.circuit_v2.protocol",
    "libp2p.relay.circuit_v2.transport",
    "libp2p.security.secio",
    "libp2p.security.tls.autotls.acme",
    "libp2p.security.tls.autotls.broker",
    "libp2p.transport.quic",
    "libp2p.transport.websocket",
)
"""Modules and packages, each with everything in it."""


class Unused(ValueError):
    """A part that is left out was called, for example because a peer has shown an RSA key."""


class _Name(type):
    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> NoReturn:
            raise Unused(f"{cls.__name__}.{name} is not a part of nodes")

        return refuse


class _StandIn(ModuleType):
    """Module in which every name is an exception that is never raised: annotations, bases and `except` accept it."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        stand_in = _Name(name, (Exception,), {})
        setattr(self, name, stand_in)
        return stand_in


class Finder(MetaPathFinder, Loader):
    """Import finder and loader that gives a stand-in for each unused part."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the specification of a stand-in for an unused module, else `None`."""
        unused = any(fullname == name or fullname.startswith(f"{name}.") for name in UNUSED)
        return ModuleSpec(fullname, self, is_package=True) if unused else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a stand-in."""
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the stand-in as it is."""


NAMES = "multiaddr.resolvers.dns"
"""Module of multiaddr's own resolver, which asks only DNS servers, with a library that takes 5 MiB."""

PRIVATE = "libp2p.security.pnet.protector"
"""Module that protects connections of private networks: it imports the cipher, though most nodes are in none."""

DNSADDR_TXT_PREFIX = "dnsaddr="
"""Name that multiaddr imports of that module too."""

_FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}
_KINDS = {socket.AF_INET: "ip4", socket.AF_INET6: "ip6"}


class DNSResolver:
    """Resolver that uses the system's resolver, so `/etc/hosts` counts too; under the class name that multiaddr uses."""

    async def resolve(
        self,
        maddr: "Multiaddr",
        options: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> "list[Multiaddr]":
        """Return an address with each IP address of its name, the best first; unchanged if it has no name or an unknown one."""
        from multiaddr import Multiaddr  # noqa: PLC0415 (it imports the module that this class replaces)

        _, kind, host, *rest = str(maddr).split("/")
        family = _FAMILIES.get(kind)
        if family is None:
            return [maddr]
        try:
            # A caller that gives up need not wait for the thread that resolves.
            answers = await trio.socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)
        except OSError as error:
            # If this were raised, libp2p would ask twice more, for a second and a half.
            log.debug("%s does not resolve: %s", host, error)
            return [maddr]
        # An address with a zone, after `%`, is no multiaddr, and is valid on one link only.
        pairs = [
            (_KINDS[of], str(address[0]))
            for of, *_, address in answers
            if of in _KINDS and "%" not in str(address[0])
        ]
        return [Multiaddr("/".join(("", *pair, *rest))) for pair in dict.fromkeys(pairs)]


def new_protected_conn(conn: "IRawConnection", psk: str) -> "PskConn":
    """Return a connection within a private network; `psk` is the network's key of 64 hexadecimal digits."""
    from libp2p.security.pnet.psk_conn import PskConn  # noqa: PLC0415 (its cipher takes over a megabyte)

    return PskConn(conn, psk)


def leave_out() -> None:
    """Put the stand-ins in place; call this before libp2p is imported."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    sys.modules.setdefault(NAMES, sys.modules[__name__])
    sys.modules.setdefault(PRIVATE, sys.modules[__name__])
