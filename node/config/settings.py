"""What an operator may set about the process itself, and the whole of the settings in one frozen value.

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
            # Retrying an absent far peer every second helps nobody who has enough others.
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


class Keyless(StrEnum):
    """Who may ask a node's models, and look at it, without a key."""

    NOBODY = "nobody"
    MACHINE = "machine"
    EVERYBODY = "everybody"


_SWITCHES = {
    **dict.fromkeys(("true", "1", "yes"), Keyless.EVERYBODY),
    **dict.fromkeys(("false", "0", "no"), Keyless.MACHINE),
}


def _as_it_was(said: object) -> object:
    """Read what was a switch before there were keys."""
    return _SWITCHES.get(str(said).lower(), said)


class NodeSettings(BaseModel):
    """Where this process listens, where it keeps its files, and how it ends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        "",
        description="What this node is called, 1 to 64 characters; all others read it. Empty means the host's name.",
    )
    http: str = Field(
        "127.0.0.1:6100", description="HOST:PORT of the HTTP face; port 0 picks a free one."
    )
    tls_cert: str = Field(
        "",
        description="File with the HTTP face's certificate and its chain, in PEM: then it speaks HTTPS. Read anew on change.",
    )
    tls_key: str = Field(
        "",
        description="File with the certificate's key, in PEM, without a password, unreadable for other users.",
    )
    link: str = Field(
        "",
        description="HOST:PORT of the HTTPS listener for other nodes; empty means the first `listen` address and any free port.",
    )
    data_dir: str = Field(
        "",
        description="Directory of key, database and control token; empty means the user's own data directory.",
    )
    store: str = Field(
        "sqlite",
        description=(
            "`memory`, `sqlite`, `redis://HOST:PORT/N` or `postgresql://HOST:PORT/DATABASE`: where registrations survive a "
            "restart. Nodes that use one Redis or PostgreSQL are one site, and share keys, limits, usage and the audit log."
        ),
    )
    swarm_key: str = Field(
        "",
        description="File with the private-swarm key; only nodes with the same key connect. Empty means an open mesh.",
    )
    profile: Literal["local", "lan", "wan"] = Field(
        "local",
        description="`local`, `lan` or `wan`: sets of defaults for one machine, one network, many networks.",
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description=(
            "Processes that answer requests for models, together one node. Worth more than one where a single processor is too "
            "slow; each further one takes some 70 MB."
        ),
    )
    drain_timeout: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="Seconds that requests in flight get to finish after the first SIGTERM.",
    )
    log_format: Literal["console", "json"] = Field(
        "console",
        description="`console` for people, `json` for machines; both on standard error.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description="The least severe line that is written.",
    )
    traces: str = Field(
        "",
        description=(
            "URL to which spans of requests go, as OTLP over HTTP: `http://127.0.0.1:4318/v1/traces`, say, of an OpenTelemetry "
            "collector; empty: none are made. Needs `modelvine[otel]`."
        ),
    )
    trace_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description=(
            "Share of requests that are traced, from 0 to 1, of those whose caller sends no `traceparent`; one that is sent says "
            "whether. Each costs a fraction of a millisecond."
        ),
    )
    usage_days: int = Field(
        35,
        ge=1,
        le=3_660,
        description="Days for which it is kept what each key has used.",
    )
    prices: tuple[str, ...] = Field(
        (),
        description=(
            "What models cost, as `PATTERN=READ/WRITTEN`: a million tokens read and written, in your currency; the first "
            "pattern that fits counts. `modelvine usage` then shows sums."
        ),
    )
    open: Annotated[Keyless, BeforeValidator(_as_it_was)] = Field(
        Keyless.MACHINE,
        description=(
            "Who may ask and look without a key: `nobody`, people on this `machine`, or `everybody`. "
            "To be said where other machines can reach the node."
        ),
    )

    trusted_issuers: tuple[str, ...] = Field(
        (),
        description=(
            "Peer ids of nodes of other sites whose grants are keys here too, within what each grant allows; "
            "empty: only grants of this site's nodes."
        ),
    )
    peers_need_grant: bool = Field(
        default=False,
        description=(
            "Whether other nodes must show a grant, of this site or of `trusted_issuers`, to have their requests answered here; "
            "otherwise every node of the mesh may ask. `modelvine invite --for-node` makes one."
        ),
    )

    @property
    def open_said(self) -> bool:
        """Whether the operator has decided who needs no key."""
        return "open" in self.model_fields_set


class FacesSettings(BaseModel):
    """Which protocols are spoken beside OpenAI's, and which model is meant by clients that name none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default_model: str = Field(
        "",
        description=(
            "MODEL or PROJECT/MODEL that answers clients whose protocol names no model; empty refuses them with a sentence."
        ),
    )
    localai: str = Field(
        "",
        description="HOST:PORT of the gRPC face that LocalAI names as an external backend; empty: none.",
    )
    localai_keys: str = Field(
        "",
        description=(
            "File with the keys that LocalAI must show (its LOCALAI_GRPC_AUTH_TOKEN); a line each, readable by its owner only; "
            "empty: nobody is asked for one, so that only this machine may ask."
        ),
    )
    localai_files: str = Field(
        "",
        description=(
            "Directory in which LocalAI's images and sounds are handed over, at paths that it names; empty refuses those RPCs. "
            "Whoever reaches the face may read and replace what lies there."
        ),
    )
    remotellm: str = Field(
        "",
        description="HOST:PORT of the gRPC face for RemoteLLM's clients; empty: none.",
    )
    remotellm_keys: str = Field(
        "",
        description=(
            "File with the keys that RemoteLLM's clients must show, one on each line, readable by its owner only; "
            "empty: any key will do, so that only this machine may ask."
        ),
    )


class Settings(BaseModel):
    """Everything that can be set, one part per package beside what it configures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: NodeSettings = NodeSettings()
    web: WebSettings = WebSettings()
    faces: FacesSettings = FacesSettings()
    mesh: MeshSettings = MeshSettings()
    registry: RegistrySettings = RegistrySettings()
    router: RouterSettings = RouterSettings()
