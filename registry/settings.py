"""Settings of the registry, with units and trade-offs. Nothing is read from outside here."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RegistrySettings(BaseModel):
    """How a node announces itself, what it accepts from others, and how it keeps what it knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    heartbeat: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds between heartbeats in a mesh of up to 5 nodes; grows with the mesh, for constant traffic.",
    )
    lease: float = Field(
        240.0,
        gt=0,
        le=14_400,
        description="Seconds without a sign of life until a node is lost; at least twice `heartbeat`, and grows with it.",
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
        description="Seconds between probes of the peer that was silent longest. Shorter detects failures sooner; costs traffic.",
    )
    probe_timeout: float = Field(
        0.75,
        gt=0,
        le=30,
        description="Seconds that a probed peer may take beyond four round trips; then the node asks others to probe it.",
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
        description="Seconds that a node stays suspect before it is lost; any sign of life clears the suspicion.",
    )
    sync: float = Field(
        3.0,
        gt=0,
        le=300,
        description="Seconds between digest comparisons with a random peer, unless a probe has compared meanwhile.",
    )
    ask_timeout: float = Field(
        3.0, gt=0, le=60, description="Seconds that a peer may take to answer a comparison."
    )
    max_nodes: int = Field(
        10_000,
        ge=1,
        le=20_000,
        description="Nodes to remember, live or not. At the limit, new nodes are refused.",
    )
    max_services: int = Field(
        2_000,
        ge=1,
        le=2_000,
        description="Models of one node. A record of 2,000 models fits into one frame only with short names.",
    )
    frames_per_second: float = Field(
        20.0,
        gt=0,
        description=(
            "Frames of 4 KiB that are read per author and second; more are dropped and counted. Allows bursts of ten times "
            "as many."
        ),
    )
    strangers_per_second: float = Field(
        2.0,
        gt=0,
        description=(
            "New nodes per second that a neighbour may introduce besides itself, 100 at once, 2,000 if this node dialled "
            "it; more are refused. A higher value lets a large mesh grow faster, but a hostile neighbour too."
        ),
    )
    stranger_services: int = Field(
        16_000,
        ge=0,
        description=(
            "Models, beyond 16 of each node, that all nodes to which this one was never connected may serve together; more "
            "are refused. Each takes about a kilobyte. Raise it for a large mesh with many models."
        ),
    )
    allow: tuple[str, ...] = Field(
        (),
        description="Peer ids to admit; empty: everyone who is not in `deny`.",
    )
    deny: tuple[str, ...] = Field(
        (),
        description="Peer ids to exclude: the node stores none of their records and answers none of their requests.",
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
        description="Multiaddrs to advertise instead of the detected ones, for machines behind port forwarding.",
    )
    bootstrap: tuple[str, ...] = Field(
        (),
        description="Multiaddrs, ending in /p2p/<peer id>, that the node dials until they answer, and again when lost.",
    )
    name: str = Field(
        "modelvine",
        min_length=1,
        max_length=256,
        description="Name of this mesh: nodes with the same name and swarm key find each other at rendezvous points.",
    )
    rendezvous: tuple[str, ...] = Field(
        (),
        description="Multiaddrs of rendezvous points, ending in /p2p/<peer id>, where nodes ask for other nodes.",
    )
    rendezvous_point: bool = Field(
        default=False,
        description="Act as a rendezvous point, for this mesh and others; takes a bounded amount of memory.",
    )
    mdns: bool = Field(
        default=False,
        description="Announce this node on the local network and look for others there (multicast DNS). On in profile `lan`.",
    )
    redial: float = Field(
        1.0,
        gt=0,
        le=60,
        description=(
            "Seconds before a lost peer is dialled again; grows tenfold, and to 5 min if there are enough other peers. A "
            "node with too few peers dials every second at first."
        ),
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
        description=(
            "Maximum number of connections. Beyond it, peers without a record are dropped first, then peers of the network "
            "with the most."
        ),
    )
    max_connections_per_address: int = Field(
        64,
        ge=1,
        description=(
            "Connections from one IP address; beyond it, peers without a record are dropped. All machines behind one NAT "
            "share an address."
        ),
    )
    dial_timeout: float = Field(
        5.0, gt=0, le=60, description="Seconds for a dial including its handshake."
    )
    ping: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds between pings that measure a connection's round trip; the registry's probes detect silence sooner.",
    )
    ping_timeout: float = Field(
        2.0,
        gt=0,
        le=60,
        description="Seconds in which neither an answer to a ping nor other data may come, before a connection is closed.",
    )
    queue: int = Field(
        4096,
        ge=16,
        description="Frames that may wait for the registry; more are dropped and counted.",
    )
    max_pipes: int = Field(
        256, ge=1, description="Concurrent byte streams to and from peers; more are refused."
    )
    nat: Literal["auto", "yes", "no"] = Field(
        "auto",
        description="Whether this node is behind a NAT and needs a relay: `yes`, `no`, or `auto`, which asks peers to dial back.",
    )
    relay: bool = Field(
        default=False,
        description="Act as a relay between nodes that cannot dial each other. Costs each byte twice; carries only TLS.",
    )
    relay_reservations: int = Field(
        64,
        ge=1,
        description=(
            "Nodes that may reserve a slot at this relay. Beyond it, an unused slot is freed, or the node is refused and "
            "tries another relay."
        ),
    )
    relay_circuits: int = Field(
        128,
        ge=1,
        description="Pairs of nodes that this relay connects at one time; more are refused.",
    )
    relay_circuits_per_peer: int = Field(
        32, ge=1, description="Pairs that one node may be part of; more are refused."
    )
    relay_bytes: int = Field(
        1 << 30,
        ge=1 << 16,
        description="Bytes that one pair may exchange in both directions; then the relay cuts it, and it has to reconnect.",
    )
    relay_seconds: float = Field(
        3600.0,
        ge=1,
        le=86_400,
        description="Seconds that one pair stays connected; then the relay cuts it, and it has to reconnect.",
    )
    carry: int = Field(
        8,
        ge=0,
        description=(
            "Pairs of members for which this node forwards traffic although it is not a relay, and connections forwarded to "
            "it, if their direct link fails. 0: none."
        ),
    )
    relay_lease: float = Field(
        600.0,
        ge=2,
        le=86_400,
        description="Seconds that a reservation at this relay lasts; nodes renew it at least every two minutes.",
    )
