"""The mesh over libp2p, for nodes on different machines. Only this folder knows libp2p and trio.

AutoTLS of libp2p 0.8.1, which no node uses, has certificates issued over HTTP; two clients for that, and what those print with,
take 10 MiB. Stand-ins keep them from being imported, and have to be there before libp2p is.
"""

import sys
from types import ModuleType

NOT_IMPORTED = ("libp2p.security.tls.autotls.acme", "libp2p.security.tls.autotls.broker")


class _StandIn(ModuleType):
    """Module whose names can be imported, and stand for nothing."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


for _name in NOT_IMPORTED:
    sys.modules.setdefault(_name, _StandIn(_name))
