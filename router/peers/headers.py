"""Names of this program's own HTTP headers: the contract with callers, between nodes, and between a node's processes.

Each name is spelt here and nowhere else; docs/protocol.md takes its tables from here. Little is imported, so that commands can
import this module. Two headers are also read here: the trace context, and the nodes that a request has passed.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from registry.records import PeerId
from router.errors import BadRequest, Looped

# Trace context (W3C, level 1: 3.2 and 3.3): read as strictly as its specification asks, never invented, dropped where invalid. It
# is unchanged where a node sends no traces; where it does, each attempt at a recorded request is the parent of what it asks for.
PARENT = "traceparent"
STATE = "tracestate"

MAX_STATE_CHARACTERS = 512
"""Length of a state that must be passed on; a longer one is dropped, as the specification allows."""

MAX_STATE_MEMBERS = 32

# Version, trace id, the caller's span, flags; later versions may add more.
_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]*)?"
)
_LONGEST_PARENT = 256
_KEY = r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(rf"{_KEY}={_VALUE}")


def trace_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the trace headers that travel on with a request, by lower-case name; none if its parent is invalid."""
    parent = headers.get(PARENT)
    if parent is None or not is_parent(parent):
        return {}
    state = headers.get(STATE)
    if state is None or not is_state(state):
        return {PARENT: parent}
    return {PARENT: parent, STATE: state}


def is_parent(text: str) -> bool:
    """Return whether a text names a trace and a span in it."""
    match = _PARENT.fullmatch(text) if len(text) <= _LONGEST_PARENT else None
    # Version 00 has nothing after its flags.
    return match is not None and not (text.startswith("00") and match[1])


def is_state(text: str) -> bool:
    """Return whether a text is a list of tracing systems' entries, each under a key of its own."""
    if len(text) > MAX_STATE_CHARACTERS:
        return False
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    well_formed = all(_MEMBER.fullmatch(member) for member in members)
    return well_formed and 0 < len(members) == len(keys) <= MAX_STATE_MEMBERS


# The nodes that a request has passed, since a node may be a worker of another node. The header is believed from every sender:
# a forged one only causes the sender's own request to be refused.
MOST_NODES = 5
"""Nodes that a request may pass; one that has passed so many is refused as if it had looped."""

_NODE = re.compile(r"[0-9A-Za-z]{1,64}")
_LONGEST_VIA = 1024


def extended_via(header: str, own: PeerId) -> str:
    """Return the header as it leaves this node; raise `Looped`, or `BadRequest` if it names no nodes."""
    if not header:
        return own
    nodes = [node.strip(" \t") for node in header.split(",")] if len(header) <= _LONGEST_VIA else []
    if not nodes or not all(map(_NODE.fullmatch, nodes)):
        raise BadRequest(f"{VIA} names the nodes that a request has passed, between commas")
    if own in nodes:
        raise Looped("the request returned to a node that it had passed")
    if len(nodes) >= MOST_NODES:
        raise Looped(f"the request has passed {MOST_NODES} nodes, and no worker answered")
    return ", ".join((*nodes, own))


PREFIX = "x-modelvine-"
"""Beginning of all these names; an operator cannot have headers with it sent to workers."""

PROJECT = "x-modelvine-project"
CID = "x-modelvine-cid"
NODE = "x-modelvine-node"
SESSION = "x-modelvine-session"
CONTINUE = "x-modelvine-continue"
PRIORITY = "x-modelvine-priority"
AIM = "x-modelvine-ttft-ms"
ROUTE = "x-modelvine-route"
ATTEMPTS = "x-modelvine-attempts"
DROPPED = "x-modelvine-dropped-params"
HEARD = "x-modelvine-heard-params"
HOP = "x-modelvine-hop"
WAIT = "x-modelvine-wait"
PATIENCE = "x-modelvine-patience"
VIA = "x-modelvine-via"
VERBATIM = "x-modelvine-verbatim"
LOAD = "x-modelvine-load"
SERVICE_TIME = "x-modelvine-service-time"
TARGET = "x-modelvine-target"
MODEL = "x-modelvine-model"
USAGE = "x-modelvine-usage"
CALLER = "x-modelvine-caller"
GRANT = "x-modelvine-grant"

BACKGROUND = "background"
"""The value of `PRIORITY` for requests that nobody waits for."""

READY = "ready"
"""The value of `WAIT` with which a request may also wait until a worker is ready, or a 503 says that one may be soon."""

CALLER_REQUEST_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        PROJECT: "use this project only; overrides the body's `project`",
        CID: "use this replica only",
        NODE: "use this node only: its id, the beginning of its id, or its name",
        SESSION: "name of the conversation, if its first messages do not identify it; the policy `session` "
        "keeps it at one machine",
        AIM: "target time to the first byte in milliseconds: replicas that would miss it are tried last",
        PRIORITY: "`background`: runs after all other requests; for 10 s after one of those, a slot of the worker stays free "
        "for the next",
        CONTINUE: "`1`: if a worker dies in the middle of a text stream, another continues it; `0`: none does. Overrides "
        "`router.continue_streams`",
    }
)
"""Headers of requests, and what each asks for."""

CALLER_ANSWER_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        NODE: "the id of the node whose worker answered",
        ROUTE: "the route: `local`, `direct` or `relay`",
        ATTEMPTS: "number of workers tried: 1 if the first answered",
        DROPPED: "parameters without effect, because the worker's protocol does not support them",
    }
)
"""Headers of answers, and what each says."""

NODE_REQUEST_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        HOP: "the calling peer's id, equal to its certificate's. The receiving node uses its own workers only: there is no "
        "second hop",
        PROJECT: "the project of the model",
        CID: "the replica; if it has several types, the kind of the request decides",
        PRIORITY: "as its caller sent it",
        WAIT: "`1` if the caller knows no other replica: the request may queue for a slot, and the node waits for a worker that "
        f"is silent while it works. Without it, a full node answers 429 at once. `{READY}`: it may wait for a worker to be ready",
        PATIENCE: "seconds, if the caller knows other replicas: the request may queue if a slot is expected within this time, "
        "because it then ends sooner than elsewhere. Decimal digits, with at most three after the point",
        VIA: "the ids of the nodes that the request has passed, in order, separated by commas, at most five. A node that finds "
        "its own id answers 508",
        VERBATIM: "the caller's original request follows OpenAI's body: `PROTOCOL CALL BYTES` and, after one more space, the "
        "parameter that needs it. `PROTOCOL` is `tgi_http`, `llama_stack_http`, `localai_grpc` or `remotellm_grpc`, `CALL` a "
        "path or RPC of it, `BYTES` its length. It is sent only if the replica's `abilities` accept it; a node ignores an "
        "unknown protocol, but answers 400 if a parameter needs it",
        TARGET: "of a service: the request's method and path with query; the body is unchanged",
        USAGE: "`1`: the stream must report its usage in an event before its end; the calling node removes it",
        MODEL: "of a service: the name of its registration",
        GRANT: "the calling node's grant, sealed for it (section 9), if it has one; a node that requires one answers 403 "
        "without it",
    }
)
"""Headers of requests from node to node, and what each says."""

NODE_ANSWER_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        LOAD: "load of the answering worker",
        SERVICE_TIME: "service time of such requests once they have a slot: `fixed` seconds, plus `kilobyte` for each KB of the "
        "request and `token` for each token of the response, of which there are `tokens` on average; for the first byte of a "
        "stream, `first` and `first_kilobyte`. Concurrency multiplies it by `concurrency ** sharing`. "
        "The cache loses half of its content in `holds` seconds. "
        "`error` is the recent mean of |ln(seconds ÷ expected)|, "
        "`answers` the number of responses it was learnt from",
        VERBATIM: "the protocol of the response body",
        HEARD: "parameters that the worker received and that OpenAI's API does not have",
        WAIT: f"`{READY}`, with a 503: the worker may be back in a moment",
    }
)
"""Headers of answers from node to node, and what each says. No caller sees them."""
