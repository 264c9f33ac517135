"""Settings of the process itself and of its faces, and all settings in one frozen value.

Profiles `local`, `lan` and `wan`: deltas over the defaults, with reasons.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from node.config.web import WebSettings
from registry.settings import MeshSettings, RegistrySettings
from router.settings import RouterSettings

Delta = Mapping[str, object]

PROFILES: Mapping[str, Delta] = MappingProxyType(
    {
        # The defaults themselves: loopback only, round trips under a millisecond.
        "local": {},
        "lan": {
            # Other machines must be able to dial this node. HTTP stays on loopback: opening it is a separate decision.
            "mesh.listen": ("/ip4/0.0.0.0/tcp/6101",),
            # On a private network, nodes may find each other without bootstrap addresses.
            "mesh.mdns": True,
        },
        "wan": {
            "mesh.listen": ("/ip4/0.0.0.0/tcp/6101",),
            # A handshake takes several round trips, each up to 300 ms across continents, and more through a relay.
            "mesh.dial_timeout": 15.0,
            # A lost packet delays a ping by a second or more.
            "mesh.ping_timeout": 6.0,
            # Redialling an absent far peer every second is useless for a node with enough other peers.
            "mesh.redial": 3.0,
            # A probe takes three round trips, and one lost packet costs half a second.
            "registry.probe": 2.0,
            "registry.probe_timeout": 2.0,
            # Time for two rounds of probes: on lossy paths one failed probe says little.
            "registry.suspicion": 8.0,
            "registry.sync": 8.0,
            "registry.ask_timeout": 10.0,
            # TCP and TLS to a far peer: three round trips, and one lost packet costs a second.
            "router.connect_timeout": 6.0,
        },
    }
)


class KeylessAccess(StrEnum):
    """Who may use a node's models, and view its state, without a key."""

    NOBODY = "nobody"
    MACHINE = "machine"
    EVERYBODY = "everybody"


_SWITCHES = {
    **dict.fromkeys(("true", "1", "yes"), KeylessAccess.EVERYBODY),
    **dict.fromkeys(("false", "0", "no"), KeylessAccess.MACHINE),
}


def _convert_switch(value: object) -> object:
    """Convert the values of older versions, in which the setting was a switch, and return all others unchanged."""
    return _SWITCHES.get(str(value).lower(), value)


class NodeSettings(BaseModel):
    """Settings of this process: its listeners, its files, its logs, its keys and how it ends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        "",
        description="Name of this node, 1 to 64 characters, visible to all nodes. Empty: the host name.",
    )
    http: str = Field(
        "127.0.0.1:6100", description="HOST:PORT of the HTTP server; port 0 picks a free one."
    )
    tls_cert: str = Field(
        "",
        description="PEM file with the HTTP server's certificate and chain; turns on HTTPS. Reloaded when it changes.",
    )
    tls_key: str = Field(
        "",
        description="PEM file with the certificate's private key, without a password, not world-readable.",
    )
    link: str = Field(
        "",
        description="HOST:PORT of the HTTPS server for other nodes; empty: the first `listen` address and any free port.",
    )
    data_dir: str = Field(
        "",
        description="Directory of identity key, database and control token; empty: the user's data directory.",
    )
    store: str = Field(
        "sqlite",
        description=(
            "`memory`, `sqlite`, `redis://HOST:PORT/N` or `postgresql://HOST:PORT/DATABASE`: where registrations survive a "
            "restart. Nodes that share one Redis or PostgreSQL are one site, and share keys, limits, usage and the audit "
            "log."
        ),
    )
    swarm_key: str = Field(
        "",
        description="File with the swarm key; only nodes with the same key connect. Empty: an open mesh.",
    )
    profile: Literal["local", "lan", "wan"] = Field(
        "local",
        description="`local`, `lan` or `wan`: defaults for one machine, one network, or several networks.",
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description=(
            "Processes that serve requests, together one node. Use more than one if a single core is too slow; each further "
            "one takes 60 MB idle, and some 100 MB under load."
        ),
    )
    drain_timeout: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="Seconds that requests in flight may take to finish after the first SIGTERM.",
    )
    log_format: Literal["console", "json"] = Field(
        "console",
        description="`console` for people, `json` for programs; both on standard error.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description="The lowest level that is logged.",
    )
    traces: str = Field(
        "",
        description=(
            "URL of an OpenTelemetry collector that receives request traces as OTLP over HTTP, such as "
            "`http://127.0.0.1:4318/v1/traces`, and metrics at the same URL with `metrics` for `traces`; empty: neither. "
            "Needs `modelvine[otel]`."
        ),
    )
    trace_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description=(
            "Share of requests to trace, from 0 to 1, among those without a `traceparent`; a caller's `traceparent` decides "
            "for its request. A trace costs a fraction of a millisecond."
        ),
    )
    usage_days: int = Field(
        35,
        ge=1,
        le=3_660,
        description="Days to keep the usage of each key.",
    )
    prices: tuple[str, ...] = Field(
        (),
        description=(
            "Prices of models as `PATTERN=INPUT/OUTPUT`, for a million tokens each, in your currency; the first matching "
            "pattern applies. `modelvine usage` then shows costs."
        ),
    )
    open: Annotated[KeylessAccess, BeforeValidator(_convert_switch)] = Field(
        KeylessAccess.MACHINE,
        description=(
            "Who may use models and read status without a key: `nobody`, users of this `machine`, or `everybody`. Required "
            "if other machines can reach the node."
        ),
    )

    trusted_issuers: tuple[str, ...] = Field(
        (),
        description="Peer ids of nodes of other sites whose grants this node accepts; empty: only grants of this site's nodes.",
    )
    peers_need_grant: bool = Field(
        default=False,
        description=(
            "Require a grant, of this site or of `trusted_issuers`, for requests from other nodes; otherwise every node of "
            "the mesh may send requests. `modelvine invite --for-node` creates a grant."
        ),
    )

    @property
    def is_open_set(self) -> bool:
        """Whether the operator has decided who needs no key."""
        return "open" in self.model_fields_set


class FacesSettings(BaseModel):
    """Settings of the faces beside OpenAI's, and the default model of clients that name none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default_model: str = Field(
        "",
        description="MODEL or PROJECT/MODEL for clients whose protocol names no model; empty: such requests are refused.",
    )
    localai: str = Field(
        "",
        description="HOST:PORT of the gRPC server that LocalAI uses as an external backend; empty: none.",
    )
    localai_keys: str = Field(
        "",
        description=(
            "File with the keys that LocalAI must send (its LOCALAI_GRPC_AUTH_TOKEN), one on each line, readable by its "
            "owner only; empty: no key, and only this machine may connect."
        ),
    )
    localai_files: str = Field(
        "",
        description=(
            "Directory for LocalAI's image and audio files, at paths that LocalAI names; empty: those RPCs are refused. "
            "Every client of this server can read and replace the files."
        ),
    )
    remotellm: str = Field(
        "",
        description="HOST:PORT of the gRPC server for RemoteLLM clients; empty: none.",
    )
    remotellm_keys: str = Field(
        "",
        description=(
            "File with the keys that RemoteLLM clients must send, one on each line, readable by its owner only; empty: any "
            "key, and only this machine may connect."
        ),
    )


class Settings(BaseModel):
    """All settings, one part per package, each defined in the package that it configures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: NodeSettings = NodeSettings()
    web: WebSettings = WebSettings()
    faces: FacesSettings = FacesSettings()
    mesh: MeshSettings = MeshSettings()
    registry: RegistrySettings = RegistrySettings()
    router: RouterSettings = RouterSettings()
