"""Access control of a node: the right to use its models, to view its state, and to change it.

A key decides. Without a key, the caller's place decides: the node's own user and root on this machine, and holders of the
control token, may change the node; people on this machine may use its models, unless the operator decided otherwise.

A loopback address proves nothing: requests that a proxy on this machine forwards have it too. What counts is the user whose
process holds the other end of the connection; where the kernel does not tell, a key or the token is needed.

A web page of another origin can make a browser on this machine send requests here: directly (the request then carries
`Origin`), or by pointing a name of its own at this address (the request then carries that name as `Host`). Both are refused,
unless the operator allowed that name or origin; such requests change nothing without the token.
"""

import asyncio
import hmac
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from aiohttp import web

from node.auth.errors import AuthError, RoleNotAllowed
from node.auth.forwarded import FORWARDED_FOR, TrustedProxies, network_of
from node.auth.principal import ANYBODY, PRINCIPAL, KeyLookup, NoKeys, Principal, holder_of
from node.auth.quotas import limits_of_addresses
from node.auth.socket_owner import UNASKED, Endpoint, KernelTable, SocketTable
from node.config.settings import KeylessAccess
from node.config.web import WEB_DEFAULTS, WebSettings
from node.faces.errors import NotAllowed, UnsupportedMediaType
from node.faces.request_reader import SHARED, TAKEN_FOR_JSON
from node.lane.request import HttpRequest, LaneRequest
from registry.clock import Clock
from registry.intake.dialable import parse_ip
from router.ssrf_guard import is_loopback

_ANY = "*"
_SHARED_SECONDS = 600
_SHARED_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4000}")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_PAGE = frozenset({"none", "same-origin"})
_HOST = re.compile(r"(?:([A-Za-z0-9._-]+)|\[([0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
# A proxy that runs as the node's own user or as root forwards for callers elsewhere; some proxies set one of these headers.
_FORWARDED = ("forwarded", "via", FORWARDED_FOR, "x-forwarded-host", "x-real-ip")
_ROOT = 0
_OWN = os.geteuid()
_PEOPLE = range(1_000, 60_001)  # login.defs: UID_MIN to UID_MAX
_KERNEL = KernelTable()
_NO_KEYS = NoKeys()


is_open = re.compile(r"/(?:healthz|readyz|openapi\.json|docs|console/.*)?").fullmatch
"""Matches the paths that need no key: health checks of load balancers, and pages without secrets."""


class OwnedConnection(Protocol):
    """The connection that a request arrived on."""

    address: str
    """The caller's address, as the listener knows it."""

    owner: int | None
    """Uid of the caller's process, looked up once."""


@dataclass(frozen=True, slots=True)
class _HeaderFacts:
    """What the headers of a request say of its caller.

    `named`: the host is an allowed name of this node. `directly`: the host is this machine's own, and no header tells of a
    proxy, or of a page of another origin. `key`: the key, empty for none.
    """

    named: bool
    directly: bool
    key: str


class Access:
    """Decision whether a request's caller may do what it requests; raises `NotAllowed` or an `AuthError` if not."""

    def __init__(
        self,
        *,
        token: str,
        names: Iterable[str] = (),
        settings: WebSettings = WEB_DEFAULTS,
        sockets: SocketTable = _KERNEL,
        keys: KeyLookup = _NO_KEYS,
        keyless: KeylessAccess = KeylessAccess.MACHINE,
        wall: Clock = time.time,
    ) -> None:
        """Take the control token, and this node's own names besides its IP addresses; `settings` may allow further names.

        `wall` returns Unix time.
        """
        self._token = token.encode()
        self._sockets = sockets
        self._keys = keys
        self._keyless = keyless
        self._wall = wall
        # Of a request that a helper process forwards, no more than this is known.
        self._user = f"user {_OWN}, or root"
        own_names = ("localhost", socket.gethostname(), *names)
        self._own = _normal(own_names)
        self._names = self._own | _normal(settings.names)
        self._origins = frozenset(map(str.lower, settings.origins))
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self.tells_addresses = bool(self._proxies) or limits_of_addresses(settings).limits_anything
        """Whether callers without a key are distinguished by address."""

    def admit(self, request: HttpRequest) -> web.Response | None:
        """Refuse foreign host names, changes from pages of origins that are not allowed, and callers without a required key.

        Return the answer to a CORS preflight from a page of an allowed origin, `None` for all other requests.
        """
        headers, facts = request.headers, self._header_facts(request)
        host = headers.get("host", "")
        if not facts.named:
            raise NotAllowed(
                f"{host[:100]!r} is not a name of this node: use its address or localhost, or add the name to web.names"
            )
        origin = headers.get("origin")
        if origin is None or _same_origin(origin, host):
            self._identify(request, facts)
            return None
        if _ANY in self._origins or origin.lower() in self._origins:
            request[SHARED] = _shared(_ANY if _ANY in self._origins else origin.lower())
            if (preflight := _preflight(request)) is not None:
                return preflight
        elif request.method not in _READING or _preflight(request) is not None:
            raise NotAllowed(
                f"requests from pages of another origin are refused: {origin[:100]!r} is not in the setting web.origins"
            )
        self._identify(request, facts)
        return None

    def _identify(self, request: HttpRequest, facts: _HeaderFacts) -> None:
        """Note the caller's principal with the request; raise an `AuthError` if a valid key is required."""
        # On the path of every request: the common cases first.
        everybody = self._keyless is KeylessAccess.EVERYBODY and not self.tells_addresses
        machine = self._keyless is KeylessAccess.MACHINE
        if not facts.key and (everybody or (machine and _is_person(self._owner(request, facts)))):
            request[PRINCIPAL] = ANYBODY
            if isinstance(request, LaneRequest):
                # Each request with this head says the same, and the owner of the connection was looked up once.
                request.head.admitted = True
            return
        free, near = is_open(request.path), partial(self.is_local_person, request)
        principal = ANYBODY if free else self.with_key(facts.key, near)
        if self.tells_addresses and principal is ANYBODY and not (free or near()):
            caller: OwnedConnection = request.protocol  # type: ignore[assignment]  # ours, in both servers
            forwarded = request.headers.getall(FORWARDED_FOR, ())
            principal = self.without_key(self._proxies.caller_of(caller.address, forwarded))
        request[PRINCIPAL] = principal

    def without_key(self, address: str) -> Principal:
        """Return the principal of a caller without a key that is no person on this machine."""
        return Principal(address=network_of(address)) if address else ANYBODY

    def with_key(self, key: str, near: Callable[[], bool] | None) -> Principal:
        """Return the principal for the key that a caller shows, empty for none; raise an `AuthError`.

        `near` says whether the caller is a person on this machine. Where it is `None`, every caller needs a key.
        """

        def keyless() -> bool:
            by_place = self._keyless is KeylessAccess.MACHINE
            everybody = self._keyless is KeylessAccess.EVERYBODY
            return near is not None and (near() if by_place else everybody)

        return holder_of(key, self._keys, self._wall(), keyless=keyless)

    def may_view(self, request: web.Request) -> bool:
        """Return whether the caller may view this node's state now: a key may have ended since the request came."""
        try:
            self.with_key(
                shown_key(request.headers), partial(self.is_local_person, request)
            ).check_view()
        except AuthError:
            return False
        return True

    def check_change(self, request: web.Request) -> None:
        """Raise unless the caller may change this node.

        Its own user or root on this machine may, and callers with an operator's key or the control token. Raise
        `RoleNotAllowed` or `NotAllowed`, and `UnsupportedMediaType` for a body that is not declared as JSON.
        """
        principal = request.get(PRINCIPAL, ANYBODY)
        if principal.key is not None and not principal.is_operator:
            raise RoleNotAllowed(
                f"this requires an operator's key; your key has the role {principal.key.role}"
            )
        is_trusted = principal.is_operator or self.holds_token(request)
        if not is_trusted and _from_another_page(request):
            raise NotAllowed("pages of another origin need the control token")
        if not is_trusted and not self.is_own_user(request):
            raise NotAllowed(
                "this requires a process of the node's user or root on its machine, or the control token: send "
                "'Authorization: Bearer TOKEN' with the content of control.token in the node's data directory"
            )
        if request.body_exists and request.content_type not in TAKEN_FOR_JSON:
            raise UnsupportedMediaType("send this as application/json")

    def author_of(self, request: web.Request) -> str:
        """Return the author of a change for the audit log: a key's name, or the user whose process calls."""
        asking: Principal = request.get(PRINCIPAL, ANYBODY)
        if asking.name:
            return asking.name
        owner = self._owner(request, self._header_facts(request))
        return self._user if owner is None else f"user {owner}"

    def is_own_user(self, request: web.Request) -> bool:
        """Return whether the caller is a process of this node's own user or of root on this machine, and no proxy."""
        # A page can lead a browser here by a name that is allowed because a proxy uses it.
        if _from_another_page(request):
            return False
        owner = self._owner(request, self._header_facts(request))
        return owner is not None and owner in (_ROOT, _OWN)

    def is_local_person(self, request: HttpRequest) -> bool:
        """Return whether the caller is a person's process on this machine, and no proxy; users of services are no people."""
        return _is_person(self._owner(request, self._header_facts(request)))

    def is_local_connection(self, here: Endpoint, there: Endpoint) -> bool:
        """Return whether the process at the other end of a connection is a person's on this machine."""
        same = same_machine(there.address, here.address)
        return same and _is_person(self._sockets.owner(there, here))

    def _owner(self, request: HttpRequest, facts: _HeaderFacts) -> int | None:
        """Return the uid of the calling process, `None` if it is unknown or the process may forward for other callers."""
        transport = request.transport
        if transport is None or not facts.directly:
            return None
        caller: OwnedConnection = request.protocol  # type: ignore[assignment]  # ours, in both servers
        if caller.owner == UNASKED:
            caller.owner = self._owner_of(transport)
        return caller.owner

    def _header_facts(self, request: HttpRequest) -> _HeaderFacts:
        """Return what the headers say, cached with a repeated head. Whether a key is valid is looked up each time."""
        derived = request.head.derived if isinstance(request, LaneRequest) else {}
        cached: _HeaderFacts | None = derived.get(_HeaderFacts)
        if cached is not None:
            return cached
        headers = request.headers
        host = headers.get("host", "localhost")
        facts = derived[_HeaderFacts] = _HeaderFacts(
            named="host" not in headers
            or _ANY in self._names
            or _names_this_host(host, self._names),
            directly=_names_this_host(host, self._own)
            and not any(map(headers.__contains__, _FORWARDED))
            and self._is_welcome(headers, host),
            key=shown_key(headers),
        )
        return facts

    def _is_welcome(self, headers: Mapping[str, str], host: str) -> bool:
        """Return whether no page of an origin that is not allowed has a browser send this, be it only to be read."""
        origin = headers.get("origin")
        if origin is None:
            return _is_own_page(headers)
        allowed = _ANY in self._origins or origin.lower() in self._origins
        return allowed or _same_origin(origin, host)

    def _owner_of(self, transport: asyncio.BaseTransport) -> int | None:
        caller = transport.get_extra_info("peername")
        here = transport.get_extra_info("sockname")
        if not isinstance(caller, tuple) or not isinstance(here, tuple):
            return None
        if not same_machine(caller[0], here[0]):
            return None
        return self._sockets.owner(_endpoint(caller), _endpoint(here))

    def holds_token(self, request: web.Request) -> bool:
        """Return whether the caller shows the control token, and so could read this node's own files."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        matches = hmac.compare_digest(token.encode(errors="surrogateescape"), self._token)
        return scheme.lower() == "bearer" and bool(self._token) and matches


def _is_person(owner: int | None) -> bool:
    return owner is not None and (owner in (_ROOT, _OWN) or owner in _PEOPLE)


def shown_key(headers: Mapping[str, str]) -> str:
    """Return the key that a caller sends, in the header of OpenAI's clients or of Anthropic's; empty for none."""
    authorization = headers.get("authorization")
    if authorization is None:
        return headers.get("x-api-key", "")
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _normal(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower().rstrip(".") for name in names if name)


def _shared(origin: str) -> dict[str, str]:
    """Return the CORS headers that let pages of an origin read an answer (Fetch standard, 3.3)."""
    vary = {} if origin == _ANY else {"Vary": "Origin"}
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*", **vary}


def _preflight(request: HttpRequest) -> web.Response | None:
    """Return the answer to a CORS preflight, `None` for any other request."""
    if request.method != "OPTIONS" or "access-control-request-method" not in request.headers:
        return None
    headers = {
        "access-control-allow-methods": _SHARED_METHODS,
        "access-control-max-age": str(_SHARED_SECONDS),
    }
    # A wildcard would not cover `Authorization`.
    names = request.headers.get("access-control-request-headers", "")
    if _HEADER_NAMES.fullmatch(names):
        headers["access-control-allow-headers"] = names
    if request.headers.get("access-control-request-private-network") == "true":
        headers["access-control-allow-private-network"] = "true"
    return web.Response(headers=headers)


def _endpoint(name: tuple[Any, ...]) -> Endpoint:
    """Read a socket's name: address and port, and for IPv6 the scope, which follows the flow label."""
    return Endpoint(name[0], name[1], name[3] if len(name) > 3 else 0)


def _from_another_page(request: web.Request) -> bool:
    """Return whether a browser says that a page of another origin sent this, by `Origin`, or else by `Sec-Fetch-Site`."""
    origin = request.headers.get("origin")
    if origin is not None:
        return not _same_origin(origin, request.headers.get("host", ""))
    return not _is_own_page(request.headers)


def _is_own_page(headers: Mapping[str, str]) -> bool:
    """Return whether a browser says that one of this node's pages, or a person, requests this; true without a browser."""
    return headers.get("sec-fetch-site", "none").strip().lower() in _OWN_PAGE


def is_own_address(host: str) -> bool:
    """Return whether `host` is `localhost`, this machine's own name, or an address of one of its interfaces, without DNS.

    A socket can be bound to an address exactly when the address is this machine's (unless ip_nonlocal_bind is set).
    """
    if is_loopback(host) or host.lower().rstrip(".") in ("localhost", socket.gethostname().lower()):
        return True
    address = parse_ip(host)
    if address is None or address.is_unspecified or address.is_multicast:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


@lru_cache(maxsize=1024)
def _names_this_host(header: str, names: frozenset[str]) -> bool:
    match = _HOST.fullmatch(header)
    host = (match[1] or match[2]).lower() if match else ""
    return parse_ip(host) is not None or host.rstrip(".") in names


@lru_cache(maxsize=1024)
def _same_origin(origin: str, host: str) -> bool:
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:
        return False
    return bool(netloc) and netloc.lower() == host.lower()


@lru_cache(maxsize=4096)
def same_machine(caller: str, here: str) -> bool:
    """Return whether both ends of a connection are on one machine: a machine calls its own address from that same address."""
    caller_ip, own_ip = parse_ip(caller), parse_ip(here)
    return caller_ip is not None and (caller_ip.is_loopback or caller_ip == own_ip)
