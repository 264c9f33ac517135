"""Access log: one line and the metrics of each request, never its content."""

import asyncio
import inspect
from collections.abc import Iterable
from functools import lru_cache
from types import TracebackType

from node.auth.quotas import QuotaTicket
from node.auth.receipts import Side
from node.auth.usage_row import NOBODY
from node.faces import Serving
from node.faces.errors import KNOWN, refusal
from node.lane.request import HttpRequest
from node.observe.logs import MAX_FIELD, RequestLog, quoted, thousandths
from router.attempt import Routed
from router.errors import NobodyServes, NoCapacity, RouterError, WorkerError
from router.openai.usage import StreamUsage, Usage, read_usage_at_end
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.trace import Trace

log = RequestLog("modelvine.requests")

_NOTHING = Usage(0, 0)
_UNKNOWN = Usage(0, 0, estimated=True)
_remembered = lru_cache(maxsize=256)(quoted)
_LEFT = (asyncio.CancelledError, ConnectionError, GeneratorExit)

REFUSED = 400
"""The lowest status of a failed request."""

MAX_USUAL = 29
"""Attributes that an instance holds in CPython 3.11 without a dictionary of its own; here those that are declared first."""

CALLER_LEFT = 499
"""The status that is logged when the caller disconnected before the end of the answer; nginx's convention."""


class Account:
    """What becomes of one request. A field is set once its value is known; until then the class attribute is its default."""

    id: str
    kind: Kind
    began: float
    """The time at which it arrived, on the clock of `Serving.now`."""
    model: str = "?"
    node: str = "-"
    route: str = "-"
    attempts: int = 0
    status: int = 500
    request_bytes: int = 0
    answer_bytes: int = 0
    asker: str = ""
    """The peer id of the asking node; empty where a client asks."""
    served: str = ""
    """The name of the model whose tokens this node counts, because the worker is on this machine; else empty."""
    usage: Usage | None = None
    """The tokens that this worker used, as far as known."""
    tokens: StreamUsage | None = None
    key: str = ""
    """The name of the caller's key."""
    ticket: QuotaTicket | None = None
    """The request's share of its caller's quota."""
    reported_usage: Usage | None = None
    """The usage that an answer from another node's worker reports."""
    first_byte_seconds: float = 0.0
    """Seconds to the first byte of its answer."""
    verbatim: str = ""
    """The protocol of the answer, if it is both the caller's and the worker's; empty for OpenAI's."""
    seconds: float = -1.0
    """Duration of the request in seconds; negative until it has ended."""
    candidate: Candidate | None = None
    """The candidate that answers, as it was when it was chosen."""
    others: tuple[Candidate, ...] = ()
    """The candidates that would have been tried next, in this order, as they were then."""
    http: HttpRequest | None = None
    """The HTTP request, while it is in flight, of a caller that can be cut off."""
    streams_text: bool = False
    """Whether the answer is a stream of text."""
    used: Usage | None = None
    """The tokens that the request used, as far as known; set once it has ended."""
    keeps_usage: bool = False
    """Whether the asking node wants the usage event of a stream."""
    failure: str = ""
    """The candidate that failed and why, as fields of the log line."""
    parts: tuple[tuple[str, Usage], ...] = ()
    """`served` and `usage` of the earlier parts of a stream that several workers wrote."""
    error: str = ""
    """The class of the error that it failed with."""
    ended: bool = False
    """Whether this process ended before the answer did, and told the caller."""
    hops: tuple[tuple[str, Usage], ...] = ()
    """The usage that other nodes report for their parts of such a stream, by peer id."""
    trace: Trace | None = None
    """The trace of the request, if it is traced."""

    def __init__(self, id_: str, kind: Kind, began: float, asker: str = "") -> None:
        self.id, self.kind, self.began = id_, kind, began
        if asker:
            self.asker = asker

    def record_request(self, request: Request) -> None:
        """Record what is asked."""
        self.model, self.request_bytes = request.model.strip(), len(request.body)

    def record_answer(self, routed: Routed) -> None:
        """Record the answer and its candidate."""
        answer, candidate = routed.answer, routed.candidate
        self.candidate, self.others = candidate, routed.others
        self.node, self.route = candidate.node, str(answer.route)
        self.attempts, self.status = routed.attempts, answer.status
        self.verbatim = answer.verbatim
        if candidate.worker is not None:
            self.served, self.usage = candidate.service.model, answer.usage

    def record_reported_usage(self, usage: Usage | None) -> None:
        """Record the usage that an answer from another node's worker reports."""
        if usage is not None and not usage.estimated:
            self.reported_usage = usage

    def record_part(self, routed: Routed, usage: Usage) -> None:
        """Record the usage of one worker's part of a stream."""
        if routed.candidate.worker:
            self.parts = (*self.parts, (routed.candidate.service.model, usage))
        elif not usage.estimated:
            self.hops = (*self.hops, (routed.candidate.node, usage))
            self.record_reported_usage(
                self.reported_usage + usage if self.reported_usage else usage
            )

    def record_usage_in(self, body: bytes) -> None:
        """Record the usage that a whole answer from another node's worker reports."""
        if not self.served:
            self.record_reported_usage(read_usage_at_end(body))

    def record_refusal(self, error: Exception, status: int) -> None:
        """Record the failure of a request."""
        self.status = status
        if isinstance(error, RouterError):
            self.attempts = error.attempts
        self.record_failure(error)

    def record_failure(self, error: Exception) -> None:
        """Record which candidate failed and why; a message about the request itself may quote it, and is not logged."""
        self.error = type(error).__name__
        if isinstance(error, WorkerError | NobodyServes | NoCapacity):
            self.failure = f" at={error.at or '-'} why={quoted(str(error))}"

    def finish(self, now: float) -> Usage | None:
        """End the request: return the tokens that workers of this machine used, and drop the HTTP request and the counter."""
        self.seconds = now - self.began
        self.http = None
        if self.tokens is not None:
            self.usage, self.tokens = self.tokens.usage(), None
        own_usage = self.usage
        for _, usage in self.parts:
            own_usage = usage if own_usage is None else own_usage + usage
        self.used = own_usage
        if own_usage is None:
            # A request that no worker answered used none, but for a caller that left early a worker may have read the prompt.
            unasked = self.route == "-" and self.status != CALLER_LEFT
            self.used = self.reported_usage or (_NOTHING if unasked else None)
        return own_usage

    def tokens_by_model(self) -> tuple[tuple[str, Usage], ...]:
        """Return the tokens that workers of this machine used, by model, as far as known."""
        return (*self.parts, (self.served, self.usage)) if self.usage else self.parts

    def token_seconds(self) -> float:
        """Return the seconds for each token after the first in a stream that ended well, 0 where its usage is not known."""
        used = self.used
        if not self.streams_text or self.status >= REFUSED or used is None:
            return 0.0
        if used.completion < 2 or used.estimated:
            return 0.0
        return (self.seconds - self.first_byte_seconds) / (used.completion - 1)


def _preset_layout(usual: Iterable[str]) -> None:
    """Create one instance of the class that has all usual fields.

    CPython sizes an instance by the attributes that earlier ones had set. Without this one, the fields that thousands of requests
    get only at their end would cost each of them a dictionary of 1.3 KB.
    """
    example = Account("", Kind.CHAT, 0.0)
    for name in usual:
        setattr(example, name, getattr(example, name))


_preset_layout(list(inspect.get_annotations(Account))[:MAX_USUAL])


def start_account(context: Serving, id_: str, kind: Kind, asker: str = "") -> Account:
    """Open the account of one request, from the node `asker` or, if that is empty, a client; the caller must `conclude` it."""
    account = Account(id_, kind, context.now(), asker)
    context.metrics.recent.under_way[account] = None
    return account


def open_account(context: Serving, id_: str, kind: Kind, asker: str = "") -> "OpenAccount":
    """Return a context manager that opens the account of one request, and concludes it on leaving."""
    return OpenAccount(context, start_account(context, id_, kind, asker))


class OpenAccount:
    """Context manager that concludes an open account on leaving."""

    __slots__ = ("_account", "_context")

    def __init__(self, context: Serving, account: Account) -> None:
        self._context = context
        self._account = account

    def __enter__(self) -> Account:
        return self._account

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        account = self._account
        if isinstance(error, KNOWN):
            account.record_refusal(error, refusal(error).status)
        elif isinstance(error, _LEFT) and not account.ended:
            account.status = CALLER_LEFT
        conclude(self._context, account)


def conclude(context: Serving, account: Account) -> None:
    """Write the log line of a request, and count it in metrics, quota, usage and receipts."""
    own_usage = account.finish(context.now())
    context.metrics.ended(account)
    if account.ticket is not None:
        _settle_quota(account.ticket, account)
        account.ticket = None
    asker = account.asker
    # A node that asks with a grant is counted by the grant.
    if not asker or account.key:
        context.usage.count(account)
    if (asker or not account.served) and account.status < REFUSED:
        _add_receipts(context, account)
    if account.error == NoCapacity.__name__:
        context.metrics.recent.found_no_room(account.model, context.peer)
    if account.trace is not None and context.tracer is not None:
        context.tracer.ended(account, account.trace)
        account.trace = None
    # The worker is another node's, or reports nothing.
    tokens = "-"
    if own_usage is not None:
        tokens = f"{'~' if own_usage.estimated else ''}{own_usage.prompt}+{own_usage.completion}"
    seconds = thousandths(account.seconds)
    log.info(
        f"request={account.id} model={_shown_model(account.model)} kind={account.kind} node={account.node} route={account.route}"
        f" attempts={account.attempts} status={account.status} seconds={seconds} tokens={tokens}{account.failure}"
    )


def _settle_quota(ticket: QuotaTicket, account: Account) -> None:
    if account.status == CALLER_LEFT and account.route == "-":
        ticket.abandon()
        return
    # Without a reported usage, the quota's reservation stands.
    used = account.used or _UNKNOWN
    tokens = used.prompt + used.completion
    ticket.settle(None if used.estimated else tokens, written=tokens)


def _shown_model(name: str) -> str:
    """Return a model's name as log lines show it, cached because few names recur; long names are not cached."""
    return _remembered(name) if len(name) <= MAX_FIELD else quoted(name)


def _add_receipts(context: Serving, account: Account) -> None:
    """Write receipts for a request that ended well between this node and others."""
    add, id_, model, seconds = context.receipts.add, account.id, account.model, account.seconds
    if account.asker:
        add(Side.SERVED, account.asker, id_, model, account.used, seconds)
    elif account.hops:
        for node, usage in account.hops:
            add(Side.ASKED, node, id_, model, usage, seconds)
    elif account.node != NOBODY:
        add(Side.ASKED, account.node, id_, model, account.reported_usage, seconds)
