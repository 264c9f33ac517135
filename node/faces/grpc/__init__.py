"""Faces over gRPC: one file per face, found by its name; it listens at the address in `faces.NAME`.

A face module defines `SERVICE`, the name of its gRPC service, and `handlers(context, door) -> Handlers`: for each RPC a coroutine
function of its message and its call, or an async generator function where it answers with many messages. gRPC is not imported
before a face is opened.
"""

import asyncio
import hmac
import logging
import pkgutil
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import orjson

from node.auth.access import Access
from node.auth.principal import ANYBODY, Principal
from node.auth.socket_owner import Endpoint
from node.config.addresses import HostPort, host_port
from node.config.settings import FacesSettings
from node.faces import Serving
from node.faces.errors import KNOWN, refusal
from node.faces.model_call import ModelAnswer
from node.secrets import secret_files
from router.canonical.text import MAX_STOP_CHARACTERS, MAX_STOPS
from router.errors import BadRequest, WorkerUnable
from router.openai import body as bodies
from router.openai.prefixes import NONE, prefixes_of
from router.openai.usage import TEXT
from router.peers import headers
from router.peers.headers import DROPPED, HEARD, VIA
from router.requests import Kind, PassedHeaders, Request
from router.translate.verbatim import Verbatim

log = logging.getLogger("modelvine.rpc")

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""All faces: the modules of this folder. Each has a setting of its name."""

Handlers = Mapping[str, Callable[[Any, Any], Any]]

_PEER = re.compile(r"ipv[46]:(?:\[([0-9A-Fa-f:.%]+)\]|([0-9.]+)):(\d{1,5})")

_CODES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""gRPC's status for each of HTTP's; INTERNAL for every other."""


def places(settings: FacesSettings) -> Mapping[str, HostPort]:
    """Return the address of each face that the settings enable."""
    faces = settings.model_dump()
    return {name: host_port(faces[name]) for name in NAMES if faces[name]}


async def open_faces(
    context: Serving, closing: AsyncExitStack, leaving: asyncio.Event
) -> Mapping[str, HostPort]:
    """Open the faces in the settings until `closing` closes them, and return their addresses; raise `OSError` with a message."""
    opened: dict[str, HostPort] = {}
    for name, address in places(context.settings.faces).items():
        try:
            opened[name] = await open_face(name, context, address, closing, leaving)
        except OSError as error:
            raise OSError(f"{error} (faces.{name})") from error
    return opened


async def open_face(
    name: str,
    context: Serving,
    address: HostPort,
    closing: AsyncExitStack,
    leaving: asyncio.Event | None = None,
) -> HostPort:
    """Open one face until `closing` closes it, and return its address; raise `OSError` with a message.

    Once `leaving` is set, it takes no more calls, and lets those in flight finish within `node.drain_timeout`.
    """
    try:
        rpc = import_module("router.rpc.server")
        face = import_module(f"{__name__}.{name}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("grpc", "google"):
            raise
        needs = f"faces.{name} needs {error.name!r}, which is not installed"
        raise OSError(f"{needs}: make extras, or pip install 'modelvine[grpc]'") from error
    file = context.settings.faces.model_dump()[f"{name}_keys"]
    door = RpcAccess(context.access, read_keys(f"faces.{name}_keys", file), address)
    served = rpc.serving(
        face.SERVICE,
        face.handlers(context, door),
        str(address),
        refuse=refuse,
        leaving=leaving,
        leave_within=context.settings.node.drain_timeout,
    )
    door.place = HostPort(address.host, await closing.enter_async_context(served))
    return door.place


@dataclass(frozen=True, slots=True)
class RpcKeys:
    """The keys of a face's file; without any, no key is needed."""

    known: frozenset[bytes] = frozenset()

    def open_to(self, key: str) -> bool:
        """Return whether a key is accepted. It is compared with all keys in constant time, so that timing reveals nothing."""
        presented = key.encode()
        return (
            not self.known
            or sum(hmac.compare_digest(presented, known_key) for known_key in self.known) > 0
        )


def read_keys(setting: str, file: str) -> RpcKeys:
    """Read the file of a setting, one key on each line, none if it names no file; raise `OSError` or `SecretRefused`."""
    if not file:
        return RpcKeys()
    try:
        lines = secret_files.read(Path(file), lenient=True).splitlines()
    except FileNotFoundError as error:
        raise OSError(f"{setting} is {file}: there is no such file") from error
    keys = frozenset(line.strip().encode() for line in lines if line.strip())
    if not keys or any(b"@" in key or not key.isascii() for key in keys):
        raise OSError(
            f"{setting} is {file}: it must hold keys in ASCII, one on each line, without @"
        )
    return RpcKeys(keys)


class RpcAccess:
    """Access check of a face: for holders of a key of its file or of the site, and for callers that need no key."""

    def __init__(self, access: Access, keys: RpcKeys, address: HostPort) -> None:
        self._access = access
        self._keys = keys
        self.place = address
        """The address at which the face listens."""

    def holder(self, key: str, call: Any) -> Principal:
        """Return the principal of the caller, which sent `key` or an empty text; raise an `AuthError`."""
        if self._keys.known:
            return ANYBODY if self._keys.open_to(key) else self._access.with_key(key, None)
        near = partial(self._is_near, call)
        principal = self._access.with_key(key, near)
        if principal is ANYBODY and self._access.tells_addresses and not near():
            peer_match = _PEER.fullmatch(unquote(call.peer()))
            return self._access.without_key((peer_match[1] or peer_match[2]) if peer_match else "")
        return principal

    def _is_near(self, call: Any) -> bool:
        peer_match = _PEER.fullmatch(unquote(call.peer()))
        if peer_match is None:
            return False
        caller = Endpoint(peer_match[1] or peer_match[2], int(peer_match[3]))
        # If the face listens at all addresses, a caller on this machine connects to the same address that it connects from.
        host = self.place.host if _is_address(self.place.host) else caller.address
        return self._access.is_local_connection(Endpoint(host, self.place.port), caller)


def _is_address(host: str) -> bool:
    try:
        return not ip_address(host).is_unspecified
    except ValueError:
        return False


def refuse(error: Exception) -> Exception:
    """Return the `RpcRefused` that a caller sees of an error; an unknown error is logged, and shows nothing of itself."""
    refused = import_module("router.rpc.server").RpcRefused
    if not isinstance(error, KNOWN):
        # The text of an exception may quote the request; the traceback's places say enough.
        traceback_text = "".join(traceback.format_tb(error.__traceback__))
        log.error("an RPC failed with %s:\n%s", type(error).__qualname__, traceback_text)
    http_refusal = refusal(error)
    again = float(http_refusal.headers.get("retry-after", "0"))
    unserved = isinstance(error, WorkerUnable) and error.param == "model"
    code = "UNIMPLEMENTED" if unserved else _CODES.get(http_refusal.status, "INTERNAL")
    failure: Exception = refused(code, http_refusal.body["error"]["message"], pushback=again)
    return failure


def stops_of(texts: Iterable[str], param: str) -> list[str]:
    """Return the stop strings that are not empty; raise `BadRequest` where they are too many or too long."""
    stops = [stop for stop in texts if stop]
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        message = f"at most {MAX_STOPS} stop strings of {MAX_STOP_CHARACTERS:,} characters each"
        raise BadRequest(message, param=param)
    return stops


def name_dropped(
    call: Any, answer: ModelAnswer, names: Mapping[str, str], unheard: Iterable[str] = ()
) -> None:
    """List the parameters without effect in the trailing metadata, by the caller's names.

    `names` maps OpenAI's names to the caller's; parameters not in it did not come from the caller. `unheard` are parameters
    without an equivalent in OpenAI's form, which only a worker of the caller's protocol understands.
    """
    dropped = answer.routed.answer.headers.get(DROPPED, "").split(", ")
    heard_names = answer.routed.answer.headers.get(HEARD, "").split(", ")
    lost = [names[name] for name in dropped if name in names]
    if not answer.verbatim:
        known_names = {names.get(name, name) for name in heard_names}
        lost += [name for name in unheard if name not in known_names]
    if lost:
        call.set_trailing_metadata(((DROPPED, ", ".join(dict.fromkeys(lost))),))


def request_of(
    context: Serving,
    kind: Kind,
    fields: Mapping[str, object],
    metadata: Mapping[str, str],
    verbatim: Verbatim | None = None,
    principal: Principal = ANYBODY,
) -> Request:
    """Return the request of an RPC, with `fields` as OpenAI's body; `metadata` is the RPC's metadata.

    `verbatim` is the same request in the caller's own protocol.

    Raise what `bodies.read` and `extended_via` raise, and what `Principal.check_models` raises for a model that is not allowed.
    """
    body = orjson.dumps(fields)
    parsed = bodies.read(body, "application/json")
    principal.check_models(parsed.model)
    passed = headers.trace_of(metadata)
    passed[VIA] = headers.extended_via(metadata.get(VIA, ""), context.peer)
    background = principal.key is not None and principal.key.background
    if background:
        passed[headers.PRIORITY] = headers.BACKGROUND
    return Request(
        id=uuid4().hex,
        kind=kind,
        model=parsed.model,
        body=body,
        content_type="application/json",
        stream=parsed.stream,
        caller=principal.key.hash if principal.key else "",
        background=background,
        verbatim=verbatim,
        prefixes=prefixes_of(parsed.fields, len(body)) if kind in TEXT else NONE,
        passed=PassedHeaders(passed),
    )
