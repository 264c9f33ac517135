"""At which addresses can others reach this node? Worked out from where it listens."""

from collections.abc import Iterable

from registry.records import Reach

UNSPECIFIED = frozenset({"0.0.0.0", "::"})  # noqa: S104  (compared with, never bound)


def host_of(multiaddr: str) -> str:
    """Return the host part of a multiaddr such as `/ip4/10.0.0.1/tcp/6101`."""
    parts = multiaddr.split("/")
    return parts[2] if len(parts) > 2 else ""


def split_address(address: str) -> tuple[str, int]:
    """Split `HOST:PORT`, where HOST may be a bracketed IPv6 address; raise `ValueError`."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Join a host and a port, bracketing IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reach_of(mesh: Iterable[str], *, link_host: str, link_port: int, certificate: bytes) -> Reach:
    """Say how to reach us: the link listener is found at the hosts of our mesh addresses when it listens on all."""
    addresses = tuple(dict.fromkeys(mesh))
    hosts = [link_host]
    if link_host in UNSPECIFIED:
        hosts = [host for host in map(host_of, addresses) if host]
    links = tuple(dict.fromkeys(join_address(host, link_port) for host in hosts))
    return Reach(mesh=addresses, links=links, certificate=certificate)
