"""What changes when a node leaves one machine for one network, or for many? Deltas over the defaults, with reasons."""

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
        },
        "wan": {
            "mesh.listen": ("/ip4/0.0.0.0/tcp/6101",),
            # A handshake takes several round trips, each up to 300 ms across continents, and more through a relay.
            "mesh.dial_timeout": 15.0,
            # Pings cost traffic on every link, and a lost packet delays one by a second or more.
            "mesh.ping": 10.0,
            "mesh.ping_timeout": 6.0,
            # Retrying an absent far peer every second helps nobody.
            "mesh.redial": 3.0,
            # Four heartbeats to a lease: on lossy paths two in a row get lost often enough to matter.
            "registry.heartbeat": 10.0,
            "registry.lease": 40.0,
            "registry.suspicion": 15.0,
            "registry.sync": 8.0,
            "registry.ask_timeout": 10.0,
            # TCP and TLS to a far peer: three round trips, and one lost packet costs a second.
            "router.connect_timeout": 6.0,
        },
    }
)
