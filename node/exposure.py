"""Exposure of a node: what is reachable, from where, and whether that needs a key.

It lists every surface by name, so that none is open by accident.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from node.config.addresses import HostPort, host_port
from node.config.settings import KeylessAccess, Settings
from node.faces import Listening
from node.peers.reach import host_of

HERE = "this machine"
EVERYBODY = "ALL machines that can reach it"
BEYOND = "this machine and ALL callers of a proxy on it"


@dataclass(frozen=True, slots=True)
class Surface:
    """One surface: what is served, where, to which callers, what they must show (empty for nothing), and how to close it."""

    name: str
    where: str
    who: str
    key: str
    closing: str

    @property
    def is_open(self) -> bool:
        """Whether other machines get in without a key."""
        return self.who != HERE and not self.key

    def __str__(self) -> str:
        shown = f", with {self.key}" if self.key else ", without a key" if self.is_open else ""
        return f"{self.name} at {self.where} for {self.who}{shown}"


def surfaces(settings: Settings, listening: Listening, mesh: Sequence[str]) -> tuple[Surface, ...]:
    """Return every surface of a node that listens at these addresses, in the order of the log lines."""
    return (
        *_http(settings, listening),
        *_rpc(settings, listening),
        *_mesh(settings, listening, mesh),
    )


def exposure_warning(surfaces: Iterable[Surface]) -> str:
    """Return one line that says what other machines may use without a key, and how to close it; empty for nothing."""
    by_closing: dict[str, list[str]] = {}
    for surface in surfaces:
        if surface.is_open:
            by_closing.setdefault(surface.closing, []).append(surface.name)
    return "; ".join(
        f"{', '.join(names)}: open to callers on other machines without a key; {closing}"
        for closing, names in by_closing.items()
    )


def _http(settings: Settings, listening: Listening) -> Iterator[Surface]:
    address = host_port(listening.http)
    who = HERE if address.is_loopback else EVERYBODY
    if address.is_loopback and settings.node.open is KeylessAccess.EVERYBODY:
        who = BEYOND
    key = _users_key(settings, address)
    closing = "to close it, use --open machine or --open nobody, and create keys: modelvine key create NAME"
    yield Surface("HTTP (/v1, /api)", listening.url, who, key, closing)
    yield Surface("metrics", f"{listening.url}/metrics", who, key, closing)
    proof = "the control token (except the node's user and root on this machine)"
    changing = HERE if address.is_loopback else EVERYBODY
    yield Surface("changes", f"{listening.url}/api", changing, proof, "")


def _users_key(settings: Settings, address: HostPort) -> str:
    """Return what callers must show to use models, empty for nothing; people on this machine need nothing by default."""
    match settings.node.open:
        case KeylessAccess.EVERYBODY:
            return ""
        case KeylessAccess.MACHINE:
            return "" if address.is_loopback else "a user's key (except users of this machine)"
    return "a user's key"


def _rpc(settings: Settings, listening: Listening) -> Iterator[Surface]:
    for name, address in listening.rpcs.items():
        who = HERE if address.is_loopback else EVERYBODY
        keyed = settings.faces.model_dump()[f"{name}_keys"]
        closing = (
            f"to close it, set faces.{name} to 127.0.0.1:{address.port}, or use --open machine"
        )
        key = f"a key of faces.{name}_keys" if keyed else _users_key(settings, address)
        yield Surface(f"gRPC ({name})", f"grpc://{address}", who, key, closing)


def _mesh(settings: Settings, listening: Listening, mesh: Sequence[str]) -> Iterator[Surface]:
    hosts = map(host_of, [*settings.mesh.listen, *mesh])
    who = HERE if all(HostPort(host, 0).is_loopback for host in hosts) else EVERYBODY
    key = _key(settings)
    closing = "to close it, use --swarm-key FILE, or list the peers in registry.allow"
    where = ", ".join(mesh) or ", ".join(settings.mesh.listen)
    yield Surface("mesh", where, who, key, closing)
    link = host_port(listening.link)
    proof = "the certificate of a node of this mesh"
    yield Surface("link", f"https://{link}", HERE if link.is_loopback else EVERYBODY, proof, "")
    if settings.mesh.relay:
        yield Surface("relay", "the mesh", who, key, f"{closing}, or omit --relay")
    if settings.mesh.rendezvous_point:
        off = f"{closing}, or omit --rendezvous-point"
        yield Surface("rendezvous point", "the mesh", who, key, off)
    if settings.mesh.mdns:
        mdns_key = "a name derived from the swarm key" if settings.node.swarm_key else ""
        network = who if who == HERE else "all machines on its networks"
        yield Surface("mDNS", "UDP port 5353", network, mdns_key, "to close it, use --no-mdns")


def _key(settings: Settings) -> str:
    if settings.node.swarm_key:
        return "the swarm key"
    return "a key in registry.allow" if settings.registry.allow else ""
