"""Descriptions of `/api/v1`, of health and metrics, and of the pages: the endpoints for operators and their programs."""

from collections.abc import Mapping

from node.auth import errors as auth
from node.faces.errors import NotAllowed, TooManyConnections, UnknownNode, UnknownRequest
from node.faces.openapi.description import (
    COUNT,
    EVENTS,
    FLAG,
    NUMBER,
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
    or_null,
    with_note,
)
from node.faces.v1 import keys, logs, usage
from registry import errors as registry
from router import errors as router
from router.requests import MODEL_KINDS

_UNIX = with_note(NUMBER, "Unix time")
_SECONDS = with_note(NUMBER, "seconds")
_SHOWN_KEY = fields(
    name=TEXT,
    state=with_note(TEXT, "`active`, or the reason why not"),
    role=TEXT,
    models=list_of(TEXT),
    expires=with_note(NUMBER, "Unix time, 0 for never"),
    created=_UNIX,
    revoked=with_note(NUMBER, "Unix time, 0 for never"),
    hint=with_note(TEXT, "its last characters"),
)
_NEW_KEY = fields(name=TEXT, key=with_note(TEXT, "the key; no other response contains it"))
_FAILED_ATTEMPT = fields(
    request=TEXT, at=_UNIX, node=TEXT, model=TEXT, cid=TEXT, error=TEXT, why=TEXT, seconds=_SECONDS
)
_CONSIDERED = fields(
    node=TEXT,
    project=TEXT,
    cid=TEXT,
    expected=with_note(NUMBER, "estimated requests at the replica"),
    slots=with_note(COUNT, "0 if unknown"),
    cached=with_note(NUMBER, "estimated kilobytes of the request in its cache"),
    doubts=list_of(TEXT),
)
_LEFT_OUT = fields(
    node=TEXT,
    project=TEXT,
    model=TEXT,
    cid=TEXT,
    reason=TEXT,
    retry_in=with_note(NUMBER, "seconds until it could have answered, 0 if unknown"),
)
_REQUEST = fields(
    {"key": with_note(TEXT, "the key's name, for operators"), "first": or_null(_SECONDS)},
    project=TEXT,
    cid=TEXT,
    considered=with_note(list_of(_CONSIDERED), "the candidates, in order"),
    excluded=with_note(
        list_of(_LEFT_OUT), "the excluded replicas at that time; at most 12 for each model"
    ),
    id=TEXT,
    at=_UNIX,
    kind=TEXT,
    model=TEXT,
    node=with_note(TEXT, "id of the node whose worker answers"),
    route=TEXT,
    attempts=COUNT,
    status=with_note(WHOLE, "HTTP status, 0 while in flight"),
    seconds=_SECONDS,
    taken=with_note(COUNT, "bytes"),
    sent=with_note(COUNT, "bytes"),
    tokens=or_null(fields(prompt=COUNT, completion=COUNT, cached=COUNT, estimated=FLAG)),
    for_node=with_note(FLAG, "whether another node forwarded it"),
    failure=TEXT,
    failed=list_of(_FAILED_ATTEMPT),
)
_NODE_EVENT = fields(at=_UNIX, node=TEXT, name=TEXT, was=TEXT, now=TEXT, why=TEXT)
_CONTACTS = fields(summary=TEXT, addresses=list_of(OBJECT))
_NODE = fields(
    node=with_note(TEXT, "its id"),
    name=TEXT,
    state=with_note(TEXT, "alive, unreachable, suspect, draining, lost or left"),
    standing=TEXT,
    since=with_note(NUMBER, "seconds since this state began"),
    why=TEXT,
    last_heard=with_note(NUMBER, "seconds ago"),
    round_trip=_SECONDS,
    connection=one_of("self", "none", "relayed", "direct"),
    origin=TEXT,
    addresses=list_of(TEXT),
    links=list_of(TEXT),
    models=COUNT,
    load=list_of(OBJECT),
    agent=TEXT,
    self=FLAG,
)
_RELAYED = with_note(FLAG, "through a relay only")
_PARTS = with_note(
    {"type": "object", "additionalProperties": TEXT},
    "for each part `ok`, or the problem",
)
_CANDIDATE = {
    "node": TEXT,
    "name": TEXT,
    "project": TEXT,
    "model": TEXT,
    "cid": TEXT,
    "type": WHOLE,
    "context": or_null(COUNT),
    "route": one_of("local", "direct", "relay"),
    "in_flight": COUNT,
    "load": or_null(OBJECT),
    "circuit": OBJECT,
}
_EXPLANATION = fields(
    model=TEXT,
    fallbacks=list_of(TEXT),
    policy=TEXT,
    candidates=list_of(
        fields(**_CANDIDATE, score=NUMBER, figures=OBJECT, chosen=FLAG, why=TEXT),
    ),
    excluded=list_of(fields(**_CANDIDATE, reason=TEXT, retry_in=_SECONDS)),
)
_KIND = with_note(one_of(*MODEL_KINDS), "type of the model")
_DAY = with_note(TEXT, "a day (UTC) like 2026-11-25")
_USAGE = fields(
    dict.fromkeys(usage.BY, TEXT),
    requests=COUNT,
    failed=COUNT,
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    cached_tokens=COUNT,
    estimated=with_note(COUNT, "responses without a token count"),
    seconds=_SECONDS,
    first_seconds=_SECONDS,
    cost=NUMBER,
)
_METRICS: Mapping[str, Schema] = {"text/plain": TEXT}
_DRAINED = done(standing=TEXT)

TABLE: Mapping[str, OperationDoc] = {
    "GET /healthz": OperationDoc(
        "Check whether this process works", Allowed.EVERYBODY, answer=fields(status={"const": "ok"})
    ),
    "GET /readyz": OperationDoc(
        "Check whether this node is ready, and which parts are degraded",
        Allowed.EVERYBODY,
        more="Also 200 if `degraded`: a node with a broken mesh or store still serves.",
        answer=fields(status=one_of("ok", "degraded"), parts=_PARTS),
    ),
    "GET /metrics": OperationDoc("Get the metrics, for Prometheus", Allowed.LOOK, content=_METRICS),
    "GET /openapi.json": OperationDoc(
        "Show this document", Allowed.EVERYBODY, answer=fields(openapi=TEXT, paths=OBJECT)
    ),
    "GET /docs": OperationDoc(
        "Show this document as a page", Allowed.EVERYBODY, content={"text/html": TEXT}
    ),
    "GET /api/v1/status": OperationDoc(
        "Get the state of this node", Allowed.LOOK,
        answer=fields(
            peer=TEXT, name=TEXT, version=TEXT, uptime=_SECONDS, http=TEXT, p2p=list_of(TEXT), link=TEXT, standing=TEXT,
            ready=_PARTS, models=COUNT, bootstrap=_CONTACTS, nodes_alive=COUNT, in_flight=COUNT, processes=COUNT,
            load=list_of(OBJECT), workers=list_of(OBJECT), digest=TEXT, store=TEXT, profile=TEXT,
        ),
    ),
    "GET /api/v1/catalog": OperationDoc(
        "Get the records of all live nodes", Allowed.LOOK,
        query={"digest": with_note(TEXT, "`1`: only the digest; equal digests mean equal registries")},
        answer=fields({"nodes": list_of(OBJECT)}, digest=TEXT, records=COUNT),
    ),
    "GET /api/v1/nodes": OperationDoc(
        "List the nodes, and this node's connection to each", Allowed.LOOK,
        answer=fields(
            nodes=list_of(_NODE),
            bootstrap=_CONTACTS,
            handshakes_failed=with_note(COUNT, "incoming connections whose handshake failed since the start"),
        ),
    ),
    "GET /api/v1/connections": OperationDoc(
        "List the nodes that this node is connected to", Allowed.LOOK,
        answer=fields(connections=list_of(fields(node=TEXT, relayed=_RELAYED))),
    ),
    "GET /api/v1/topology": OperationDoc(
        "Get the connections between all nodes, as they report them", Allowed.LOOK,
        answer=done(
            links=list_of(fields(one=TEXT, other=TEXT, relayed=_RELAYED)),
            told=with_note(list_of(TEXT), "the nodes that reported; above fifty nodes only this one"),
        ),
    ),
    "POST /api/v1/drain": OperationDoc(
        "Drain this node: its models take no new requests", Allowed.CHANGE, answer=_DRAINED
    ),
    "POST /api/v1/undrain": OperationDoc(
        "Return this node to service", Allowed.CHANGE, answer=_DRAINED
    ),
    "GET /api/v1/route": OperationDoc(
        "Explain the route of a request for a model; nothing is sent", Allowed.LOOK,
        query={
            "model": with_note(TEXT, "`MODEL` or `PROJECT/MODEL`"), "project": TEXT, "cid": with_note(TEXT, "a replica"),
            "node": with_note(TEXT, "a node's id, the beginning of one, or its name"), "kind": _KIND,
        },
        needs=("model",), answer=_EXPLANATION, errors=(router.UnknownModel, UnknownNode),
    ),
    "POST /api/v1/route": OperationDoc(
        "Explain the route of this request; nothing is sent or stored", Allowed.LOOK,
        query={"kind": _KIND}, request=with_note(OBJECT, "the request, as for `/v1`"), answer=_EXPLANATION,
        errors=(router.UnknownModel, UnknownNode, router.Looped),
    ),
    "POST /api/v1/recognise": OperationDoc(
        "Detect the protocol and models of a worker on this machine; nothing is registered", Allowed.CHANGE,
        request=fields({"dialect": TEXT, "headers": OBJECT}, api=with_note(TEXT, "where it listens")),
        answer=done({"busy": FLAG}, tries=list_of(OBJECT), found=or_null(OBJECT)),
    ),
    "GET /api/v1/me": OperationDoc(
        "Get the caller's role and rights", Allowed.KEY,
        answer=done(
            name=TEXT, role=TEXT, may=fields(ask=FLAG, look=FLAG, change=FLAG), node=TEXT, node_name=TEXT, version=TEXT
        ),
    ),
    "GET /api/v1/requests": OperationDoc(
        "List requests in flight and recent ones, without their content", Allowed.LOOK,
        query={"number": NUMBER_OF},
        answer=done(count=COUNT, processes=COUNT, under_way=list_of(_REQUEST), ended=list_of(_REQUEST)),
    ),
    "POST /api/v1/requests/{id}/cancel": OperationDoc(
        "Cancel a request: its callers are disconnected", Allowed.CHANGE, answer=done(cut=COUNT), errors=(UnknownRequest,)
    ),
    "GET /api/v1/history": OperationDoc(
        "Get figures of the last hour, by model and node", Allowed.LOOK,
        query={"model": with_note(TEXT, "only this model, with its buckets")},
        answer=done(bucket=_SECONDS, until=_UNIX, history=list_of(OBJECT)),
    ),
    "GET /api/v1/node-events": OperationDoc(
        "List recent changes of nodes", Allowed.LOOK, answer=done(count=COUNT, events=list_of(_NODE_EVENT))
    ),
    "GET /api/v1/events": OperationDoc(
        "Stream nodes, events and requests: one event a second, until the caller disconnects", Allowed.LOOK,
        content={"text/event-stream": EVENTS}, errors=(TooManyConnections,),
    ),
    "GET /api/v1/keys": OperationDoc("List the keys of users", Allowed.CHANGE, answer=done(keys=list_of(_SHOWN_KEY))),
    "POST /api/v1/keys": OperationDoc(
        "Create keys, all or none", Allowed.CHANGE,
        request=keys.KeyCreation, answer=done(keys=list_of(_NEW_KEY)), errors=(auth.KeyExists,),
    ),
    "POST /api/v1/keys/{name}/rotate": OperationDoc(
        "Replace a key", Allowed.CHANGE, answer=done(keys=list_of(_NEW_KEY)),
        errors=(auth.NoSuchKey, auth.KeyExists),
    ),
    "POST /api/v1/keys/{name}/revoke": OperationDoc(
        "Revoke a key", Allowed.CHANGE, answer=done(), errors=(auth.NoSuchKey,)
    ),
    "POST /api/v1/grants": OperationDoc(
        "Create an invitation for a user or a node", Allowed.CHANGE,
        request=keys.WantedGrant, errors=(auth.KeyExists,),
        answer=done(
            name=TEXT, expires=_UNIX, invitation=with_note(TEXT, "the invitation; no other response contains it"),
            warnings=list_of(TEXT),
        ),
    ),
    "GET /api/v1/usage": OperationDoc(
        "Get the usage of keys; users see their own", Allowed.KEY,
        query={
            "since": with_note(_DAY, "the first day (default: a week ago)"),
            "until": with_note(_DAY, "the last day (default: today)"),
            "key": with_note(TEXT, "only this key"),
            "by": with_note(TEXT, f"which of {', '.join(usage.BY)}, separated by commas"),
            "format": with_note(one_of("json", "csv"), "format of the response"),
        },
        answer=done(since=_DAY, until=_DAY, usage=list_of(_USAGE)), content={"text/csv": TEXT},
        errors=(NotAllowed, registry.StoreUnavailable),
    ),
    "GET /api/v1/audit": OperationDoc(
        "Get the audit log", Allowed.CHANGE, query={"number": NUMBER_OF},
        answer=done(
            faults=with_note(list_of(TEXT), "errors in the chain of entries"),
            audit=list_of(
                fields(node=TEXT, number=COUNT, at=_UNIX, who=TEXT, action=TEXT, target=TEXT, before=TEXT, hash=TEXT)
            ),
        ),
    ),
    "GET /api/v1/logs": OperationDoc(
        "Get the last lines of this node's log", Allowed.CHANGE,
        query={
            "number": NUMBER_OF, "level": with_note(one_of(*logs.LEVELS), "the least"),
            "since": with_note(NUMBER, "only lines after this Unix time"),
        },
        answer=done(
            logs=list_of(fields(time=_UNIX, level=TEXT, logger=TEXT, message=TEXT, process=WHOLE, number=WHOLE))
        ),
    ),
    "GET /api/v1/examination": OperationDoc(
        "Check this node's workers, store and peers, as `modelvine doctor` does", Allowed.CHANGE,
        answer=done(
            process=OBJECT, store=OBJECT, workers=list_of(OBJECT), peers=list_of(OBJECT), relay=OBJECT,
            exposed=with_note(TEXT, "what other machines can use without a key"), keys=COUNT,
        ),
    ),
    "GET /api/v1/receipts": OperationDoc(
        "Get totals of the receipts with each other node", Allowed.CHANGE,
        answer=done(receipts=list_of(fields(peer=TEXT, side=TEXT, answers=COUNT, tokens=COUNT))),
    ),
    "GET /api/v1/receipts/{peer}": OperationDoc(
        "Get this node's receipts with another node", Allowed.CHANGE, answer=done(pages=list_of(OBJECT))
    ),
    "GET /api/v1/receipts/{peer}/comparison": OperationDoc(
        "Compare this node's receipts with those of the other node", Allowed.CHANGE,
        answer=done(
            peer=TEXT, faults=list_of(TEXT), answers=COUNT, tokens=COUNT, counts=OBJECT, differ=list_of(OBJECT),
            only_here=list_of(TEXT), only_there=list_of(TEXT),
        ),
        errors=(UnknownNode, registry.PeerUnreachable),
    ),
}  # fmt: skip
"""Method and path → description."""
