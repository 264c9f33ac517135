"""Exchange with an HTTP worker: what every dialect over HTTP has in common.

There are four time limits: for connecting and for the first byte, before which every error is a failed attempt; then for the
silence between two bytes and for the whole answer, after which the answer is broken. Silence does not count while the caller
is slow.
"""

import math
from collections.abc import Awaitable, Callable
from types import AsyncGeneratorType

from registry.values import value_class
from router.answer import NOTHING, Answer, Flow, Listener, Route
from router.errors import (
    AnswerBroken,
    WorkerDied,
    WorkerError,
    WorkerFailed,
    WorkerTimeout,
    WorkerUnreachable,
)
from router.http.answer_headers import COMPRESSED, NO_HEADERS, HeadFacts, facts_of, is_encoded
from router.http.cut_through import CutThrough
from router.http.errors import CannotConnect, ConnectTimeout, HttpError, HungUp, NotHttp, WaitEnded
from router.http.pool import ConnectionPool
from router.http.reply import Reply
from router.http.timers import Deadlines, Timers
from router.openai.sse import DoneDetector
from router.settings import RouterSettings

SMALL_BYTES = 64 * 1024
"""Size up to which an answer of known length is handed over in one piece."""

REFUSALS = frozenset({400, 413, 415, 422})
"""Statuses that find fault with the request itself: every worker would say the same, except of its size (413)."""

_END_SECONDS = 2.0  # for which a worker may keep a stream open behind its `[DONE]`, before its connection is cut

EVENT_STREAM = "text/event-stream"
JSON = "application/json"


@value_class
class Call:
    """One outgoing request."""

    pool: ConnectionPool
    head: bytes
    body: bytes


class Exchange:
    """An answer whose headers have come."""

    def __init__(
        self,
        reply: Reply,
        settings: RouterSettings,
        deadline: float,
        timers: Timers,
    ) -> None:
        self._reply = reply
        self._settings = settings
        self._deadline = deadline
        self._loop = timers.loop
        self._timers = timers
        self._timer_slot: int | None = None
        self._idle_since = math.inf
        self._overdue = ""
        self._done_detector: DoneDetector | None = None
        self._is_done = self._is_closed = False
        """Whether the stream has come up to its `[DONE]`, and whether its reader has left."""
        self.broken: AnswerBroken | None = None
        self.status = reply.status
        facts = facts_of(reply.headers)
        self.content_type, self._headers = facts.content_type, facts.shown
        self.streamed = self.content_type.startswith(EVENT_STREAM)
        self.length = reply.length

    def header(self, name: str) -> str:
        """Return a header of the answer by its lower-case name, empty if it has none."""
        return self._reply.headers.get(name, "")

    def take_for(self, content_type: str) -> None:
        """Take the answer for one of this type, whatever its headers say."""
        self.content_type, self.streamed = content_type, content_type == EVENT_STREAM

    def end_at_done(self) -> None:
        """End the stream at its `[DONE]`, whether or not the worker ends it there."""
        self._done_detector = DoneDetector()

    def look_for_done(self, chunk: bytes) -> bool:
        """Return whether the stream is over at its `[DONE]`, with these bytes."""
        if self._done_detector is not None and self._done_detector.feed(chunk):
            self._is_done = True
        return self._is_done

    def check_encoding(self) -> None:
        """Raise `WorkerFailed` if the body has to be read, and is compressed."""
        readable = self.status <= 299 or self.status in REFUSALS
        if readable and is_encoded(self._reply.headers):
            raise WorkerFailed(COMPRESSED)

    async def read_some(self) -> bytes:
        """Return the next bytes as soon as there are any, `b""` at the end; for use before the first byte is passed on."""
        if self._is_done:
            return b""
        chunk = self._reply.read_nowait() or await self._reply.read_some()
        self.look_for_done(chunk)
        return chunk

    async def peek_first(self) -> bytes:
        """Return the first bytes, without taking them; empty if there are none."""
        return await self._reply.peek_first()

    async def read_up_to(self, limit: int) -> bytes:
        """Read until the end, or until more than `limit` bytes are there."""
        return await self._reply.read_up_to(limit)

    async def read_all(self, limit: int) -> bytes:
        """Read the whole answer; raise `WorkerFailed` if it has more than `limit` bytes."""
        body = await self._reply.read_up_to(limit)
        if not self.ended:
            raise WorkerFailed(f"the answer has more than {limit:,} bytes")
        return body

    @property
    def ended(self) -> bool:
        """Whether nothing is left to read."""
        return self._is_done or self._reply.ended

    def answer(self, first: bytes, route: Route, *, length: int | None = None) -> Answer:
        """Make an answer of the first bytes and the rest; `length` is its total where known. Raise `WorkerFailed`."""
        if not first:
            raise WorkerFailed("the worker's answer is empty")
        if length is not None and length > self._settings.max_answer_bytes:
            raise WorkerFailed("the answer is longer than `max_answer_bytes`")
        rest = NOTHING if self.ended else self.rest(len(first))
        return Answer(self.status, self.content_type, first, rest, route, length, self._headers)

    def drop_headers(self) -> None:
        """Drop the headers: the answer has been made of them."""
        self._reply.headers = NO_HEADERS

    def rest(self, taken: int) -> "Rest":
        """Return the rest of the answer; `taken` bytes have been passed on before."""
        left = math.inf if self.streamed else self._settings.max_answer_bytes - taken
        # A dialect that rewrites the answer calls this a second time.
        if self._timer_slot is None:
            due = self._deadline - self._loop.time()
            self._timer_slot = self._timers.start(self, min(due, self._settings.idle_timeout))
        return Rest(self, self._reply, left)

    def start_idle_timer(self) -> None:
        """Start to measure silence."""
        self._idle_since = self._loop.time()

    def stop_idle_timer(self) -> None:
        """Stop measuring silence: something came, and is being passed on."""
        self._idle_since = math.inf

    def broken_off_error(self) -> AnswerBroken:
        """Return the error that says why nothing more comes."""
        return self.mark_broken(self._overdue or "the worker broke off")

    def mark_broken(self, message: str) -> AnswerBroken:
        """Remember that the answer broke, and return the error to raise."""
        self.broken = AnswerBroken(message)
        return self.broken

    def close(self) -> None:
        """Release the connection: to the pool if the answer is complete, or will be soon behind its `[DONE]`; cut otherwise."""
        if self._timer_slot is not None:
            self._timers.stop(self, self._timer_slot)
            self._timer_slot = None
        if self._is_done and not (self._is_closed or self._reply.done):
            self._is_closed = True
            self._timer_slot = self._timers.start(self, _END_SECONDS)
        else:
            self._reply.close()

    def fire(self) -> None:
        """Check the time limits now and then, since restarting a timer for every chunk would cost more."""
        if self._is_closed:
            self._reply.close()
            return
        now = self._loop.time()
        silent = self._settings.idle_timeout
        due = min(self._deadline, min(self._idle_since, now) + silent)
        if due > now:
            self._timer_slot = self._timers.start(self, due - now)
            return
        if self._deadline <= now:
            self._overdue = f"no end within {self._settings.total_timeout:g} s"
        else:
            self._overdue = f"no byte for {silent:g} s"
        self._reply.close()


class Rest(Flow):
    """The rest of an answer, as it comes."""

    __slots__ = ("_bytes_left", "_exchange", "_reply")

    def __init__(self, exchange: Exchange, reply: Reply, left: float) -> None:
        self._exchange = exchange
        self._reply = reply
        self._bytes_left = left

    async def __anext__(self) -> bytes:
        if self._exchange.ended:
            raise StopAsyncIteration
        self._exchange.start_idle_timer()
        try:
            chunk = await self._reply.read_some()
        except HttpError as error:
            raise self._exchange.broken_off_error() from error
        if not chunk:
            raise StopAsyncIteration
        return self._count_chunk(chunk)

    def read_nowait(self) -> tuple[bytes, bool]:
        """Return what has come, which may be nothing, and whether it is over; start to wait for more. Raise `AnswerBroken`."""
        reply = self._reply
        chunk = reply.read_nowait()
        self._bytes_left -= len(chunk)
        if self._bytes_left < 0:
            raise self._too_long_error()
        if reply.full:
            reply.resume_reading()
        self._exchange.start_idle_timer()
        return chunk, self._exchange.look_for_done(chunk) or reply.done

    @property
    def can_run_inline(self) -> bool:
        """Whether a listener may do all its work at once."""
        return self._reply.can_run_inline

    def inspect(self, cut_through: CutThrough) -> None:
        """Measure silence anew from each chunk that passes."""
        cut_through.on_chunk = self._exchange.start_idle_timer

    def listen(self, listener: Listener | None, cut_through: CutThrough | None = None) -> None:
        """Set or remove the listener for news; without one silence does not count. What `cut_through` takes is no news."""
        self._reply.listener, self._reply.cut_through = listener, cut_through
        if listener is None:
            self._exchange.stop_idle_timer()
        else:
            self._exchange.start_idle_timer()

    def _count_chunk(self, chunk: bytes) -> bytes:
        self._exchange.stop_idle_timer()
        self._exchange.look_for_done(chunk)
        self._bytes_left -= len(chunk)
        if self._bytes_left < 0:
            raise self._too_long_error()
        return chunk

    def _too_long_error(self) -> AnswerBroken:
        return self._exchange.mark_broken("the answer is longer than `max_answer_bytes`")


class SentCall:
    """Context of one request, entered once: its value is the answer that `read` makes of what comes, within the time limits.

    Entering raises a `WorkerError`. Leaving before the end cuts the connection, so that the worker sees its caller go.
    """

    __slots__ = ("_answer", "_call", "_deadlines", "_exchange", "_read", "_reply", "_settings")
    __deletable__ = ("_call", "_read")  # mypyc asks

    def __init__(
        self,
        call: Call,
        settings: RouterSettings,
        deadlines: Deadlines,
        read: Callable[[Exchange], Awaitable[Answer]],
        reply: Reply | None = None,
    ) -> None:
        """Prepare the request, or take over its `reply` if it was sent already."""
        self._call = call
        self._reply = reply
        self._settings = settings
        self._deadlines = deadlines
        self._read = read
        self._exchange: Exchange | None = None
        self._answer: Answer | None = None

    async def __aenter__(self) -> Answer:
        call, settings, loop = self._call, self._settings, self._deadlines.loop
        deadline = loop.time() + settings.total_timeout
        try:
            async with self._deadlines.within(
                min(settings.first_byte_timeout, settings.total_timeout)
            ):
                reply = self._reply
                if reply is None:
                    reply = await call.pool.ask(call.head, call.body)
                else:
                    reply = await call.pool.resume(reply, call.head, call.body)
                self._exchange = Exchange(reply, settings, deadline, self._deadlines.timers)
                self._exchange.check_encoding()
                answer = await self._read(self._exchange)
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise _failure(error, settings) from error
            raise
        self._answer = answer
        # A stream takes long, and its request is no longer needed.
        del self._call, self._read
        self._exchange.drop_headers()
        return answer

    async def __aexit__(self, *_: object) -> None:
        answer, exchange = self._answer, self._exchange
        try:
            if answer is not None and exchange is not None:
                answer.broken = exchange.broken
                if isinstance(answer.rest, AsyncGeneratorType):
                    await answer.rest.aclose()
        finally:
            self._close()

    def _close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()


def plain_json(reply: Reply, facts: HeadFacts) -> bytes | None:
    """Return JSON that came with success, in one small piece that is not compressed; `None` for everything else."""
    if not (facts.json and 200 <= reply.status <= 299):
        return None
    body = reply.peek()
    return body if body and len(body) <= SMALL_BYTES else None


async def read_plain(exchange: Exchange, route: Route) -> Answer:
    """Make an answer of bytes that need no inspection."""
    if exchange.length is None or exchange.length > SMALL_BYTES:
        return exchange.answer(await exchange.read_some(), route, length=exchange.length)
    first = await exchange.read_up_to(SMALL_BYTES)
    return exchange.answer(first, route, length=len(first))


def _failure(error: OSError, settings: RouterSettings) -> WorkerError:
    match error:
        case ConnectTimeout():
            return WorkerTimeout("connection", settings.connect_timeout)
        case WaitEnded():
            return WorkerUnreachable("the other node stopped answering", sent=True)
        case TimeoutError():
            return WorkerTimeout("first byte", settings.first_byte_timeout)
        case CannotConnect():
            return WorkerUnreachable(f"the worker cannot be reached: {error}")
        case HungUp():
            died = WorkerDied("the worker closed the connection before it answered")
            died.hung_up = True
            return died
        case _:
            why = str(error) if isinstance(error, NotHttp) else "the response is not HTTP"
            return WorkerFailed(why)
