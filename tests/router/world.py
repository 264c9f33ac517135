"""Helpers of the router's tests: one machine, its workers, and its peers, all real and on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from registry.records import Reach, Service
from registry.signing import Identity
from router.answer import Answer
from router.attempt import Attempt, AttemptContext
from router.dialects import Dialect
from router.outcome import Outcome
from router.peers.links import Links
from router.peers.pipes import NoMesh
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.settings import RouterSettings
from router.ssrf_guard import SsrfGuard
from router.workers import Worker

OWN = Identity(bytes(32))
MODEL = "llama"
QUICK = RouterSettings(
    connect_timeout=1,
    first_byte_timeout=5,
    idle_timeout=5,
    total_timeout=30,
    queue_timeout=1,
    ready_timeout=0,
)


def chat(
    model: str = MODEL, *, stream: bool = False, kind: Kind = Kind.CHAT, body: bytes | None = None
) -> Request:
    """Return a request for a chat, or of another kind."""
    template = b'{"messages":[{"role":"user","content":"hi"}],"model":"%b","stream":%b}'
    content = template % (model.encode(), b"true" if stream else b"false") if body is None else body
    return Request(
        id="r-1",
        kind=kind,
        model=model,
        body=content,
        content_type="application/json",
        stream=stream,
    )


def own(
    api: str, *, model: str = "", cid: str = "", capacity: int = 0, dialect: str = "openai_http"
) -> Candidate:
    """Return a worker of this machine as a candidate."""
    service = Service("p", MODEL, cid)
    worker = Worker(service, api, dialect=dialect, model=model, capacity=capacity)
    return Candidate(OWN.peer, service, worker)


class Books(AttemptContext):
    """A runner that books attempts without sending them."""

    def send(self, attempt: Attempt) -> AbstractAsyncContextManager[Answer]:
        raise NotImplementedError(attempt.number)

    def observe(self, outcome: Outcome) -> None:
        pass

    def begin(
        self, candidate: Candidate, request: Request | None = None, *, holds_slot: bool = False
    ) -> Attempt:
        """Begin an attempt; the caller ends it."""
        sent = request or chat()
        attempt = Attempt(self, sent, candidate, number=1, others=(), holds_slot=holds_slot)
        attempt.begin()
        return attempt


@asynccontextmanager
async def links(
    settings: RouterSettings = QUICK, guard: SsrfGuard | None = None
) -> AsyncIterator[Links]:
    """Yield the links of a node that knows no other."""
    made = Links(
        identity=OWN,
        peers=NoMesh({OWN.peer: Reach()}),
        settings=settings,
        guard=guard,
    )
    try:
        yield made
    finally:
        await made.close()


async def whole(answer: Answer) -> bytes:
    """Read an answer to its end."""
    return answer.first + b"".join([chunk async for chunk in answer.rest])


async def ask(dialect: Dialect, request: Request, candidate: Candidate) -> tuple[Answer, bytes]:
    """Have a dialect answer a request; return the answer, and its whole body."""
    async with dialect.answer(request, candidate) as answer:
        return answer, await whole(answer)


async def until(true: Callable[[], bool], within: float = 10.0) -> float:
    """Wait until `true` returns true, at most `within` seconds; return how long it took."""
    clock = asyncio.get_running_loop().time
    began = clock()
    async with asyncio.timeout(within):
        while not true():  # noqa: ASYNC110 (whatever is waited for signals nobody)
            await asyncio.sleep(0.005)
    return clock() - began
