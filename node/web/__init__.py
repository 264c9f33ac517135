"""HTTP/1.1 server: what a handler sees of a request, what it gives back, and the server around it.

Written for the two things that a node serves: short JSON, and answers of models, which stream. A body is taken in no faster
than its handler reads it, a stream is sent no faster than its caller reads it, and every wait has an end.
"""

from node.web.limits import Crowd
from node.web.messages import (
    BodyBroken,
    Fault,
    Full,
    Headers,
    HeadLimit,
    HttpRequest,
    Malformed,
    NoRoom,
    Response,
    StreamResponse,
    TooSlow,
    UrlLimit,
    Wire,
)
from node.web.server import (
    Answer,
    App,
    Handler,
    NoMethod,
    NoPath,
    RouteDef,
    Routes,
    Server,
    get,
    post,
)
from node.web.settings import WebSettings

__all__ = [
    "Answer",
    "App",
    "BodyBroken",
    "Crowd",
    "Fault",
    "Full",
    "Handler",
    "HeadLimit",
    "Headers",
    "HttpRequest",
    "Malformed",
    "NoMethod",
    "NoPath",
    "NoRoom",
    "Response",
    "RouteDef",
    "Routes",
    "Server",
    "StreamResponse",
    "TooSlow",
    "UrlLimit",
    "WebSettings",
    "Wire",
    "get",
    "post",
]
