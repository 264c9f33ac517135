"""Descriptions of `/api/v1`, of health and metrics, and of the pages: what operators and their programs ask."""

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
    May,
    OperationDoc,
    Schema,
    done,
    fields,
    list_of,
    one_of,
    or_null,
    told,
)
from node.faces.v1 import grants, keys, logs, usage
from registry import errors as registry
from router import errors as router
from router.requests import MODEL_KINDS

_UNIX = told(NUMBER, "Unix time")
_SECONDS = told(NUMBER, "seconds")
_SHOWN_KEY = fields(
    name=TEXT,
    state=told(TEXT, "`active`, or why it is not"),
    role=TEXT,
    models=list_of(TEXT),
    expires=told(NUMBER, "Unix time, 0 for never"),
    created=_UNIX,
    revoked=told(NUMBER, "Unix time, 0 for never"),
    hint=told(TEXT, "its last characters"),
)
_NEW_KEY = fields(name=TEXT, key=told(TEXT, "the key itself, which no other answer holds"))
_FAILED_ATTEMPT = fields(
    request=TEXT, at=_UNIX, node=TEXT, model=TEXT, cid=TEXT, error=TEXT, why=TEXT, seconds=_SECONDS
)
_CONSIDERED = fields(
    node=TEXT,
    project=TEXT,
    cid=TEXT,
    expected=told(NUMBER, "requests that were thought to be there"),
    slots=told(COUNT, "0 where that is not known"),
    cached=told(NUMBER, "kilobytes of the request in its cache"),
    doubts=list_of(TEXT),
)
_LEFT_OUT = fields(
    node=TEXT,
    project=TEXT,
    model=TEXT,
    cid=TEXT,
    reason=TEXT,
    retry_in=told(NUMBER, "seconds until it might have answered, 0 where nobody knew"),
)
_REQUEST = fields(
    {"key": told(TEXT, "the key's name, for operators"), "first": or_null(_SECONDS)},
    project=TEXT,
    cid=TEXT,
    considered=told(
        list_of(_CONSIDERED), "who could answer, in the order in which they would be asked"
    ),
    excluded=told(list_of(_LEFT_OUT), "who could not, as it was then; at most 12 for each model"),
    id=TEXT,
    at=_UNIX,
    kind=TEXT,
    model=TEXT,
    node=told(TEXT, "whose worker answers"),
    route=TEXT,
    attempts=COUNT,
    status=told(WHOLE, "HTTP status, 0 while it is under way"),
    seconds=_SECONDS,
    taken=told(COUNT, "bytes"),
    sent=told(COUNT, "bytes"),
    tokens=or_null(fields(prompt=COUNT, completion=COUNT, cached=COUNT, estimated=FLAG)),
    for_node=told(FLAG, "another node asks for a caller of its own"),
    failure=TEXT,
    failed=list_of(_FAILED_ATTEMPT),
)
_NODE_EVENT = fields(at=_UNIX, node=TEXT, name=TEXT, was=TEXT, now=TEXT, why=TEXT)
_CONTACTS = fields(summary=TEXT, addresses=list_of(OBJECT))
_NODE = fields(
    node=told(TEXT, "its id"),
    name=TEXT,
    state=told(TEXT, "alive, unreachable, suspect, draining, lost or left"),
    standing=TEXT,
    since=told(NUMBER, "seconds for which it has been so"),
    why=TEXT,
    last_heard=told(NUMBER, "seconds ago"),
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
_RELAYED = told(FLAG, "through a relay only")
_PARTS = told(
    {"type": "object", "additionalProperties": TEXT},
    "of each part `ok`, or a sentence on what is wrong",
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
_KIND = told(one_of(*MODEL_KINDS), "what the model is to do")
_DAY = told(TEXT, "a day (UTC) like 2026-11-25")
_USAGE = fields(
    dict.fromkeys(usage.BY, TEXT),
    requests=COUNT,
    failed=COUNT,
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    cached_tokens=COUNT,
    estimated=told(COUNT, "answers that did not tell their tokens"),
    seconds=_SECONDS,
    first_seconds=_SECONDS,
    cost=NUMBER,
)
_METRICS: Mapping[str, Schema] = {"text/plain": TEXT}
_DRAINED = done(standing=TEXT)

TABLE: Mapping[str, OperationDoc] = {
    "GET /healthz": OperationDoc(
        "Say whether this process lives", May.EVERYBODY, answer=fields(status={"const": "ok"})
    ),
    "GET /readyz": OperationDoc(
        "Say whether this node is ready, and which of its parts are not well",
        May.EVERYBODY,
        more="200 with `degraded` too: a node with a broken mesh or store serves on with what it has.",
        answer=fields(status=one_of("ok", "degraded"), parts=_PARTS),
    ),
    "GET /metrics": OperationDoc("Show the metrics, for Prometheus", May.LOOK, content=_METRICS),
    "GET /openapi.json": OperationDoc(
        "Show this document", May.EVERYBODY, answer=fields(openapi=TEXT, paths=OBJECT)
    ),
    "GET /docs": OperationDoc(
        "Show this document as a page", May.EVERYBODY, content={"text/html": TEXT}
    ),
    "GET /api/v1/status": OperationDoc(
        "Show how this node is", May.LOOK,
        answer=fields(
            peer=TEXT, name=TEXT, version=TEXT, uptime=_SECONDS, http=TEXT, p2p=list_of(TEXT), link=TEXT, standing=TEXT,
            ready=_PARTS, models=COUNT, bootstrap=_CONTACTS, nodes_alive=COUNT, in_flight=COUNT, processes=COUNT,
            load=list_of(OBJECT), workers=list_of(OBJECT), digest=TEXT, store=TEXT, profile=TEXT,
        ),
    ),
    "GET /api/v1/catalog": OperationDoc(
        "Show the record of every live node, as this node knows it", May.LOOK,
        query={"digest": told(TEXT, "`1`: only the digest; equal digests are equal registries")},
        answer=fields({"nodes": list_of(OBJECT)}, digest=TEXT, records=COUNT),
    ),
    "GET /api/v1/nodes": OperationDoc(
        "List the nodes, and how this node is connected to each", May.LOOK,
        answer=fields(
            nodes=list_of(_NODE),
            bootstrap=_CONTACTS,
            handshakes_failed=told(COUNT, "connections of others whose handshake failed since the start"),
        ),
    ),
    "GET /api/v1/connections": OperationDoc(
        "List the nodes that this one is connected to", May.LOOK,
        answer=fields(connections=list_of(fields(node=TEXT, relayed=_RELAYED))),
    ),
    "GET /api/v1/topology": OperationDoc(
        "Show which nodes are connected to each other, as they tell when they are asked", May.LOOK,
        answer=done(
            links=list_of(fields(one=TEXT, other=TEXT, relayed=_RELAYED)),
            told=told(list_of(TEXT), "the nodes that told; above fifty only this one is asked"),
        ),
    ),
    "POST /api/v1/drain": OperationDoc(
        "Take this node out of service: others send it nothing new", May.CHANGE, answer=_DRAINED
    ),
    "POST /api/v1/undrain": OperationDoc(
        "Put this node into service again", May.CHANGE, answer=_DRAINED
    ),
    "GET /api/v1/route": OperationDoc(
        "Explain who would answer a request for a model, and why; nothing is sent", May.LOOK,
        query={
            "model": told(TEXT, "`MODEL` or `PROJECT/MODEL`"), "project": TEXT, "cid": told(TEXT, "a replica"),
            "node": told(TEXT, "a node's id, the beginning of one, or its name"), "kind": _KIND,
        },
        needs=("model",), answer=_EXPLANATION, errors=(router.UnknownModel, UnknownNode),
    ),
    "POST /api/v1/route": OperationDoc(
        "Explain who would answer this very request; nothing is sent or kept", May.LOOK,
        query={"kind": _KIND}, request=told(OBJECT, "the request as `/v1` takes it"), answer=_EXPLANATION,
        errors=(router.UnknownModel, UnknownNode, router.Looped),
    ),
    "POST /api/v1/recognise": OperationDoc(
        "Find out which protocol a worker of this machine speaks, and its models; nothing is registered", May.CHANGE,
        request=fields({"dialect": TEXT, "headers": OBJECT}, api=told(TEXT, "where it listens")),
        answer=done({"busy": FLAG}, tries=list_of(OBJECT), found=or_null(OBJECT)),
    ),
    "GET /api/v1/me": OperationDoc(
        "Say who asks, and what they may", May.KEY,
        answer=done(
            name=TEXT, role=TEXT, may=fields(ask=FLAG, look=FLAG, change=FLAG), node=TEXT, node_name=TEXT, version=TEXT
        ),
    ),
    "GET /api/v1/requests": OperationDoc(
        "List the requests under way and those of late; never what was said", May.LOOK,
        query={"number": NUMBER_OF},
        answer=done(count=COUNT, processes=COUNT, under_way=list_of(_REQUEST), ended=list_of(_REQUEST)),
    ),
    "POST /api/v1/requests/{id}/cancel": OperationDoc(
        "Cut off the callers of a request", May.CHANGE, answer=done(cut=COUNT), errors=(UnknownRequest,)
    ),
    "GET /api/v1/history": OperationDoc(
        "Show the last hour by model and node", May.LOOK,
        query={"model": told(TEXT, "only this one, with its buckets")},
        answer=done(bucket=_SECONDS, until=_UNIX, history=list_of(OBJECT)),
    ),
    "GET /api/v1/node-events": OperationDoc(
        "List what became of the nodes lately", May.LOOK, answer=done(count=COUNT, events=list_of(_NODE_EVENT))
    ),
    "GET /api/v1/events": OperationDoc(
        "Follow nodes, events and requests: an event a second, until the caller hangs up", May.LOOK,
        content={"text/event-stream": EVENTS}, errors=(TooManyConnections,),
    ),
    "GET /api/v1/keys": OperationDoc("List the keys of users", May.CHANGE, answer=done(keys=list_of(_SHOWN_KEY))),
    "POST /api/v1/keys": OperationDoc(
        "Make keys, all or none", May.CHANGE,
        request=keys.Order, answer=done(keys=list_of(_NEW_KEY)), errors=(auth.KeyExists,),
    ),
    "POST /api/v1/keys/{name}/rotate": OperationDoc(
        "Make a new key in place of one", May.CHANGE, answer=done(keys=list_of(_NEW_KEY)),
        errors=(auth.NoSuchKey, auth.KeyExists),
    ),
    "POST /api/v1/keys/{name}/revoke": OperationDoc(
        "Revoke a key", May.CHANGE, answer=done(), errors=(auth.NoSuchKey,)
    ),
    "POST /api/v1/grants": OperationDoc(
        "Invite somebody, or a node", May.CHANGE,
        request=grants.WantedGrant, errors=(auth.KeyExists,),
        answer=done(name=TEXT, expires=_UNIX, invitation=told(TEXT, "the invitation, which no other answer holds")),
    ),
    "GET /api/v1/usage": OperationDoc(
        "Show what keys have used; users see what is their own", May.KEY,
        query={
            "since": told(_DAY, "the first day; a week ago by default"), "until": told(_DAY, "the last day; today by default"),
            "key": told(TEXT, "only this key"), "by": told(TEXT, f"which of {', '.join(usage.BY)}, with commas between"),
            "format": told(one_of("json", "csv"), "how it is shown"),
        },
        answer=done(since=_DAY, until=_DAY, usage=list_of(_USAGE)), content={"text/csv": TEXT},
        errors=(NotAllowed, registry.StoreUnavailable),
    ),
    "GET /api/v1/audit": OperationDoc(
        "Show who changed what", May.CHANGE, query={"number": NUMBER_OF},
        answer=done(
            faults=told(list_of(TEXT), "where a chain of entries is broken"),
            audit=list_of(
                fields(node=TEXT, number=COUNT, at=_UNIX, who=TEXT, action=TEXT, target=TEXT, before=TEXT, hash=TEXT)
            ),
        ),
    ),
    "GET /api/v1/logs": OperationDoc(
        "Show the last lines of this node's log", May.CHANGE,
        query={
            "number": NUMBER_OF, "level": told(one_of(*logs.LEVELS), "the least"),
            "since": told(NUMBER, "only what was written later; Unix time"),
        },
        answer=done(
            logs=list_of(fields(time=_UNIX, level=TEXT, logger=TEXT, message=TEXT, process=WHOLE, number=WHOLE))
        ),
    ),
    "GET /api/v1/examination": OperationDoc(
        "Look at this node's own workers, store and neighbours, as the doctor does", May.CHANGE,
        answer=done(
            process=OBJECT, store=OBJECT, workers=list_of(OBJECT), peers=list_of(OBJECT), relay=OBJECT,
            exposed=told(TEXT, "what others may use without a key"), keys=COUNT,
        ),
    ),
    "GET /api/v1/receipts": OperationDoc(
        "Sum up what this node and others asked of each other", May.CHANGE,
        answer=done(receipts=list_of(fields(peer=TEXT, side=TEXT, answers=COUNT, tokens=COUNT))),
    ),
    "GET /api/v1/receipts/{peer}": OperationDoc(
        "Show the receipts of this node with another", May.CHANGE, answer=done(pages=list_of(OBJECT))
    ),
    "GET /api/v1/receipts/{peer}/comparison": OperationDoc(
        "Compare this node's receipts with what the other keeps", May.CHANGE,
        answer=done(
            peer=TEXT, faults=list_of(TEXT), answers=COUNT, tokens=COUNT, counts=OBJECT, differ=list_of(OBJECT),
            only_here=list_of(TEXT), only_there=list_of(TEXT),
        ),
        errors=(UnknownNode, registry.PeerUnreachable),
    ),
}  # fmt: skip
"""Method and path → what it does."""
