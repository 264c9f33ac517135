"""Calls that the lane takes at one listener: which paths they have, how they are read and who answers them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from node.faces import Serving
from node.faces.encoder import SpokenAnswer
from node.lane.request import HttpRequest, LaneRequest
from router.http.write_batch import WriteBatch
from router.requests import Kind, Request

CallHandler = Callable[[HttpRequest], Awaitable[web.StreamResponse]]
"""A handler that either server may call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCall:
    """A call of a model that the lane may take.

    `read` reads it without waiting, returns `None` where only `handler` can, and raises what `handler` answers with an error.
    `spoken` says how its answer is said, where a handler goes on with it: of a worker's in one piece no header says more.
    """

    context: Serving
    kind: Kind
    to_peer: bool
    handler: CallHandler
    read: Callable[[LaneRequest], Request | None]
    spoken: Callable[[Request], SpokenAnswer] = SpokenAnswer

    def at(self, path: str) -> web.RouteDef:
        """Return the route of the call."""
        return web.post(path, self.handler, lane=self)


@dataclass(frozen=True, slots=True)
class LaneCalls:
    """What connections of the lane need of their listener's application.

    `admit` raises where a request is not let in. `answer` is the outermost middleware, and `leaving` says that each answer ends
    its connection.
    """

    calls: Mapping[str, LaneCall]
    app: web.Application
    admit: Callable[[HttpRequest], object]
    answer: Callable[[HttpRequest, CallHandler], Awaitable[web.StreamResponse]]
    leaving: Callable[[], bool]
    batch: WriteBatch = field(default_factory=WriteBatch)
    """Answers to direct calls are sent with it."""


LANE = web.AppKey("lane", LaneCalls)
"""Where an application has its own."""
