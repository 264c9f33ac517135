"""Names of this program's own HTTP headers: the contract with callers, between nodes, and between a node's processes.

Each is spelt here and nowhere else; docs/protocol.md takes its tables from here. Nothing is imported, so that commands may.

Trace context of a request, as the W3C has it: read as strictly as its specification asks, and never made up.

A valid `traceparent` travels on over every hop, an invalid one is dropped with its state. It is unchanged where a node sends no
traces; where it does, each attempt at a request that is recorded is a span, and travels on as the parent of what it asks for.
W3C Trace Context, level 1: 3.2 `traceparent`, 3.3 `tracestate`.

Nodes that a request has passed, and the check for a loop: a node may be a worker of another's, so it can.

The header is believed of everybody: who makes one up has its own request refused, and nothing else.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from registry.records import PeerId
from router.errors import BadRequest, Looped

PARENT = "traceparent"
STATE = "tracestate"

MAX_STATE_CHARACTERS = 512
"""What must be passed on of a state; a longer one is dropped, as the specification allows."""

MAX_STATE_MEMBERS = 32

# Version, trace id, the caller's span, flags; later versions may say more after that.
_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]*)?"
)
_LONGEST_PARENT = 256
_KEY = r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(rf"{_KEY}={_VALUE}")


def trace_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the trace headers that travel on with a request, by lower-case name; none where its parent is not valid."""
    parent = headers.get(PARENT)
    if parent is None or not is_parent(parent):
        return {}
    state = headers.get(STATE)
    if state is None or not is_state(state):
        return {PARENT: parent}
    return {PARENT: parent, STATE: state}


def is_parent(text: str) -> bool:
    """Whether this names a trace and a span in it."""
    found = _PARENT.fullmatch(text) if len(text) <= _LONGEST_PARENT else None
    # Version 00 has nothing after its flags.
    return found is not None and not (text.startswith("00") and found[1])


def is_state(text: str) -> bool:
    """Whether this is a list of what tracing systems noted, each under a key of its own."""
    if len(text) > MAX_STATE_CHARACTERS:
        return False
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    well_formed = all(_MEMBER.fullmatch(member) for member in members)
    return well_formed and 0 < len(members) == len(keys) <= MAX_STATE_MEMBERS


MOST_NODES = 5
"""Nodes that a request may pass; one that has passed so many is refused as if it had come round."""

_NODE = re.compile(r"[0-9A-Za-z]{1,64}")
_LONGEST = 1024


def via_onward(said: str, own: PeerId) -> str:
    """Return the header as it leaves this node; raise `Looped`, or `BadRequest` for what names no nodes."""
    if not said:
        return own
    nodes = [node.strip(" \t") for node in said.split(",")] if len(said) <= _LONGEST else []
    if not nodes or not all(map(_NODE.fullmatch, nodes)):
        raise BadRequest(f"{VIA} names the nodes that a request has passed, between commas")
    if own in nodes:
        raise Looped("the request has come round to a node that it had passed")
    if len(nodes) >= MOST_NODES:
        raise Looped(f"the request has passed {MOST_NODES} nodes, and no worker answered")
    return ", ".join((*nodes, own))


PREFIX = "x-modelvine-"
"""How they all begin; no operator can have others sent to workers."""

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
"""The value of `PRIORITY` of what nobody waits for."""

READY = "ready"
"""The value of `WAIT` by which a request may also wait until a worker is ready, and by which a 503 says that one may be soon."""

SAID_BY_CALLERS: Mapping[str, str] = MappingProxyType(
    {
        PROJECT: "ask this project only; it counts before the body's `project`",
        CID: "ask this replica only",
        NODE: "ask this node only: its id, the beginning of one, or its name",
        SESSION: "what the conversation is called, where its first words do not tell; `router.policy` `session` keeps it at "
        "one machine",
        AIM: "milliseconds within which the first byte is wanted: who will not make it is tried after who will",
        PRIORITY: "`background`: every other request comes first, and where somebody asked lately, one slot stays free for them",
        CONTINUE: "`0`: where a worker dies in the middle of a text stream, no other goes on; `1`: one does, whatever the node's "
        "`router.continue_streams` says",
    }
)
"""Of requests: what each asks for."""

TOLD_TO_CALLERS: Mapping[str, str] = MappingProxyType(
    {
        NODE: "the id of the node whose worker answered",
        ROUTE: "how it came: `local`, `direct` or `relay`",
        ATTEMPTS: "workers that were tried, 1 when the first answered",
        DROPPED: "parameters that had no effect, because the worker's protocol has no word for them",
    }
)
"""Of answers: what each says."""

SAID_BY_NODES: Mapping[str, str] = MappingProxyType(
    {
        HOP: "the asking peer's id, equal to its certificate's. Whoever gets it offers its own workers only: there is no "
        "second hop",
        PROJECT: "the project that is meant",
        CID: "its replica; where that has several types, the kind of the request chooses",
        PRIORITY: "as its caller sent it",
        WAIT: "`1` when the asker knows nobody else to ask: the request may queue for a slot, and a worker that answers nothing "
        f"while it works is waited for. Without it a full node answers 429 at once. `{READY}`: it may wait for one to be ready",
        PATIENCE: "seconds, where the asker knows others: the request may queue if a slot is to be expected within them, "
        "because then it is done sooner than elsewhere. Decimal digits, with at most three after the point",
        VIA: "the ids of the nodes that the request has passed, in order, between commas, at most five. Whoever finds itself "
        "among them answers 508",
        VERBATIM: "the caller's own words follow OpenAI's body: `PROTOCOL CALL BYTES` and, after one more blank, the parameter "
        "that needs them. `PROTOCOL` is `tgi_http`, `llama_stack_http`, `localai_grpc` or `remotellm_grpc`, `CALL` a path or an "
        "RPC of it, `BYTES` how many of them there are. It is sent only where the replica's `abilities` say that they are taken; "
        "a protocol that is not known is passed over, but for a 400 where something needs it",
        TARGET: "of a service: the method and the path, with its query, that it is asked with, and the body is as it came",
        USAGE: "`1`: the stream shall say what it took, in an event of usage before its end; the asker takes it out",
        MODEL: "of a service: the name that it was registered by",
        GRANT: "the asker's grant, sealed for it (section 9), where it has one; who wants one answers 403 without it",
    }
)
"""Of requests from node to node: what each says."""

TOLD_TO_NODES: Mapping[str, str] = MappingProxyType(
    {
        LOAD: "how busy the worker is that answers",
        SERVICE_TIME: "how long its answers to such requests take once they have a slot: `fixed` seconds, more for each "
        "`kilobyte` of the request and each `token` of the answer, of which there are `tokens` on average; the first byte of a "
        "stream `first` and `first_kilobyte`; `concurrency ** sharing` times as long beside others. "
        "Half of what it has read is gone from its cache after `holds` seconds. "
        "`error` is the mean of |ln(seconds ÷ expected)| of the last, "
        "`answers` how many it was learnt from",
        VERBATIM: "the protocol in whose words the answer is",
        HEARD: "parameters that the worker heard, for which OpenAI's form has no word",
        WAIT: f"`{READY}`, beside a 503: whoever is not there may be back in a moment",
    }
)
"""Of answers from node to node: what each says. No caller sees them."""
