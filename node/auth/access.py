"""Access to a node: who may ask its models, who may look at it, and who may change it.

A key says so. Without one, where the caller is: the node's own user and root on this machine, and holders of the control token,
may change it; people on this machine may ask, unless the operator decided otherwise.

To come over loopback is no proof: whoever asks a proxy on this machine does. What counts is whose process holds the other
end of the connection; where the kernel does not tell, a key or the token is needed.

A web page of another origin can make a browser on this machine send requests here: directly (it then carries `Origin`),
or by pointing a name of its own at this address (it then carries that name as `Host`). Both are refused, unless the
operator allowed that name or origin; such requests change nothing without the token.
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
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Protocol
from urllib.parse import urlsplit

from aiohttp import web

from node.auth.errors import AuthError, RoleNotAllowed
from node.auth.forwarded import FORWARDED_FOR, TrustedProxies, network_of
from node.auth.principal import ANYBODY, PRINCIPAL, KeyLookup, NoKeys, Principal, holder_of
from node.auth.quotas import of_addresses
from node.auth.socket_owner import UNASKED, Endpoint, KernelTable, SocketTable
from node.config.settings import Keyless
from node.config.web import WebSettings
from node.faces.errors import NotAllowed, UnsupportedMediaType
from node.faces.request_reader import SHARED, TAKEN_FOR_JSON
from node.lane.request import HttpRequest, LaneRequest

_ANY = "*"
_SHARED_SECONDS = 600
_SHARED_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4000}")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_PAGE = frozenset({"none", "same-origin"})
_HOST = re.compile(r"(?:([A-Za-z0-9._-]+)|\[([0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
# A proxy of the node's own user or of root speaks for callers who are elsewhere; some say so in one of these.
_FORWARDED = ("forwarded", "via", FORWARDED_FOR, "x-forwarded-host", "x-real-ip")
_ROOT = 0
_OWN = os.geteuid()
_PEOPLE = range(1_000, 60_001)  # login.defs: UID_MIN to UID_MAX
_KERNEL = KernelTable()
_NO_KEYS = NoKeys()
_AS_IT_COMES = WebSettings()


is_open = re.compile(r"/(?:healthz|readyz|openapi\.json|docs|console/.*)?").fullmatch
"""Finds the paths for which nobody wants a key: what load balancers ask, and pages that hold no secret."""


class OwnedConnection(Protocol):
    """The connection that a request came on."""

    address: str
    """Whom it is from, as its listener knows it."""

    owner: int | None
    """Uid of the caller's process, asked for once."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What the headers of a request say of who asks: by a name of this node's, for itself, with a key."""

    named: bool
    directly: bool
    key: str


class Access:
    """Decides for one request whether its caller may do what it asks; raises `NotAllowed` or an `AuthError` when not."""

    def __init__(
        self,
        *,
        token: str,
        names: Iterable[str] = (),
        settings: WebSettings = _AS_IT_COMES,
        sockets: SocketTable = _KERNEL,
        keys: KeyLookup = _NO_KEYS,
        keyless: Keyless = Keyless.MACHINE,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Take the control token, and this node's own names besides its IP addresses; `settings` may allow others.

        `wall` returns Unix time.
        """
        self._token = token.encode()
        self._sockets = sockets
        self._keys = keys
        self._keyless = keyless
        self._wall = wall
        # Where a helper passes a request on, it says no more than that.
        self._user = f"user {_OWN}, or root"
        own = ("localhost", socket.gethostname(), *names)
        self._own = _normal(own)
        self._names = self._own | _normal(settings.names)
        self._origins = frozenset(map(str.lower, settings.origins))
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self.tells_addresses = bool(self._proxies) or of_addresses(settings).limits_anything
        """Whether those who show no key are told apart by address."""

    def admit(self, request: HttpRequest) -> web.Response | None:
        """Refuse names that are not this node's, what pages of other origins send, unless they are allowed, and who needs a key.

        Return the answer where such a page's browser asks first whether it may (a CORS preflight).
        """
        headers, said = request.headers, self._said_in(request)
        host = headers.get("host", "")
        if not said.named:
            raise NotAllowed(
                f"{host[:100]!r} is not a name of this node: use its address or localhost, or add the name to web.names"
            )
        origin = headers.get("origin")
        if origin is None or _same_origin(origin, host):
            self._identify(request, said)
            return None
        if _ANY in self._origins or origin.lower() in self._origins:
            request[SHARED] = _shared(_ANY if _ANY in self._origins else origin.lower())
            if (preflight := _preflight(request)) is not None:
                return preflight
        elif request.method not in _READING:
            raise NotAllowed(
                f"requests from pages of another origin are refused: {origin[:100]!r} is not in the setting web.origins"
            )
        self._identify(request, said)
        return None

    def _identify(self, request: HttpRequest, said: _Said) -> None:
        """Note who asks with the request; raise an `AuthError` where a good key is wanted."""
        # On the path of every request: the common cases first.
        everybody = self._keyless is Keyless.EVERYBODY and not self.tells_addresses
        machine = self._keyless is Keyless.MACHINE
        if not said.key and (everybody or (machine and _is_person(self._owner(request, said)))):
            request[PRINCIPAL] = ANYBODY
            if isinstance(request, LaneRequest):
                # It says the same with every request that begins so, and who holds the connection was asked once.
                request.head.admitted = True
            return
        free, near = is_open(request.path), partial(self.near, request)
        found = ANYBODY if free else self.holder(said.key, near)
        if self.tells_addresses and found is ANYBODY and not (free or near()):
            caller: OwnedConnection = request.protocol  # type: ignore[assignment]  # ours, in both servers
            told = request.headers.getall(FORWARDED_FOR, ())
            found = self.stranger(self._proxies.caller_of(caller.address, told))
        request[PRINCIPAL] = found

    def stranger(self, address: str) -> Principal:
        """Return who asks without a key, and is no person on this machine."""
        return Principal(address=network_of(address)) if address else ANYBODY

    def holder(self, shown: str, near: Callable[[], bool] | None) -> Principal:
        """Return who shows a key, or nothing; raise an `AuthError`.

        `near` says whether a person on this machine does. Where it is `None`, nobody may do without a key.
        """

        def keyless() -> bool:
            by_place = self._keyless is Keyless.MACHINE
            everybody = self._keyless is Keyless.EVERYBODY
            return near is not None and (near() if by_place else everybody)

        return holder_of(shown, self._keys, self._wall(), keyless=keyless)

    def looks(self, request: web.Request) -> bool:
        """Whether the caller may look at this node now: a key may have ended since the request came."""
        try:
            self.holder(shown_key(request.headers), partial(self.near, request)).look()
        except AuthError:
            return False
        return True

    def change(self, request: web.Request) -> None:
        """Admit only who may change this node: its own user or root on this machine, an operator's key, or the control token."""
        asking = request.get(PRINCIPAL, ANYBODY)
        if asking.key is not None and not asking.is_operator:
            raise RoleNotAllowed(
                f"this requires an operator's key; your key has the role {asking.key.role}"
            )
        shown = asking.is_operator or self.holds_token(request)
        if not shown and _from_another_page(request):
            raise NotAllowed("pages of another origin need the control token")
        if not shown and not self.local(request):
            raise NotAllowed(
                "this requires a process of the node's user or root on its machine, or the control token: send "
                "'Authorization: Bearer TOKEN' with the content of control.token in the node's data directory"
            )
        if request.body_exists and request.content_type not in TAKEN_FOR_JSON:
            raise UnsupportedMediaType("send this as application/json")

    def who(self, request: web.Request) -> str:
        """Say who changes something, for the audit log: a key's name, or the user whose process calls."""
        asking: Principal = request.get(PRINCIPAL, ANYBODY)
        if asking.name:
            return asking.name
        owner = self._owner(request, self._said_in(request))
        return self._user if owner is None else f"user {owner}"

    def local(self, request: web.Request) -> bool:
        """Whether the caller is a process of this node's own user, or of root, on this machine, and speaks for itself."""
        # A browser may be led here by a name that is allowed because a proxy uses it.
        if _from_another_page(request):
            return False
        owner = self._owner(request, self._said_in(request))
        return owner is not None and owner in (_ROOT, _OWN)

    def near(self, request: HttpRequest) -> bool:
        """Whether the caller is a process of a person on this machine, and speaks for itself; services' users are no people."""
        return _is_person(self._owner(request, self._said_in(request)))

    def near_at(self, here: Endpoint, there: Endpoint) -> bool:
        """Whether the process at the other end of a connection is a person's on this machine."""
        same = same_machine(there.address, here.address)
        return same and _is_person(self._sockets.owner(there, here))

    def _owner(self, request: HttpRequest, said: _Said) -> int | None:
        """Return whose process calls, `None` where that is not known or it may call for others."""
        transport = request.transport
        if transport is None or not said.directly:
            return None
        caller: OwnedConnection = request.protocol  # type: ignore[assignment]  # ours, in both servers
        if caller.owner == UNASKED:
            caller.owner = self._owner_of(transport)
        return caller.owner

    def _said_in(self, request: HttpRequest) -> _Said:
        """Return what its headers say, once where the same came before. Whether a key is good is looked up each time."""
        derived = request.head.derived if isinstance(request, LaneRequest) else {}
        found: _Said | None = derived.get(_Said)
        if found is not None:
            return found
        headers = request.headers
        host = headers.get("host", "localhost")
        said = derived[_Said] = _Said(
            named="host" not in headers or _ANY in self._names or _is_ours(host, self._names),
            directly=not any(name in headers for name in _FORWARDED) and _is_ours(host, self._own),
            key=shown_key(headers),
        )
        return said

    def _owner_of(self, transport: asyncio.BaseTransport) -> int | None:
        caller = transport.get_extra_info("peername")
        here = transport.get_extra_info("sockname")
        if not isinstance(caller, tuple) or not isinstance(here, tuple):
            return None
        if not same_machine(caller[0], here[0]):
            return None
        return self._sockets.owner(_endpoint(caller), _endpoint(here))

    def holds_token(self, request: web.Request) -> bool:
        """Whether the caller shows the control token, and so could read this node's own files."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        matches = hmac.compare_digest(given.encode(errors="surrogateescape"), self._token)
        return scheme.lower() == "bearer" and bool(self._token) and matches


def _is_person(owner: int | None) -> bool:
    return owner is not None and (owner in (_ROOT, _OWN) or owner in _PEOPLE)


def shown_key(headers: Mapping[str, str]) -> str:
    """Return the key that a caller shows, as OpenAI's clients do or as Anthropic's; empty for none."""
    said = headers.get("authorization")
    if said is None:
        return headers.get("x-api-key", "")
    scheme, _, given = said.partition(" ")
    return given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _normal(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower().rstrip(".") for name in names if name)


def _shared(origin: str) -> dict[str, str]:
    """Return the headers by which pages of an origin may read an answer (Fetch standard, 3.3)."""
    vary = {} if origin == _ANY else {"Vary": "Origin"}
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*", **vary}


def _preflight(request: HttpRequest) -> web.Response | None:
    """Return the answer to a browser that asks what a page may send, `None` where it sends already."""
    if request.method != "OPTIONS" or "access-control-request-method" not in request.headers:
        return None
    headers = {
        "access-control-allow-methods": _SHARED_METHODS,
        "access-control-max-age": str(_SHARED_SECONDS),
    }
    # A star would not stand for `Authorization`.
    names = request.headers.get("access-control-request-headers", "")
    if _HEADER_NAMES.fullmatch(names):
        headers["access-control-allow-headers"] = names
    if request.headers.get("access-control-request-private-network") == "true":
        headers["access-control-allow-private-network"] = "true"
    return web.Response(headers=headers)


def _endpoint(name: tuple[Any, ...]) -> Endpoint:
    """Read a socket's name: address and port, and behind the flow of IPv6 its scope."""
    return Endpoint(name[0], name[1], name[3] if len(name) > 3 else 0)


def _from_another_page(request: web.Request) -> bool:
    """Whether a browser says that a page of another origin sends this; where it leaves out `Origin`, `Sec-Fetch-Site` tells."""
    origin = request.headers.get("origin")
    if origin is not None:
        return not _same_origin(origin, request.headers.get("host", ""))
    return request.headers.get("sec-fetch-site", "none").strip().lower() not in _OWN_PAGE


def is_own_address(host: str) -> bool:
    """Whether `host` is `localhost`, this machine's own name, or an address of one of its interfaces; asks no DNS.

    A socket can be bound to an address exactly when it is this machine's (unless the operator set ip_nonlocal_bind).
    """
    if host.lower().rstrip(".") in ("localhost", socket.gethostname().lower()):
        return True
    address = _address(host)
    if address is None or address.is_unspecified or address.is_multicast:
        return False
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Read an IP literal; an IPv4 address in IPv6's clothes counts as what it is."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


@lru_cache(maxsize=1024)
def _is_ours(header: str, names: frozenset[str]) -> bool:
    named = _HOST.fullmatch(header)
    host = (named[1] or named[2]).lower() if named else ""
    return _address(host) is not None or host.rstrip(".") in names


@lru_cache(maxsize=1024)
def _same_origin(origin: str, host: str) -> bool:
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:
        return False
    return bool(netloc) and netloc.lower() == host.lower()


@lru_cache(maxsize=4096)
def same_machine(caller: str, here: str) -> bool:
    """Whether both ends of a connection are one machine: it calls its own address from that very address."""
    theirs, ours = _address(caller), _address(here)
    return theirs is not None and (theirs.is_loopback or theirs == ours)
