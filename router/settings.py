"""Settings of the router, with units and trade-offs. Nothing is read from outside here."""

from pydantic import BaseModel, ConfigDict, Field


class RouterSettings(BaseModel):
    """Settings for attempts, timeouts, and sizes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str = Field(
        "p2c", description="Load-balancing policy: the name of a module in `router/policies`."
    )
    attempts: int = Field(
        3,
        ge=1,
        le=10,
        description="Workers to try for one request before its first byte. More hide more failures and cost time.",
    )
    hedge: bool = Field(
        default=False,
        description=(
            "Ask a second, idle worker if the first takes longer than 19 of 20 responses did, and cancel the slower one; "
            "for short responses without streaming. Cuts tail latency; costs duplicate work, within `retry_share`."
        ),
    )
    retry_share: float = Field(
        0.2,
        ge=0,
        le=1,
        description=(
            "Retry budget: retries may be this share of the requests of the last 10 s, and always 30; beyond it, callers "
            "get the first error. More hides more failures, but adds load on the other workers when many fail."
        ),
    )
    queue: int = Field(
        100,
        ge=0,
        le=100_000,
        description="Requests that may wait for a slot of this machine's workers, for each model; more get 429.",
    )
    queue_timeout: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="Seconds that a request may wait for a slot; then 429.",
    )
    ready_timeout: float = Field(
        10.0,
        ge=0,
        le=600,
        description=(
            "Seconds that a request may wait while no replica of its model is ready (lost, restarting, loading); then 503. "
            "0: answer at once. Longer hides longer restarts, but delays the error."
        ),
    )
    connect_timeout: float = Field(
        2.0,
        gt=0,
        le=60,
        description="Seconds to connect to a worker or peer. Keep it short: another replica may answer.",
    )
    first_byte_timeout: float = Field(
        120.0,
        gt=0,
        le=3600,
        description="Seconds until the first byte of a response; a long prompt on a slow GPU needs many.",
    )
    idle_timeout: float = Field(
        60.0, gt=0, le=3600, description="Seconds between two bytes of a response that has begun."
    )
    stall_timeout: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="Seconds that a caller may leave its response unread; then the node disconnects it and frees the worker.",
    )
    continue_streams: bool = Field(
        default=True,
        description=(
            "Whether another worker continues a text stream whose worker died; the request header `x-modelvine-continue` "
            "(`0` or `1`) overrides this. Turn it off if a text must come from one worker."
        ),
    )
    keep_alive: float = Field(
        20.0,
        ge=0,
        le=3600,
        description=(
            "Seconds of silence after which a caller that waits for a text stream gets a comment, repeatedly; 0: never. Use "
            "less than the timeout of your proxies (often 30 s), but not too little: after the first comment, a failure is "
            "an event in the stream instead of an HTTP status."
        ),
    )
    total_timeout: float = Field(
        1800.0, gt=0, le=86_400, description="Seconds for a whole response."
    )
    stream_usage: bool = Field(
        default=True,
        description=(
            "Request token usage from workers for text streams if the caller did not, for metrics and the log; the caller "
            "does not see it. Otherwise the node estimates. Workers that reject this are called without it."
        ),
    )
    max_body_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="Largest request body; images need large ones. Larger bodies get 413.",
    )
    max_answer_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024,
        description="Largest response of a worker without streaming; a larger one counts as a failure.",
    )
    max_event_bytes: int = Field(
        4 * 1024 * 1024,
        ge=1024,
        description="Largest single event of a stream whose model name must be rewritten.",
    )
    worker_networks: tuple[str, ...] = Field(
        (),
        description=(
            "Networks besides this machine that may contain workers, such as 192.0.2.7/32; register those workers by IP "
            "address. Empty: none."
        ),
    )
    fetch_images: bool = Field(
        default=False,
        description=(
            "Fetch images that requests name by URL, for workers that accept only files: from the public internet, ports 80 "
            "and 443, at most 20 MiB in 20 s, without redirects. Off: such requests are refused, because callers could make "
            "this machine call others. Workers of the OpenAI protocol fetch images themselves."
        ),
    )
    voice_files: str = Field(
        "",
        description=(
            "Directory of voice files for LocalAI backends: a `voice` may then be a path below it. Empty: a voice is a name "
            "without separators, because backends open existing paths, and callers could probe for files."
        ),
    )
    connections_per_worker: int = Field(
        1024,
        ge=1,
        description="Open connections to one worker or peer; further requests wait for one.",
    )
