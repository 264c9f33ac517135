"""Names of OpenTelemetry's semantic conventions, version 1.41.1, and the program's own names where those have none.

All names of spans, metrics and their attributes are defined here and nowhere else, as are the metrics' units and bounds: moving
to a later version of the conventions is an edit of this file. 1.41.1 is the last version that has the conventions of generative
AI ("GenAI") in the semantic conventions themselves; their status there is "development".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from router.requests import Kind

VERSION = "1.41.1"
"""Version of the conventions that these names belong to."""

SCHEMA = f"https://opentelemetry.io/schemas/{VERSION}"

# gen_ai.*: the request to a model, and its cost.
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
STREAM = "gen_ai.request.stream"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
"""Seconds."""

SORT_OF_TOKENS = "gen_ai.token.type"
INPUT, OUTPUT = "input", "output"

# Attributes of all spans of servers and clients.
STATUS = "http.response.status_code"
ERROR = "error.type"
SERVER = "server.address"
PORT = "server.port"

# Attributes of the process that sends them.
SERVICE = "service.name"
INSTANCE = "service.instance.id"
SERVICE_VERSION = "service.version"

# Attributes of a mesh of nodes, which the conventions do not cover.
REQUEST_ID = "modelvine.request.id"
NODE = "modelvine.node.id"
ROUTE = "modelvine.route"
ATTEMPTS = "modelvine.attempts"
ATTEMPT = "modelvine.attempt.number"
OUTCOME = "modelvine.attempt.outcome"
CANDIDATES = "modelvine.choice.candidates"
EXPECTED = "modelvine.choice.expected_seconds"
DIALECT = "modelvine.dialect"
FIRST_BYTE = "modelvine.first_byte"
"""Name of an event."""

# Metrics. Prometheus' names add the unit, and have underscores for dots.
REQUEST_DURATION = "gen_ai.server.request.duration"
FIRST_BYTE_TIME = "gen_ai.server.time_to_first_token"
TIME_PER_OUTPUT = "gen_ai.server.time_per_output_token"
TOKENS_USED = "gen_ai.client.token.usage"

OWN_PROVIDER = "modelvine"
"""The provider: the conventions name companies, and have no name for the engine that a model runs in."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """Histogram of the conventions: its unit, its description, and the bucket bounds that they advise."""

    unit: str
    text: str
    bounds: tuple[float, ...]


INSTRUMENTS: Mapping[str, Instrument] = MappingProxyType(
    {
        REQUEST_DURATION: Instrument(
            "s",
            "Seconds from a request's arrival to its last byte.",
            (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
        ),
        FIRST_BYTE_TIME: Instrument(
            "s",
            "Seconds from a request's arrival to the first byte of a stream of text.",
            (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
        ),
        TIME_PER_OUTPUT: Instrument(
            "s",
            "Seconds of a stream of text after its first byte, for each token after the first.",
            (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
        ),
        TOKENS_USED: Instrument(
            "{token}",
            "Tokens that a worker of this machine read or wrote for a request.",
            tuple(4**power for power in range(14)),
        ),
    }
)  # fmt: skip

_OPERATIONS: Mapping[Kind, str] = MappingProxyType(
    {Kind.CHAT: "chat", Kind.COMPLETION: "text_completion", Kind.EMBEDDING: "embeddings"}
)


def as_prometheus(name: str, unit: str = "") -> str:
    """Return a name of the conventions in Prometheus' form."""
    return "_".join(filter(None, (name.replace(".", "_"), unit)))


def operation_of(kind: Kind) -> str:
    """Return the operation of a kind of request: the conventions' word, or the path where they have none."""
    return _OPERATIONS.get(kind, kind.value)
