"""Settings of the connections of clients and of other nodes, with units and trade-offs."""

from pydantic import BaseModel, ConfigDict, Field


class WebSettings(BaseModel):
    """Settings of a listener: allowed names and origins, trusted proxies, limits and timeouts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...] = Field(
        (),
        description=(
            "Host names for this node that callers may use, besides its addresses, `localhost`, the host name and those in "
            "`mesh.announce`: for example a proxy's public name, or `host.docker.internal`. `*`: any, but then any web page "
            "that a user opens can read this node through the user's browser."
        ),
    )
    origins: tuple[str, ...] = Field(
        (),
        description=(
            "Origins, such as `https://chat.example`, whose web pages may call this node (CORS); `*`: all; empty: none but "
            "its own. Pages need the control token to change the node."
        ),
    )
    trusted_proxies: tuple[str, ...] = Field(
        (),
        description=(
            "Addresses or networks of proxies (`192.0.2.7`, `10.0.0.0/24`) whose `X-Forwarded-For` the node trusts, so that "
            "limits apply to each caller behind them. Empty: none. Anyone at these addresses can claim any caller's "
            "address: list proxies, not networks of callers."
        ),
    )
    proxy_protocol: bool = Field(
        False,  # noqa: FBT003
        description=(
            "Require the PROXY protocol (version 1 or 2, before TLS) on connections from `web.trusted_proxies`; others from "
            "there are closed. For TCP proxies. Commands on this machine need another address than the proxy."
        ),
    )
    rpm_per_address: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description=(
            "Requests a minute for models that one address may send without a key, evenly spread; then 429. 0: no limit. "
            "IPv6 addresses count by /64; this machine is exempt. Each process of each node counts by itself."
        ),
    )
    tpm_per_address: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Input and output tokens a minute, in the same way.",
    )
    concurrency_per_address: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Concurrent requests, in the same way.",
    )
    connections: int = Field(
        16_384,
        ge=1,
        le=1_000_000,
        description=(
            "Connections to one listener (`node.http`, `node.link`) of one process. At the limit, the node closes idle "
            "connections; if none is idle, new ones get 503. Each takes one or two open files: if the system allows too "
            "few, the node lowers this value at start and logs it."
        ),
    )
    connections_per_address: int = Field(
        4_096,
        ge=1,
        le=1_000_000,
        description=(
            "Connections from one IP address, in the same way. This machine counts as one address, and so do all callers "
            "behind a proxy that is not in `web.trusted_proxies`; trusted proxies may use all `connections`. On the "
            "internet, use a lower value."
        ),
    )
    max_bodies_bytes: int = Field(
        512 * 1024 * 1024,
        ge=64 * 1024,
        description=(
            "Bytes that the bodies of all requests in flight may take at one listener; beyond it, a body of more than 64 "
            "KiB gets 503 with `Retry-After`. At least `router.max_body_bytes`. A process needs several times as much "
            "memory while it parses JSON bodies."
        ),
    )
    min_body_rate: int = Field(
        8 * 1024,
        ge=1,
        description="Average bytes a second at which a long body must arrive; then 408. The default is slower than any modem.",
    )
    head_timeout: float = Field(
        10.0,
        ge=0.5,
        le=600,
        description="Seconds that a request's headers may take, from the connection or their first byte; then 408.",
    )
    idle_timeout: float = Field(
        75.0,
        ge=0.5,
        le=3600,
        description=(
            "Seconds to keep an idle connection open. Use more than a proxy in front does; otherwise the proxy may send a "
            "request just when the connection closes."
        ),
    )


WEB_DEFAULTS = WebSettings()
"""The settings of a listener that its operator did not change."""
