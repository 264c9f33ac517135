"""Routes: the handler for a method and a path."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from node.web.messages import Fault, Request, Response, StreamResponse

Answer = Response | StreamResponse
Handler = Callable[[Request], Awaitable[Answer]]


class NoPath(Fault):
    """Nothing is served under this path."""


class NoMethod(Fault):
    """The path exists for other methods: `allowed`."""

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(method)
        self.method, self.allowed = method, allowed


@dataclass(frozen=True, slots=True)
class RouteDef:
    """One thing that is served. A path that ends in `/*` stands for all that go on from there, by one character or more."""

    method: str
    path: str
    handler: Handler


def get(path: str, handler: Handler) -> RouteDef:
    """Return how something is read; whoever asks with HEAD is told the same without its body."""
    return RouteDef("GET", path, handler)


def post(path: str, handler: Handler) -> RouteDef:
    """Return how something is done."""
    return RouteDef("POST", path, handler)


class Routes:
    """All that is served, by path and method."""

    def __init__(self, definitions: Iterable[RouteDef]) -> None:
        self._exact: dict[str, dict[str, RouteDef]] = {}
        self._beginnings: dict[str, dict[str, RouteDef]] = {}
        for route in definitions:
            starred = route.path.endswith("/*")
            table = self._beginnings if starred else self._exact
            methods = table.setdefault(route.path.removesuffix("*"), {})
            methods[route.method] = route
            if route.method == "GET":
                methods["HEAD"] = route

    def find(self, request: Request) -> RouteDef:
        """Return what answers a request, and note in it what stands in for a star; raise `NoPath` or `NoMethod`."""
        methods = self._exact.get(request.path)
        if methods is None:
            methods = self._unusual(request)
        route = methods.get(request.method)
        if route is None:
            raise NoMethod(request.method, tuple(sorted(methods)))
        return route

    def _unusual(self, request: Request) -> dict[str, RouteDef]:
        path = unquote(request.path)
        if (methods := self._exact.get(path)) is not None:
            return methods
        for beginning, methods in self._beginnings.items():
            if path.startswith(beginning) and path != beginning:
                request.tail = path.removeprefix(beginning)
                return methods
        raise NoPath(path)
