"""What an operator may set about answering requests, with units and trade-offs. Nothing is read from outside here."""

from pydantic import BaseModel, ConfigDict, Field


class RouterSettings(BaseModel):
    """Whom to try, how long to wait, and how much to take in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str = Field(
        "p2c", description="How candidates are ordered: the name of a module in `router/policies`."
    )
    attempts: int = Field(
        3,
        ge=1,
        le=10,
        description="Workers tried at most for one request, before its first byte. More hide more failures and cost time.",
    )
    hedge: bool = Field(
        default=False,
        description="Ask a second, idle worker when the first takes longer than 19 of 20 answers did, and cancel the slower: "
        "short answers in one piece only. Cuts the slowest answers; costs work that is thrown away, within `retry_share`.",
    )
    retry_share: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Second attempts may be this share of the requests of the last 10 s, and 30 in any case; beyond it a caller "
        "gets the first error. More hide more failures, and cost the other workers more when many fail.",
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
        description="Seconds that a request may wait while nobody who serves its model is ready (lost, restarting, loading); "
        "then 503. 0 answers at once. Longer hides longer restarts, and tells callers later that nobody comes.",
    )
    connect_timeout: float = Field(
        2.0,
        gt=0,
        le=60,
        description="Seconds to reach a worker or peer. Short: another may answer.",
    )
    first_byte_timeout: float = Field(
        120.0,
        gt=0,
        le=3600,
        description="Seconds until the first byte of an answer; a long prompt on a slow GPU needs many.",
    )
    idle_timeout: float = Field(
        60.0, gt=0, le=3600, description="Seconds between two bytes of an answer that has begun."
    )
    stall_timeout: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="Seconds that a caller may leave what was sent to it unread; then it is cut off and its worker free.",
    )
    continue_streams: bool = Field(
        default=True,
        description="Whether another worker goes on with a stream of plain text whose worker died in the middle; a request's "
        "header `x-modelvine-continue` (`0` or `1`) counts before it. Where a text must come from one worker, turn it off.",
    )
    keep_alive: float = Field(
        20.0,
        ge=0,
        le=3600,
        description="Seconds of silence after which a caller that waits for a text stream is sent a comment, and again after "
        "each such time; 0: never. Shorter than any proxy's patience, of which 30 s is the shortest that is common; but no "
        "shorter than it must be, for after the first comment a failure is an event of the stream, no status.",
    )
    total_timeout: float = Field(1800.0, gt=0, le=86_400, description="Seconds for a whole answer.")
    stream_usage: bool = Field(
        default=True,
        description="Ask workers how many tokens a text stream took where its caller did not, for the metrics and the log; "
        "the caller does not see that answer. Without it such tokens are estimated. Workers that refuse the question are "
        "asked without it by themselves.",
    )
    max_body_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="Largest request body; images need many. Larger ones get 413.",
    )
    max_answer_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024,
        description="Largest answer of a worker that is not a stream; a larger one is a failed worker.",
    )
    max_event_bytes: int = Field(
        4 * 1024 * 1024,
        ge=1024,
        description="Largest single event of a stream whose model name must be rewritten.",
    )
    worker_networks: tuple[str, ...] = Field(
        (),
        description="Networks besides this machine where workers may be, like 192.0.2.7/32, named by address. Closed by default.",
    )
    fetch_images: bool = Field(
        default=False,
        description="Fetch images that are named by their address, for workers whose protocol takes files only: from the "
        "public web, ports 80 and 443, at most 20 MiB in 20 s, following no redirect. Off, such requests are refused there: "
        "whoever may ask a model could else have this machine ask others. Workers of the OpenAI protocol fetch by themselves.",
    )
    voice_files: str = Field(
        "",
        description="Directory of voice files for LocalAI backends: a `voice` may then be a path under it. Empty, a voice is a "
        "name without separators, for backends open a path that exists, and whoever may ask could learn which files there are.",
    )
    connections_per_worker: int = Field(
        1024,
        ge=1,
        description="Open connections to one worker or peer; more requests wait for one.",
    )
