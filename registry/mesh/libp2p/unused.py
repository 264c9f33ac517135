"""Parts of libp2p 0.8.1 that no node uses. Stand-ins keep them, and what only they need, from being imported.

They would be a fifth of a node's memory: transports, a relay, a distributed hash table, certificates, two HTTP clients, and
keys of other types than Ed25519.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

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

NAMES = "multiaddr.resolvers.dns"
"""Name resolver of libp2p, which `registry.mesh.libp2p.names` replaces."""


PRIVATE = "libp2p.security.pnet.protector"
"""Module that protects connections of private networks, which `registry.mesh.libp2p.private_network` replaces."""


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
        found = _Name(name, (Exception,), {})
        setattr(self, name, found)
        return found


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


def leave_out() -> None:
    """Make libp2p do without its unused parts, and resolve names as other programs do; call this before it is imported."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    from registry.mesh.libp2p import names, private_network  # noqa: PLC0415 (they import what libp2p imports)

    sys.modules.setdefault(NAMES, names)
    sys.modules.setdefault(PRIVATE, private_network)
