"""Names of this program's own HTTP headers: the contract with callers, between nodes, and between a node's processes.

Each is spelt here and nowhere else; docs/protocol.md takes its tables from here. Nothing is imported, so that commands may.
"""

from collections.abc import Mapping
from types import MappingProxyType

PREFIX = "x-modelvine-"
"""How they all begin; no operator can have others sent to workers."""

PROJECT = "x-modelvine-project"
CID = "x-modelvine-cid"
NODE = "x-modelvine-node"
SESSION = "x-modelvine-session"
CONTINUE = "x-modelvine-continue"
ROUTE = "x-modelvine-route"
ATTEMPTS = "x-modelvine-attempts"
DROPPED = "x-modelvine-dropped-params"
HEARD = "x-modelvine-heard-params"
HOP = "x-modelvine-hop"
WAIT = "x-modelvine-wait"
VIA = "x-modelvine-via"
VERBATIM = "x-modelvine-verbatim"
LOAD = "x-modelvine-load"
CALLER = "x-modelvine-caller"

READY = "ready"
"""The value of `WAIT` by which a request may also wait until a worker is ready, and by which a 503 says that one may be soon."""

SAID_BY_CALLERS: Mapping[str, str] = MappingProxyType(
    {
        PROJECT: "ask this project only; it counts before the body's `project`",
        CID: "ask this replica only",
        NODE: "ask this node only: its id, the beginning of one, or its name",
        SESSION: "what the conversation is called, so that `router.policy` `session` sends it where it was before",
        CONTINUE: "`1`: where a worker dies in the middle of a text stream, another goes on",
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
        WAIT: "`1` when the asker knows nobody else to ask: the request may queue for a slot, and a worker that answers nothing "
        f"while it works is waited for. Without it a full node answers 429 at once. `{READY}`: it may wait for one to be ready",
        VIA: "the ids of the nodes that the request has passed, in order, between commas, at most five. Whoever finds itself "
        "among them answers 508",
        VERBATIM: "the caller's own words follow OpenAI's body: `PROTOCOL CALL BYTES` and, after one more blank, the parameter "
        "that needs them. `PROTOCOL` is `tgi_http`, `llama_stack_http`, `localai_grpc` or `remotellm_grpc`, `CALL` a path or an "
        "RPC of it, `BYTES` how many of them there are. It is sent only where the replica's `abilities` say that they are taken; "
        "a protocol that is not known is passed over, but for a 400 where something needs it",
    }
)
"""Of requests from node to node: what each says."""

TOLD_TO_NODES: Mapping[str, str] = MappingProxyType(
    {
        LOAD: "how busy the worker is that answers",
        VERBATIM: "the protocol in whose words the answer is",
        HEARD: "parameters that the worker heard, for which OpenAI's form has no word",
        WAIT: f"`{READY}`, beside a 503: whoever is not there may be back in a moment",
    }
)
"""Of answers from node to node: what each says. No caller sees them."""
