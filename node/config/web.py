"""What an operator may set about connections of clients and of other nodes, with units and trade-offs."""

from pydantic import BaseModel, ConfigDict, Field


class WebSettings(BaseModel):
    """How many may be connected to a listener, and for how long without a word."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...] = Field(
        (),
        description="Host names by which callers may address this node, besides its addresses, `localhost`, the host's name and "
        "those in `mesh.announce`: the name of a proxy that passes it on, `host.docker.internal`; `*`: any. Any also means that "
        "a page of any site reads what this node shows, where somebody whose browser reaches it opens that page.",
    )
    origins: tuple[str, ...] = Field(
        (),
        description="Origins, like `https://chat.example`, whose pages may use this node from a browser (CORS); `*`: all; empty: "
        "none but its own. What changes the node they may do with the control token alone.",
    )
    trusted_proxies: tuple[str, ...] = Field(
        (),
        description="Proxies in front, by address or network (`192.0.2.7`, `10.0.0.0/24`), whose `X-Forwarded-For` is believed: "
        "limits of addresses then hold for each caller behind them. Empty: nobody's. Whoever can call from there can pretend to "
        "be any address, so name machines, not the networks of callers.",
    )
    proxy_protocol: bool = Field(
        False,  # noqa: FBT003
        description="Whether connections of `web.trusted_proxies` begin with the PROXY protocol (version 1 or 2, before TLS); "
        "those that do not are closed. For proxies that pass on connections, not requests. Commands on this machine need another "
        "address than the proxy's.",
    )
    rpm_per_address: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Requests a minute for models that one address may send without a key, evenly spread; then 429. 0: no limit. "
        "An IPv6 address counts by its /64. People on this machine are exempt. Counted by each process of each node.",
    )
    tpm_per_address: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Tokens a minute, read and written, likewise.",
    )
    concurrency_per_address: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Requests under way at one time, likewise.",
    )
    connections: int = Field(
        16_384,
        ge=1,
        le=1_000_000,
        description="Connections to one listener (`node.http`, `node.link`) of one process. When there are as many, idle ones "
        "make room; if none is idle, whoever comes gets 503. Each takes an open file or two: where "
        "too few are allowed, the node lowers this at start and says so.",
    )
    connections_per_address: int = Field(
        4_096,
        ge=1,
        le=1_000_000,
        description="Connections from one IP address, likewise. Those on this machine share one, and so do all callers behind a "
        "proxy that is none of `web.trusted_proxies`, which may have as many as `connections`. In the open, fewer keep one "
        "caller from taking many places.",
    )
    max_bodies_bytes: int = Field(
        512 * 1024 * 1024,
        ge=64 * 1024,
        description="Bytes that the bodies of all requests at one listener may take together, each until its request is "
        "answered; beyond it a body of more than 64 KiB gets 503 with `Retry-After`. No less than `router.max_body_bytes`; a "
        "process needs some times as much where bodies are read as JSON.",
    )
    min_body_rate: int = Field(
        8 * 1024,
        ge=1,
        description="Bytes a second, on average, at which a long body must come; then 408. The default is slower than any modem.",
    )
    head_timeout: float = Field(
        10.0,
        ge=0.5,
        le=600,
        description="Seconds that a request's head may take, from the opening of the connection or its own first byte; then 408.",
    )
    idle_timeout: float = Field(
        75.0,
        ge=0.5,
        le=3600,
        description="Seconds that a connection is kept between two requests. Longer than a proxy in front keeps its own, or it "
        "may send a request just when the connection ends.",
    )
