"""Calls that the lane takes at one listener: their paths, readers and handlers."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from node.faces import Serving
from node.faces.encoder import AnswerForm
from node.lane.request import HttpRequest, LaneRequest
from node.lane.response import EndOfHead
from router.http.write_batch import WriteBatch
from router.requests import Kind, Request

CallHandler = Callable[[HttpRequest], Awaitable[web.StreamResponse]]
"""A handler that either server may call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCall:
    """A model call that the lane may take.

    `read` reads it without waiting, returns `None` if only `handler` can, and raises what `handler` answers with an error.
    `form_of` says how the answer is written where a handler continues the call; a worker's answer in one piece does not need it.
    """

    context: Serving
    kind: Kind
    to_peer: bool
    handler: CallHandler
    read: Callable[[LaneRequest], Request | None]
    form_of: Callable[[Request], AnswerForm] = AnswerForm

    def at(self, path: str) -> web.RouteDef:
        """Return the route of the call."""
        return web.post(path, self.handler, lane=self)


@dataclass(frozen=True, slots=True)
class LaneCalls:
    """What the lane's connections need from their listener's application.

    `admit` raises if a request is not admitted. `answer` is the outermost middleware. `leaving` says whether each answer ends
    its connection.
    """

    calls: Mapping[str, LaneCall]
    app: web.Application
    admit: Callable[[HttpRequest], object]
    answer: Callable[[HttpRequest, CallHandler], Awaitable[web.StreamResponse]]
    leaving: Callable[[], bool]
    batch: WriteBatch = field(default_factory=WriteBatch)
    """Sends the answers to direct calls."""
    end_of_head: EndOfHead = field(default_factory=EndOfHead)


LANE = web.AppKey("lane", LaneCalls)
"""Key of an application's lane calls."""
