"""What an operator may set about the registry, with units and trade-offs. Nothing is read from outside here."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RegistrySettings(BaseModel):
    """How a node announces itself, believes others, and keeps what it knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    heartbeat: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds between heartbeats among up to 5 nodes; rarer in proportion among more, for the same traffic.",
    )
    lease: float = Field(
        240.0,
        gt=0,
        le=14_400,
        description="Seconds without any sign of life until a node is lost; at least twice `heartbeat`, and grows with it.",
    )
    reannounce: float = Field(
        600.0,
        gt=0,
        le=14_400,
        description="Seconds between repetitions of the whole record; grows as `heartbeat` does. Sync repairs losses sooner.",
    )
    probe: float = Field(
        1.0,
        gt=0,
        le=60,
        description="Seconds between probes of the peer that was silent longest. Shorter finds the dead sooner; costs traffic.",
    )
    probe_timeout: float = Field(
        0.75,
        gt=0,
        le=30,
        description="Seconds that a probed peer may take beyond four round trips; then others are asked to probe it.",
    )
    coalesce: float = Field(
        0.05,
        ge=0,
        le=5,
        description="Seconds to wait for more changes before a record is published. Longer sends fewer frames in a burst.",
    )
    suspicion: float = Field(
        3.0,
        gt=0,
        le=3600,
        description="Seconds that a node is doubted before it counts as lost; any sign of life in time clears it.",
    )
    sync: float = Field(
        3.0,
        gt=0,
        le=300,
        description="Seconds between digest comparisons with one random peer, where no probe has compared meanwhile.",
    )
    ask_timeout: float = Field(
        3.0, gt=0, le=60, description="Seconds a peer may take to answer a comparison."
    )
    max_nodes: int = Field(
        10_000,
        ge=1,
        le=20_000,
        description="Nodes remembered, live or not. Full means that newcomers are refused.",
    )
    max_services: int = Field(
        2_000,
        ge=1,
        le=2_000,
        description="Models of one node. A record of 2,000 models fits one frame only with short names.",
    )
    frames_per_second: float = Field(
        20.0,
        gt=0,
        description="Frames of 4 KiB per author and second that are read; more are dropped and counted. Bursts of ten times "
        "as many pass.",
    )
    strangers_per_second: float = Field(
        2.0,
        gt=0,
        description="Nodes per second that a neighbour may bring in besides itself, 100 at once, 2,000 when we dialled it; "
        "more are refused. Higher lets a large mesh grow faster, and a hostile neighbour too.",
    )
    stranger_services: int = Field(
        16_000,
        ge=0,
        description="Models beyond 16 each that all nodes may serve which this one was never connected to, about a kilobyte "
        "of memory for each; what goes beyond is refused. Raise it for a large mesh whose nodes serve many.",
    )
    allow: tuple[str, ...] = Field(
        (),
        description="Peer ids that are let in; none means everybody who is not in `deny`.",
    )
    deny: tuple[str, ...] = Field(
        (),
        description="Peer ids that are kept out: no record of theirs is held, no question or request answered.",
    )


class MeshSettings(BaseModel):
    """How a node takes its place in the libp2p mesh."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: tuple[str, ...] = Field(
        ("/ip4/127.0.0.1/tcp/6101",),
        description="Multiaddrs to listen on; port 0 picks a free one.",
    )
    announce: tuple[str, ...] = Field(
        (),
        description="Multiaddrs to advertise instead of the ones found, for machines behind a fixed forwarding.",
    )
    bootstrap: tuple[str, ...] = Field(
        (),
        description="Multiaddrs, ending in /p2p/<peer id>, that are dialled until they answer, and again when lost.",
    )
    name: str = Field(
        "modelvine",
        min_length=1,
        max_length=256,
        description="A word for this mesh: nodes with the same one, and the same swarm key, meet at rendezvous points.",
    )
    rendezvous: tuple[str, ...] = Field(
        (),
        description="Multiaddrs of rendezvous points, ending in /p2p/<peer id>, where nodes that know nobody ask for others.",
    )
    rendezvous_point: bool = Field(
        default=False,
        description="Be a rendezvous point, for this mesh and for any other: costs memory within fixed bounds.",
    )
    mdns: bool = Field(
        default=False,
        description="Announce this node on its own network and look for others there (multicast DNS). On in profile `lan`.",
    )
    redial: float = Field(
        1.0,
        gt=0,
        le=60,
        description="Seconds before a lost peer is dialled again; grows to ten times that, to 5 min with enough others. A node "
        "that has too few dials each second at first.",
    )
    degree: int = Field(
        8,
        ge=1,
        le=64,
        description="Connections that a node tries to hold. More survive more failures and cost memory.",
    )
    max_connections: int = Field(
        256,
        ge=2,
        description="Connections held at most. Beyond it callers without a record give way, then the network with most callers.",
    )
    max_connections_per_address: int = Field(
        64,
        ge=1,
        description="Connections from one IP address; beyond it callers without a record give way. A site behind NAT shares one.",
    )
    dial_timeout: float = Field(
        5.0, gt=0, le=60, description="Seconds for a dial with its handshake."
    )
    ping: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds between pings of a connection, for its round trip; the registry's own probes notice silence sooner.",
    )
    ping_timeout: float = Field(
        2.0, gt=0, le=60, description="Seconds a ping may take before its connection is given up."
    )
    queue: int = Field(
        4096,
        ge=16,
        description="Frames that may wait for the registry; more are dropped and counted.",
    )
    max_pipes: int = Field(
        256, ge=1, description="Byte streams open to or from peers at one time; more are refused."
    )
    nat: Literal["auto", "yes", "no"] = Field(
        "auto",
        description="Whether others cannot dial this node: then relays hand on to it. `auto` asks peers to dial back.",
    )
    relay: bool = Field(
        default=False,
        description="Hand on between nodes that cannot dial each other. Costs their traffic twice; only TLS passes.",
    )
    relay_reservations: int = Field(
        64,
        ge=1,
        description="Nodes reached through this relay. Beyond it an unused place gives way, or whoever asks looks elsewhere.",
    )
    relay_circuits: int = Field(
        128,
        ge=1,
        description="Pairs of nodes that this relay connects at one time; more are refused.",
    )
    relay_circuits_per_peer: int = Field(
        32, ge=1, description="Such pairs that one node may be part of; more are refused."
    )
    relay_bytes: int = Field(
        1 << 30,
        ge=1 << 16,
        description="Bytes that one pair may exchange, both ways together; then it is cut and has to connect anew.",
    )
    relay_seconds: float = Field(
        3600.0,
        ge=1,
        le=86_400,
        description="Seconds that one pair stays connected; then it is cut and has to connect anew.",
    )
    carry: int = Field(
        8,
        ge=0,
        description="Pairs of members between which this node hands on though it is no relay, and connections brought to it so, "
        "where a way is cut that others have. None with 0.",
    )
    relay_lease: float = Field(
        600.0,
        ge=2,
        le=86_400,
        description="Seconds that a place at this relay lasts unless it is renewed, which happens every two minutes at least.",
    )
