"""OpenAI's interface: every path that runs a model, for clients and for other nodes.

Bodies stay bytes: only the model's name, `stream` and `project` are read from them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType

from aiohttp import web

from node.auth.principal import ANYBODY, PRINCIPAL, Principal
from node.faces import Serving
from node.faces.encoder import AnswerForm, WithoutDone
from node.faces.errors import UnknownNode, WrongParameter
from node.faces.request_ids import ID
from node.faces.request_reader import read_body
from node.faces.respond import answer
from node.lane.calls import LaneCall
from node.lane.request import HttpRequest, LaneRequest
from registry.errors import InvalidSignature
from registry.records import PeerId
from registry.signing import ID_HEAD, public_of
from registry.wire import is_name, is_node_name
from router.errors import BadRequest
from router.large_bodies import in_thread_if_large
from router.openai import body as bodies
from router.openai.large_json import SMALL_BYTES
from router.openai.prefixes import MAX_BYTES, MIN_BYTES, NONE, prefixes_of
from router.openai.usage import TEXT
from router.peers.headers import (
    AIM,
    BACKGROUND,
    CID,
    CONTINUE,
    HOP,
    NODE,
    PATIENCE,
    PRIORITY,
    PROJECT,
    READY,
    SESSION,
    VERBATIM,
    VIA,
    WAIT,
    extended_via,
    trace_of,
)
from router.requests import (
    ANYWHERE,
    MODEL_KINDS,
    NAMED_BY,
    STORES,
    Kind,
    PassedHeaders,
    Pin,
    Request,
)
from router.translate.verbatim import Verbatim, split_body

LLAMA_STACK = "/v1/openai/v1"
PREFIXES = ("/v1", LLAMA_STACK)
"""Path prefixes of the interface: its own, and the one that llama-stack-client 0.2 uses."""

ENDPOINTS: Mapping[str, str] = {
    "POST /v1/chat/completions": "any model of the mesh, with a worker of any protocol",
    "POST /v1/images/generations": "the same",
    "POST /v1/images/edits": "the same, JSON and forms",
    "GET /v1/models": "all models of live nodes",
    "POST /api/v0/ai/project/register": "registers workers of this machine",
    "POST /api/v0/ai/project/unregister": "unregisters them",
}
"""What becomes of each endpoint of the interface standard for models."""

FLEX = "flex"
"""OpenAI's `service_tier` for requests that may take longer."""

PASSED = 64
"""Size of the LRU cache for sets of headers that travel with requests."""

_LONGEST_SESSION = 256
_MILLISECONDS = re.compile(r"\d{1,7}", re.ASCII)
_SECONDS = re.compile(r"\d{1,5}(?:\.\d{1,3})?", re.ASCII)
_NODES_LISTED = 10
_PEER_ID_CHARACTERS = 52
_NO_FIELDS: Mapping[str, object] = MappingProxyType({})


def asking_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for clients."""
    # LocalAI's stores have no `/v1` prefix.
    prefixed_kinds = [(prefix, kind) for prefix in PREFIXES for kind in MODEL_KINDS] + [
        # Current Cohere clients rerank at `/v2`.
        ("/v2", Kind.RERANK),
        *(("", kind) for kind in STORES),
    ]
    return [
        _call(context, kind, own_only=False, done=prefix != LLAMA_STACK).at(
            f"{prefix}/{kind.value}"
        )
        for prefix, kind in prefixed_kinds
    ]


def link_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for other nodes: the same calls, answered by this node's own workers."""
    return [_call(context, kind, own_only=True).at(f"/v1/{kind.value}") for kind in MODEL_KINDS]


def _call(context: Serving, kind: Kind, *, own_only: bool, done: bool = True) -> LaneCall:
    def form_of(request: Request) -> AnswerForm:
        return AnswerForm(request, None if done or not request.stream else WithoutDone())

    limit = context.settings.router.max_body_bytes

    def read(http: LaneRequest) -> Request | None:
        body, headers = http.body, http.headers
        if len(body) > limit or VERBATIM in headers:
            return None
        content_type = headers.get("content-type") or content_type_of(http, body)
        return request_of(context, http, kind, body, content_type, own_only=own_only)

    async def handle(http: HttpRequest) -> web.StreamResponse:
        async def ask() -> AnswerForm:
            return form_of(await read_request(context, http, kind, own_only=own_only))

        asker = http.headers.get(HOP, "") if own_only else ""
        return await answer(context, http, kind, ask, asker=asker)

    return LaneCall(
        context=context, kind=kind, to_peer=own_only, handler=handle, read=read, form_of=form_of
    )


async def read_request(
    context: Serving, http: HttpRequest, kind: Kind, *, own_only: bool
) -> Request:
    """Read a caller's model request; raise what `read_body`, `split_body` and `request_of` raise."""
    settings = context.settings.router
    rate = context.settings.web.min_body_rate
    body = await read_body(
        http, limit=settings.max_body_bytes, idle=settings.idle_timeout, rate=rate
    )
    verbatim: Verbatim | None = None
    if own_only and (header := http.headers.get(VERBATIM)):
        body, verbatim = await in_thread_if_large(body, partial(split_body, header, body))
    content_type = content_type_of(http, body)
    make = partial(
        request_of, context, http, kind, body, content_type, own_only=own_only, verbatim=verbatim
    )
    return make() if len(body) <= SMALL_BYTES else await in_thread_if_large(body, make)


def request_of(
    context: Serving,
    http: HttpRequest,
    kind: Kind,
    body: bytes,
    content_type: str = "application/json",
    *,
    own_only: bool = False,
    verbatim: Verbatim | None = None,
) -> Request:
    """Return the request made of a body in OpenAI's form and of the headers.

    `verbatim` is the same request in the caller's own protocol, where that is not OpenAI's. Raise what `bodies.read`,
    `header_words` and `pin_of` raise.
    """
    conversation = MIN_BYTES <= len(body) <= MAX_BYTES and kind in TEXT
    members = bodies.WITH_CONVERSATION if conversation else bodies.ROUTED
    parsed = bodies.read(body, content_type, named_by=NAMED_BY.get(kind, ""), few=members)
    if parsed.names:
        body = bodies.with_one_model(body, parsed)
    fields, principal = parsed.fields, http.get(PRINCIPAL, ANYBODY)
    values = header_words(context, http)
    background = values.background
    if principal.key is not None or "service_tier" in fields:
        background = background or _is_background(principal, fields)
    return Request(
        id=http[ID],
        kind=kind,
        model=parsed.model,
        body=body,
        content_type=content_type,
        stream=parsed.stream,
        pin=pin_of(context, http.headers, fields)
        if values.pin is None or "project" in fields
        else values.pin,
        # A hop header at the public listener forbids a second hop as well: this is how loops end.
        own_only=own_only or values.hop,
        session=values.session
        or (_session(fields["prompt_cache_key"]) if "prompt_cache_key" in fields else ""),
        caller=values.caller
        if principal is ANYBODY
        else _caller(principal, values.credential, http.remote),
        waits=values.waits,
        aim=values.aim,
        background=background,
        patience=values.patience,
        holds=values.holds,
        # The node that the caller asked does the failover, so no other node has to.
        continues=parsed.stream and values.continues,
        fallbacks=parsed.names[1:],
        plain=parsed.plain,
        verbatim=verbatim,
        prefixes=prefixes_of(fields, len(body)) if conversation else NONE,
        passed=passed_headers(http, context.peer, background=True) if background else values.passed,
    )


@dataclass(frozen=True, slots=True)
class HeaderWords:
    """What headers say to routing, independent of the body: fields of `Request`, and inputs to others of its fields.

    `hop` is set where a node asks. `credential` and `caller` tell callers apart, the latter for callers without a principal.
    `pin` is the pin for bodies that name no project, `None` where it must be read for each request.
    """

    hop: bool
    session: str
    credential: str
    caller: str
    waits: bool
    holds: bool
    aim: float
    background: bool
    patience: float
    continues: bool
    passed: PassedHeaders
    pin: Pin | None


def header_words(context: Serving, http: HttpRequest) -> HeaderWords:
    """Return what the headers of a request say, cached for equal headers; raise `BadRequest` and what `passed_headers` raises."""
    derived = http.head.derived if isinstance(http, LaneRequest) else {}
    if HeaderWords in derived:
        cached: HeaderWords = derived[HeaderWords]
        return cached
    headers, hop = http.headers, HOP in http.headers
    credential = _credential(headers)
    values = derived[HeaderWords] = HeaderWords(
        hop=hop,
        session=_session(headers.get(SESSION)),
        credential=credential,
        caller=_caller(ANYBODY, credential, http.remote),
        waits=not hop or WAIT in headers,
        holds=not hop or headers.get(WAIT) == READY,
        aim=_aim(headers),
        background=headers.get(PRIORITY) == BACKGROUND,
        patience=_seconds(headers.get(PATIENCE, "")) if hop else 0.0,
        continues=not hop and _continues(context, headers),
        passed=passed_headers(http, context.peer),
        pin=_steady_pin(context, headers),
    )
    return values


def _steady_pin(context: Serving, headers: Mapping[str, str]) -> Pin | None:
    if NODE in headers:
        # The node that this name refers to may change.
        return None
    try:
        return pin_of(context, headers)
    except WrongParameter:
        # It is raised when the request is made: an error of the body is reported first.
        return None


def background_of(http: HttpRequest, fields: Mapping[str, object] = _NO_FIELDS) -> bool:
    """Return whether a request is background work: by its header, OpenAI's `service_tier`, or its caller's key."""
    principal = http.get(PRINCIPAL, ANYBODY)
    return http.headers.get(PRIORITY) == BACKGROUND or _is_background(principal, fields)


def _is_background(principal: Principal, fields: Mapping[str, object]) -> bool:
    by_key = principal.key is not None and principal.key.background
    return by_key or fields.get("service_tier") == FLEX


def _aim(headers: Mapping[str, str]) -> float:
    aim = headers.get(AIM, "")
    if not aim:
        return 0.0
    if not _MILLISECONDS.fullmatch(aim) or not int(aim):
        raise BadRequest(f"{AIM} is a number of milliseconds from 1 to 9999999", param=AIM)
    return int(aim) / 1_000


def _continues(context: Serving, headers: Mapping[str, str]) -> bool:
    value = headers.get(CONTINUE)
    return context.settings.router.continue_streams if value not in ("0", "1") else value == "1"


def _seconds(text: str) -> float:
    return float(text) if _SECONDS.fullmatch(text) else 0.0


def caller_of(http: HttpRequest) -> str:
    """Return a name that tells callers apart: by key, node, credential, or address.

    The hash of a credential differs from run to run and reveals nothing of it.
    """
    return _caller(http.get(PRINCIPAL, ANYBODY), _credential(http.headers), http.remote)


def _caller(principal: Principal, credential: str, address: str | None) -> str:
    if principal.key is not None:
        return principal.key.hash
    return credential or principal.address or address or ""


def _credential(headers: Mapping[str, str]) -> str:
    # Anthropic's clients send their key in `x-api-key`.
    credential = headers.get(HOP) or headers.get("authorization") or headers.get("x-api-key")
    return str(hash(credential)) if credential else ""


def session_of(http: HttpRequest, fields: Mapping[str, object] = _NO_FIELDS) -> str:
    """Return the caller's name for its conversation, by header or `prompt_cache_key`, with what cannot be encoded replaced."""
    return _session(http.headers.get(SESSION) or fields.get("prompt_cache_key"))


def _session(value: object) -> str:
    if not value or not isinstance(value, str):
        return ""
    return value[:_LONGEST_SESSION].encode(errors="replace").decode()


def content_type_of(http: HttpRequest, body: bytes) -> str:
    """Return the content type as sent; without one, `application/json` for a body that begins like a JSON object, else `""`."""
    content_type = http.headers.get("content-type", "")
    return content_type or ("application/json" if body.lstrip()[:1] == b"{" else "")


def passed_headers(http: HttpRequest, peer: PeerId, *, background: bool = False) -> PassedHeaders:
    """Return the headers that travel with a request to the replica: its trace, the nodes passed, priority and `accept`.

    Raise what `extended_via` raises.
    """
    passed = trace_of(http.headers)
    passed[VIA] = extended_via(", ".join(http.headers.getall(VIA, ())), peer)
    if background:
        passed[PRIORITY] = BACKGROUND
    accept = http.headers.get("accept", "")
    if accept and accept.isascii() and accept.isprintable():
        passed["accept"] = accept
    return _shared_headers(tuple(passed.items()))


@lru_cache(maxsize=PASSED)
def _shared_headers(headers: tuple[tuple[str, str], ...]) -> PassedHeaders:
    """Return the same object for equal headers: thousands of connections keep theirs."""
    return PassedHeaders(dict(headers))


def pin_of(
    context: Serving, headers: Mapping[str, str], fields: Mapping[str, object] = _NO_FIELDS
) -> Pin:
    """Return the project, replica or node that the caller requires, by header, else by field; raise what `checked_pin` raises."""
    project = headers.get(PROJECT, fields.get("project") or "")
    cid = headers.get(CID)
    node = headers.get(NODE)
    if not (project or cid is not None or node):
        return ANYWHERE
    return checked_pin(context, project, cid, node or "")


def checked_pin(context: Serving, project: object, cid: str | None, node: str) -> Pin:
    """Return the restriction to a project, a replica and a node; raise `WrongParameter`, or what `find_node` raises."""
    if not isinstance(project, str) or not is_name(project):
        raise WrongParameter("project must be the name of a project", param="project")
    if cid is not None and not is_name(cid):
        raise WrongParameter("cid must be a printable name", param="cid")
    return Pin(project=project, cid=cid, node=find_node(context, node) if node else None)


def find_node(context: Serving, text: str) -> PeerId:
    """Return the node that a caller means: by its id, known here or not, by the beginning of its id, or by its name.

    Raise `UnknownNode` when there is none, and `WrongParameter` when several match or `text` is neither an id nor a name.
    """
    # Header bytes that are not UTF-8 are lone surrogates in the text, which cannot be encoded.
    text = text.encode(errors="replace").decode()
    nodes = context.router.find_nodes(text)
    if len(nodes) == 1:
        return nodes[0].node
    if nodes:
        listed = ", ".join(f"{record.node} ({record.name})" for record in nodes[:_NODES_LISTED])
        more = ", …" if len(nodes) > _NODES_LISTED else ""
        raise WrongParameter(f"{text!r} may be any of {listed}{more}", param="node_id")
    if len(text) < _PEER_ID_CHARACTERS and (text.startswith(ID_HEAD) or is_node_name(text)):
        raise UnknownNode(f"no node is called {text!r}; `modelvine peers` lists the known nodes")
    try:
        public_of(text)
    except InvalidSignature as error:
        raise WrongParameter(str(error), param="node_id") from error
    return PeerId(text)
