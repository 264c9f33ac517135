"""Descriptions of `/api/v0`: the endpoints for model projects and their clients."""

from collections.abc import Mapping

from node.faces.errors import UnknownNode
from node.faces.openapi.description import (
    COUNT,
    FLAG,
    NUMBER_OF,
    OBJECT,
    TEXT,
    WHOLE,
    Allowed,
    OperationDoc,
    Schema,
    done,
    fields,
    list_of,
    one_of,
    with_note,
)
from node.faces.openapi.models import TEXT_OF_WORKER
from node.faces.v0.registration import MAX_CAPACITY
from registry import errors as registry
from registry.records import ModelType
from registry.wire import MAX_CONTEXT
from router.worker_description import MODALITIES
from router.workers import TEMPLATES

_TYPE = with_note(
    {"type": "integer", "enum": [int(one) for one in ModelType]},
    ", ".join(f"{int(one)}: {one.name.lower().replace('_', ' ')}" for one in ModelType),
)
_CAPACITY = with_note({**COUNT, "maximum": MAX_CAPACITY}, "concurrent requests, 0 for unknown")
_MODALITIES = list_of(one_of(*MODALITIES))
_MORE: Mapping[str, Schema] = {
    "type": _TYPE,
    "cid": with_note(TEXT, "id of the replica, if there are several"),
    "dialect": with_note(TEXT, "the worker's protocol (default: by the scheme of `api`)"),
    "worker_model": with_note(TEXT, "the worker's own name for the model, if it differs"),
    "capacity": _CAPACITY,
    "max_concurrency": with_note(_CAPACITY, "another name of the same field"),
    "context": with_note({**COUNT, "maximum": MAX_CONTEXT}, "tokens, 0 for unknown"),
    "input_modalities": _MODALITIES,
    "output_modalities": _MODALITIES,
    "headers": with_note(OBJECT, "sent to the worker with every request"),
    "load": with_note(OBJECT, "options for loading the model"),
    "template": with_note(one_of(*TEMPLATES), "chat template for workers that expect one text"),
}
_MODEL: Mapping[str, Schema] = {
    "model": with_note(TEXT, "name that clients use"),
    "api": with_note(TEXT, "URL of the worker, on this machine"),
}
_LEARNED: Mapping[str, Schema] = {
    "learned": with_note(list_of(OBJECT), "what the workers report about themselves"),
    "warnings": with_note(list_of(TEXT), "workers that do not answer now"),
}
_NODE_ID = with_note(TEXT, "a node's id, the beginning of one, or its name")
_ADDRESS = fields(node_addr=with_note(TEXT, "a multiaddr that ends with `/p2p/` and a peer id"))
_IDENTITY = done(
    peer_id=TEXT,
    protocol_version=TEXT,
    agent_version=TEXT,
    addresses=list_of(TEXT),
    protocols=list_of(TEXT),
)
_METRICS: Mapping[str, Schema] = {"text/plain": TEXT}
_NAMES = done(data=list_of(TEXT))
_SAVED = (registry.LimitReached, registry.StoreUnavailable)
_PEER = fields(
    node_id=TEXT,
    connectivity=with_note(WHOLE, "1 connected, 2 reachable, 3 unreachable, 4 relayed"),
    latency=with_note(COUNT, "microseconds, 0 for unknown"),
    idle=with_note(COUNT, "requests in flight; 0 means idle"),
    Idle=COUNT,
    cid=TEXT,
)
_OWN: Mapping[str, Schema] = {
    "cid": with_note(TEXT, "this replica only"),
    "stream": FLAG,
    "wallet": with_note(TEXT, "not forwarded, like `signature` and `hash`"),
}


def _run(summary: str, needed: Mapping[str, Schema], *, one_node: bool) -> OperationDoc:
    where = "at the named node" if one_node else "at any node"
    node: Mapping[str, Schema] = {"node_id": _NODE_ID} if one_node else {}
    body_schema = fields(_OWN, **node, project=TEXT, model=TEXT, **needed)
    query = {"project": TEXT, "model": TEXT, "cid": TEXT, **({"node_id": TEXT} if one_node else {})}
    return OperationDoc(
        f"{summary} {where}",
        Allowed.ASK,
        runs=True,
        more="The worker receives all other fields unchanged.",
        query={name: with_note(schema, "overrides the body's") for name, schema in query.items()},
        request=body_schema,
        form=body_schema,
        answer=OBJECT,
        content=TEXT_OF_WORKER,
    )


TABLE: Mapping[str, OperationDoc] = {
    "GET /api/v0/id": OperationDoc("Get this node's id", Allowed.LOOK, answer=_IDENTITY),
    "POST /api/v0/peer": OperationDoc(
        "Get another node's id", Allowed.LOOK, request=fields(node_id=_NODE_ID), answer=_IDENTITY, errors=(UnknownNode,)
    ),
    "GET /api/v0/peers": OperationDoc("List the ids of live nodes", Allowed.LOOK, answer=_NAMES),
    "GET /api/v0/rendezvous/peers": OperationDoc("List the ids of the other known nodes", Allowed.LOOK, answer=_NAMES),
    "POST /api/v0/host/info": OperationDoc(
        "Get the hardware of a node's machine", Allowed.LOOK,
        request=fields({"node_id": with_note(_NODE_ID, "default: this node")}),
        answer=done(os=OBJECT, cpu=list_of(OBJECT), memory=OBJECT, disk=list_of(OBJECT), gpu=list_of(OBJECT)),
        errors=(UnknownNode, registry.PeerUnreachable),
    ),
    "GET /api/v0/swarm/peers": OperationDoc(
        "List the connections of this node", Allowed.LOOK,
        answer=list_of(fields(id=TEXT, peer=TEXT, addr=TEXT, latency=TEXT, direction=TEXT)),
    ),
    "GET /api/v0/swarm/addrs": OperationDoc(
        "List the addresses of connected nodes", Allowed.LOOK, answer=list_of(fields(peer=TEXT, addrs=list_of(TEXT)))
    ),
    "GET /api/v0/pubsub/peers": OperationDoc("List the ids of connected nodes", Allowed.LOOK, answer=list_of(TEXT)),
    "POST /api/v0/swarm/connect": OperationDoc(
        "Connect to a node at an address", Allowed.CHANGE, request=_ADDRESS, answer=done(),
        errors=(registry.MeshDown, registry.PeerUnreachable, registry.ProtocolViolation),
    ),
    "POST /api/v0/swarm/disconnect": OperationDoc(
        "Disconnect from a node", Allowed.CHANGE, request=_ADDRESS, answer=done(), errors=(registry.MeshDown,)
    ),
    "GET /api/v0/bootstrap/list": OperationDoc("List the bootstrap addresses", Allowed.LOOK, answer=_NAMES),
    "POST /api/v0/bootstrap/add": OperationDoc("Add a bootstrap address", Allowed.CHANGE, request=_ADDRESS, answer=done()),
    "POST /api/v0/bootstrap/rm": OperationDoc("Remove a bootstrap address", Allowed.CHANGE, request=_ADDRESS, answer=done()),
    "GET /api/v0/debug/metrics/prometheus": OperationDoc(
        "Get the metrics, as at `/metrics`", Allowed.LOOK, content=_METRICS
    ),
    "POST /api/v0/ai/project/register": OperationDoc(
        "Register a project with all its models", Allowed.CHANGE,
        request=fields(project=TEXT, models=list_of(fields(_MORE, **_MODEL))), answer=done(_LEARNED), errors=_SAVED,
    ),
    "POST /api/v0/ai/project/unregister": OperationDoc(
        "Unregister a project", Allowed.CHANGE, request=fields(project=TEXT), answer=done(), errors=_SAVED
    ),
    "POST /api/v0/ai/model/register": OperationDoc(
        "Register one model of a project", Allowed.CHANGE,
        request=fields(_MORE, project=TEXT, **_MODEL), answer=done(_LEARNED), errors=_SAVED,
    ),
    "POST /api/v0/ai/model/unregister": OperationDoc(
        "Unregister one model of a project", Allowed.CHANGE,
        request=fields({"cid": TEXT, "type": _TYPE}, project=TEXT, model=TEXT), answer=done(), errors=_SAVED,
    ),
    "POST /api/v0/ai/project/peer": OperationDoc(
        "List the projects of a node with their models", Allowed.LOOK, request=fields(node_id=_NODE_ID),
        answer=done(data={"type": "object", "additionalProperties": list_of(OBJECT)}), errors=(UnknownNode,),
    ),
    "GET /api/v0/ai/projects/list": OperationDoc(
        "List the projects of the mesh", Allowed.LOOK, query={"number": NUMBER_OF}, answer=_NAMES
    ),
    "GET /api/v0/ai/projects/models": OperationDoc(
        "List the models of a project", Allowed.LOOK,
        query={"number": NUMBER_OF, "project": TEXT}, needs=("project",), answer=_NAMES,
    ),
    "GET /api/v0/ai/projects/peers": OperationDoc(
        "List the nodes that serve a model of a project", Allowed.LOOK,
        query={"number": NUMBER_OF, "project": TEXT, "model": TEXT}, needs=("project", "model"), answer=done(data=list_of(_PEER)),
    ),
    **{
        f"POST /api/v0/{path}{suffix}": _run(what, needed, one_node=not suffix)
        for path, what, needed in (
            ("chat/completion", "Create a chat completion", {"messages": list_of(OBJECT)}),
            ("image/gen", "Create an image", {"prompt": TEXT}),
            ("image/edit", "Edit an image", {"prompt": TEXT}),
        )
        for suffix in ("", "/proxy")
    },
}  # fmt: skip
"""Method and path → description."""
