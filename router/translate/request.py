"""Mapping of a request to a protocol that lacks some of it: a field is translated, done by the node, dropped or refused.

Dropped fields are named. A dialect defines the translation; the rules that hold for all dialects are here.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import TypeVar

from router.canonical import text
from router.canonical.text import SHAPING, Sampling, TextRequest
from router.canonical.values import WithOtherFields, dropped_names
from router.errors import BadRequest, WorkerUnable
from router.openai.text_writer import refused
from router.peers.headers import DROPPED, HEARD
from router.requests import Kind, Request
from router.workers import Worker

_A = TypeVar("_A")
_T = TypeVar("_T")

_SAMPLING = tuple(sorted(field.name for field in fields(Sampling)))


@dataclass(frozen=True, slots=True)
class MappedRequest:
    """The translated request: one body or several, with a path or the name of a call.

    `dropped` are the parameters that the worker's protocol lacks; `streamed` says that the worker is to stream. `unstreamed` is
    the body that asks for the same in one piece, if workers of this protocol may refuse to stream. `heard` are parameters that
    OpenAI's form lacks.
    """

    path: str
    bodies: tuple[Mapping[str, object], ...]
    dropped: tuple[str, ...] = ()
    streamed: bool = False
    unstreamed: Mapping[str, object] | None = None
    heard: tuple[str, ...] = ()

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer that name parameters."""
        return parameter_headers(self.dropped, self.heard)


def parameter_headers(dropped: Sequence[str], heard: Sequence[str] = ()) -> Mapping[str, str]:
    """Return the headers of an answer that name parameters without effect, and those that OpenAI's form lacks."""
    headers = {DROPPED: dropped, HEARD: heard}
    return {header: ", ".join(names) for header, names in headers.items() if names}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMapping:
    """The translation of requests for text to one protocol, which people call `name`.

    `mapped` translates a request. Refused before it are other `kinds`, tools and JSON schemas unless the protocol has `tools`
    and `schemas`, and fields that shape the answer unless they are among `shaping`, those that the protocol has.
    """

    name: str
    kinds: frozenset[Kind]
    mapped: Callable[[TextRequest, Worker], MappedRequest]
    tools: bool = False
    schemas: bool = False
    shaping: frozenset[str] = frozenset()

    def read(self, request: Request, worker: Worker) -> tuple[TextRequest, MappedRequest]:
        """Read a request and translate it for the worker; raise `WorkerUnable`, or `WorkerRejected` for a wrong value."""
        if request.kind not in self.kinds:
            raise unserved_error(self.name, request.kind)
        text_request = read_or_reject(text.read, request)
        refuse_unread_fields(self.name, text_request, SHAPING - self.shaping)
        if text_request.schema is not None and not self.schemas:
            raise self.unsupported("response_format")
        if text_request.tools and text_request.tool_choice != "none" and not self.tools:
            raise self.unsupported("tools")
        return text_request, self.mapped(text_request, worker)

    def unsupported(self, param: str) -> WorkerUnable:
        """Return the refusal of a parameter without which the answer would be of another kind."""
        return WorkerUnable(f"{self.name} does not support `{param}`", param=param)


def read_or_reject(read: Callable[[_A], _T], source: _A) -> _T:
    """Read a request, or fields of one; raise `WorkerRejected`, which names the field, for a wrong value."""
    try:
        return read(source)
    except BadRequest as error:
        raise refused(str(error), error.param or "") from error


def refuse_unread_fields(name: str, request: WithOtherFields, shaping: Set[str]) -> None:
    """Raise `WorkerUnable` if a field of `shaping` was not read: without it the answer would be of another kind."""
    for other in sorted(request.others):
        if other in shaping:
            raise WorkerUnable(f"{name} does not support `{other}`", param=other)


def refuse_tool_calls(name: str, message: Mapping[str, object]) -> None:
    """Raise `WorkerUnable` for a message with tool calls, which the protocol called `name` lacks."""
    if message.get("tool_calls") or message.get("function_call"):
        raise WorkerUnable(f"{name} does not support tool calls in messages", param="messages")


def unserved_error(name: str, kind: Kind) -> WorkerUnable:
    """Return the refusal of a kind of request that a protocol lacks."""
    return WorkerUnable(f"a {name} worker does not serve /v1/{kind}", param="model")


def unheard(request: TextRequest, *known: str) -> tuple[str, ...]:
    """Return the parameters that are dropped from a request whose worker knows only these fields of `Sampling`."""
    sampling = request.sampling
    names = (
        name for name in _SAMPLING if name not in known and getattr(sampling, name) is not None
    )
    return (*names, *dropped_names(request))
