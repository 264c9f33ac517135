"""Addresses at which other nodes can reach this node, derived from its listeners.

Also the sentence that tells the operator of a node without peers how other nodes join it.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from node.config.addresses import HostPort
from registry.mesh.discovered import only_loopback
from registry.records import Reach


def invitation(addresses: Sequence[str], *, listen: Sequence[str], private: bool) -> str:
    """Return a sentence for the operator of a lone node; `addresses` are the node's own, the best first."""
    if not addresses:
        return "no other node is connected, and none can join while the mesh is down"
    key = " --swarm-key FILE, the same key," if private else ""
    if only_loopback(addresses) and not only_loopback(listen):
        return (
            "no other node is connected; this node serves its own models. Others cannot join it yet: this machine has no "
            f"address of {', '.join(listen)}; if its network has IPv6 only, start it with --listen /ip6/::/tcp/6101"
        )
    if only_loopback(addresses):
        return (
            "no other node is connected; this node serves its own models. Nodes on this machine join it with"
            f"{key} --bootstrap {addresses[0]}; to let other machines join, start it with --profile lan"
        )
    outside = next(address for address in addresses if not only_loopback([address]))
    return (
        "no other node is connected; this node serves its own models. Others join it with"
        f"{key} --bootstrap {outside}"
    )


_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (compared with, never bound)


def host_of(multiaddr: str) -> str:
    """Return the host part of a multiaddr such as `/ip4/10.0.0.1/tcp/6101`."""
    parts = multiaddr.split("/")
    return parts[2] if len(parts) > 2 else ""


def local_address(listener: HostPort) -> HostPort:
    """Return where a listener of this node is reached from its own machine."""
    return HostPort(_EVERYWHERE.get(listener.host, listener.host), listener.port)


@lru_cache(maxsize=4)
def own_ports(listeners: tuple[str, ...], mesh: tuple[str, ...]) -> frozenset[int]:
    """Return the ports on which this node itself listens, given as `host:port` and multiaddrs: a worker there would be a loop."""
    ports = {listener.rpartition(":")[2] for listener in listeners}
    ports |= {address.partition("/tcp/")[2].partition("/")[0] for address in mesh}
    return frozenset(int(port) for port in ports if port.isdigit())


def reach_of(mesh: Iterable[str], *, link: HostPort, certificate: bytes) -> Reach:
    """Return how to reach this node. A link listener on a wildcard address is reached at the hosts of its mesh addresses."""
    addresses = tuple(dict.fromkeys(mesh))
    hosts = [link.host]
    if link.host in _EVERYWHERE:
        direct = (address for address in addresses if "/p2p-circuit" not in address)
        hosts = [host for host in map(host_of, direct) if host]
    links = tuple(dict.fromkeys(str(HostPort(host, link.port)) for host in hosts))
    return Reach(mesh=addresses, links=links, certificate=certificate)
