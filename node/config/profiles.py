"""Profiles `local`, `lan` and `wan`: deltas over the defaults, with reasons."""

from collections.abc import Mapping
from types import MappingProxyType

Delta = Mapping[str, object]

PROFILES: Mapping[str, Delta] = MappingProxyType(
    {
        # The defaults themselves: loopback only, round trips under a millisecond.
        "local": {},
        "lan": {
            # Other machines must be able to dial us. HTTP stays on loopback: opening it is a decision of its own.
            "mesh.listen": ("/ip4/0.0.0.0/tcp/6101",),
            # On a network of one's own the others may be found without being told of them.
            "mesh.mdns": True,
        },
        "wan": {
            "mesh.listen": ("/ip4/0.0.0.0/tcp/6101",),
            # A handshake takes several round trips, each up to 300 ms across continents, and more through a relay.
            "mesh.dial_timeout": 15.0,
            # A lost packet delays a ping by a second or more.
            "mesh.ping_timeout": 6.0,
            # Retrying an absent far peer every second helps nobody.
            "mesh.redial": 3.0,
            # A question takes three round trips, and one lost packet costs half a second.
            "registry.probe": 2.0,
            "registry.probe_timeout": 2.0,
            # Time for two rounds of probes: on lossy paths one that fails says little.
            "registry.suspicion": 8.0,
            "registry.sync": 8.0,
            "registry.ask_timeout": 10.0,
            # TCP and TLS to a far peer: three round trips, and one lost packet costs a second.
            "router.connect_timeout": 6.0,
        },
    }
)
