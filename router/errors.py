"""Errors of the router. Every error says whether another worker might succeed.

RouterError
├── BadRequest              the caller's fault; no worker would take it
│   ├── UnsupportedContentType  its content type is none that model calls have
│   └── TooManyParts        its body is short enough, but has too many values or parts
├── UnknownModel            no live or remembered node offers this name
│   └── NoProvider          no node offers a service of this type
├── NobodyServes            the name is known, but no live and willing node serves it now
├── NoCapacity              all suitable workers are full; try again after `retry_after` seconds
└── WorkerError             one attempt ended badly
    ├── WorkerUnreachable   no connection, or one that fell silent
    ├── WorkerTimeout       connected, but too slow in one named phase
    ├── WorkerBusy          it said that it is full
    ├── WorkerLoading       it said that it is still loading the model
    ├── WorkerAway          its node is well, but no worker of this model answers there
    ├── WorkerFailed        it answered with an error of its own, or invalidly
    │   ├── WorkerIncomplete it said that its text is not complete
    │   └── WorkerDied      it took the request, and hung up before it answered
    ├── WorkerStale         it no longer serves this model: our catalog is behind
    ├── Looped              the request returned to a node that it had passed
    ├── WorkerUnable        its protocol or model does not support a parameter; another worker's may
    ├── WorkerRejected      it refused the request itself; every worker would
    │   └── WorkerTooSmall  the request is larger than it, or a proxy before it, takes; another may take it
    ├── PoisonousRequest    two workers died of the request; it is given to no third
    └── AnswerBroken        it broke off after the first byte had gone to the caller
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar


class RouterError(Exception):
    """The root of this package's errors. `attempts` is the number of workers tried before it left the router."""

    attempts: int = 0
    deaths: int = 0
    """Number of workers that died of the request."""
    at: str = ""
    """Worker or node that failed last, for the operator: a worker's address without its path, or a node's id."""
    hopeful: bool = False
    """Whether an absent worker may be back in a moment, so that waiting is worth it."""


class BadRequest(RouterError):
    """The request is invalid; `param` names the field if it is known."""

    status: ClassVar[int] = 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedContentType(BadRequest):
    """Model calls are not read from this content type."""

    status = 415


class TooManyParts(BadRequest):
    """The body has more values, or its form more parts, than are read."""

    status = 413


class UnknownModel(RouterError):
    """No node serves a model of this name; `nearest` lists similar names.

    If the caller ruled out all replicas that offer it, `scope` says how, and `nearest` may list them.
    """

    def __init__(self, model: str, nearest: Sequence[str] = (), *, scope: str = "") -> None:
        hint = f"; did you mean {', '.join(nearest)}?" if nearest else ""
        super().__init__(f"no node serves the model {model!r}{scope}{hint}")
        self.nearest = tuple(nearest)


class NoProvider(UnknownModel):
    """No service of this type is registered; an operator has to register one."""

    def __init__(self, kind: str) -> None:
        RouterError.__init__(
            self,
            f"no node offers a service of type {kind!r}; register one: modelvine register PROJECT NAME URL --type {kind}"
            + (", or run: modelvine provide batch" if kind == "batch" else ""),
        )
        self.nearest = ()


class NobodyServes(RouterError):
    """The model is known, but no live node serves it now."""

    def __init__(self, message: str, *, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NoCapacity(RouterError):
    """All replicas of the model are full."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class PeerError:
    """An error as another node reported it to this one; it is passed on unchanged.

    `status` is the HTTP status and `code` that of `/api/v0`, 0 if not given; `error` is OpenAI's error object, `message` the
    text in it, and `retry_after` the seconds of the header, 0 without it.
    """

    message: str
    error: Mapping[str, object]
    status: int = 0
    code: int = 0
    retry_after: int = 0


class WorkerError(RouterError):
    """An attempt failed. `elsewhere` says whether another worker might succeed; `peer_error`, how another node reported it."""

    elsewhere: ClassVar[bool] = True
    blames_worker: ClassVar[bool] = True
    peer_error: PeerError | None = None
    sent: bool = True
    """Whether the worker may have begun to work on the request: a retry may then do that work twice."""


class WorkerUnreachable(WorkerError):
    """The connection failed, so nothing was sent; or the connection fell silent after the request was `sent`."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class WorkerTimeout(WorkerError):
    """The worker was reached, but `phase` exceeded its timeout."""

    def __init__(self, phase: str, seconds: float) -> None:
        super().__init__(f"no {phase} within {seconds:g} s")
        self.phase = phase
        self.sent = phase != "connection"


class WorkerBusy(WorkerError):
    """The worker is full. `named` says that `retry_after` is the pause in seconds that the worker requested."""

    blames_worker = False
    sent = False

    def __init__(self, message: str, *, retry_after: float = 1.0, named: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.named = named


class WorkerLoading(WorkerError):
    """The worker is loading the model, for another `eta` seconds if that is known."""

    blames_worker = False
    sent = False

    def __init__(self, eta: float | None = None) -> None:
        super().__init__("the model is still loading")
        self.eta = eta


class WorkerAway(WorkerError):
    """The requested node works, but none of its workers of this model answers."""

    blames_worker = False
    sent = False

    def __init__(self, message: str, *, hopeful: bool = False) -> None:
        super().__init__(message)
        self.hopeful = hopeful


class WorkerFailed(WorkerError):
    """The worker returned an error of its own, or an invalid response."""


class WorkerIncomplete(WorkerFailed):
    """The worker reported that it could not finish its text: TGI's `incomplete_generation`."""

    def __init__(self) -> None:
        super().__init__("the worker's text is not complete")


class WorkerDied(WorkerFailed):
    """The worker accepted the request and closed the connection before a response; the request may have crashed it."""

    deaths = 1
    hung_up = False
    """Whether it was this node's own connection that closed, and not one that another node reported."""


class WorkerStale(WorkerError):
    """The peer no longer serves this model: this node's catalog was out of date."""

    blames_worker = False
    sent = False


class Looped(WorkerError):
    """The request returned to a node that it had passed: nodes are registered as each other's workers."""

    blames_worker = False
    sent = False


class WorkerUnable(WorkerError):
    """The worker's protocol or model does not support the parameter `param`; another worker of the model may."""

    blames_worker = False
    sent = False
    code: ClassVar[str] = "unsupported_parameter"
    """OpenAI's error code, which nodes use among themselves, too."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class WorkerRejected(WorkerError):
    """The worker rejected the request; `status` and `body` are the worker's own response."""

    elsewhere = False
    blames_worker = False

    def __init__(self, status: int, body: bytes, message: str = "") -> None:
        super().__init__(message or f"the worker refused the request with status {status}")
        self.status = status
        self.body = body


class WorkerTooSmall(WorkerRejected):
    """The request is larger than the worker, or a proxy in front of it, accepts; another worker may accept it."""

    elsewhere = True
    sent = False

    def __init__(self, body: bytes) -> None:
        message = "the request is larger than the worker, or a proxy in front of it, accepts"
        super().__init__(413, body, message)


class PoisonousRequest(WorkerError):
    """Two workers died during this request before they answered, so no third worker gets it."""

    elsewhere = False
    blames_worker = False


class AnswerBroken(WorkerError):
    """The response broke off after its first byte; the node does not retry it."""

    elsewhere = False
