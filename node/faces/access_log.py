"""Access log: one line and the metrics of each request. Never what was said in it."""

import asyncio
import inspect
import time
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
from router.openai.usage import Tokens, Usage, told_at_end
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.trace import Trace

log = RequestLog("modelvine.requests")

_NOTHING = Usage(0, 0)
_remembered = lru_cache(maxsize=256)(quoted)
_LEFT = (asyncio.CancelledError, ConnectionError, GeneratorExit)

REFUSED = 400
"""The least status of what did not end well."""

MAX_USUAL = 29
"""Fields that instances of a class have room for in CPython 3.11, without a dictionary each: those that are declared first."""

CALLER_LEFT = 499
"""The status that is logged when nobody was left to see one; nginx coined it."""


class Account:
    """What becomes of one request. A field is set once there is something to say: until then the class says that there is not."""

    id: str
    kind: Kind
    began: float
    model: str = "?"
    node: str = "-"
    route: str = "-"
    attempts: int = 0
    status: int = 500
    taken: int = 0
    sent: int = 0
    asker: str = ""
    """The node that asks, by its peer id; empty where a client does."""
    served: str = ""
    """The name of the model whose tokens are ours to count: the worker is this machine's."""
    usage: Usage | None = None
    """The tokens that this worker used, as far as anything tells."""
    tokens: Tokens | None = None
    key: str = ""
    """Name of its caller's key."""
    ticket: QuotaTicket | None = None
    """Its caller's quota, of which it has a part."""
    told: Usage | None = None
    """What an answer of another node's worker tells of its tokens."""
    first: float = 0.0
    """Seconds to the first byte of its answer."""
    verbatim: str = ""
    """The protocol in whose words the answer is, its caller's and its worker's; none for OpenAI's."""
    seconds: float = -1.0
    """How long it took; negative until it has ended."""
    candidate: Candidate | None = None
    """Who answers, as it looked when it was chosen."""
    others: tuple[Candidate, ...] = ()
    """Who would have been asked next, in this order, likewise."""
    http: HttpRequest | None = None
    """The request of a caller who can be cut off, as long as it is under way."""
    streams_text: bool = False
    """Whether the answer is a stream of text."""
    used: Usage | None = None
    """The tokens that it took, once it has ended, as far as anybody told."""
    keeps_usage: bool = False
    """Whether the node that asks wants to hear what a stream took."""
    failure: str = ""
    """Who failed and why, as fields of the log line."""
    parts: tuple[tuple[str, Usage], ...] = ()
    """The same as `served` and `usage` of the parts before, of a stream that several workers wrote."""
    error: str = ""
    """The class of the error that it failed with."""
    ended: bool = False
    """Whether this process ended before the answer did, and told its caller."""
    hops: tuple[tuple[str, Usage], ...] = ()
    """What other nodes tell of their parts of such a stream, by peer id."""
    trace: Trace | None = None
    """Its trace, where it is traced."""

    def __init__(self, id_: str, kind: Kind, asker: str = "") -> None:
        self.id, self.kind = id_, kind
        self.began = time.monotonic()
        if asker:
            self.asker = asker

    def asks(self, request: Request) -> None:
        """Take in what is asked."""
        self.model, self.taken = request.model.strip(), len(request.body)

    def routed(self, routed: Routed) -> None:
        """Take in who answers."""
        answer, candidate = routed.answer, routed.candidate
        self.candidate, self.others = candidate, routed.others
        self.node, self.route = candidate.node, str(answer.route)
        self.attempts, self.status = routed.attempts, answer.status
        self.verbatim = answer.verbatim
        if candidate.worker is not None:
            self.served, self.usage = candidate.service.model, answer.usage

    def hears(self, usage: Usage | None) -> None:
        """Take in what an answer of another node's worker tells of its tokens."""
        if usage is not None and not usage.estimated:
            self.told = usage

    def part(self, routed: Routed, usage: Usage) -> None:
        """Take in what one worker's part of a stream took."""
        if routed.candidate.worker:
            self.parts = (*self.parts, (routed.candidate.service.model, usage))
        elif not usage.estimated:
            self.hops = (*self.hops, (routed.candidate.node, usage))
            self.hears(self.told + usage if self.told else usage)

    def hears_whole(self, body: bytes) -> None:
        """Take in the same of a whole answer."""
        if not self.served:
            self.hears(told_at_end(body))

    def refused(self, error: Exception, status: int) -> None:
        """Take in how a request failed."""
        self.status = status
        if isinstance(error, RouterError):
            self.attempts = error.attempts
        self.failed(error)

    def failed(self, error: Exception) -> None:
        """Take in who failed and why; what is wrong with a request itself may quote it, and is not logged."""
        self.error = type(error).__name__
        if isinstance(error, WorkerError | NobodyServes | NoCapacity):
            self.failure = f" at={error.at or '-'} why={quoted(str(error))}"

    def ends(self) -> Usage | None:
        """It is over: return the tokens that workers of this machine used, and forget what is large or others' own."""
        self.seconds = time.monotonic() - self.began
        self.http = None
        if self.tokens is not None:
            self.usage, self.tokens = self.tokens.usage(), None
        own = self.usage
        for _, usage in self.parts:
            own = usage if own is None else own + usage
        self.used = own
        if own is None:
            # What nobody answered used none, but whoever leaves early may have had it read.
            unasked = self.route == "-" and self.status != CALLER_LEFT
            self.used = self.told or (_NOTHING if unasked else None)
        return own

    def spent(self) -> tuple[tuple[str, Usage], ...]:
        """Return the tokens that workers of this machine used, by model, as far as anything tells."""
        return (*self.parts, (self.served, self.usage)) if self.usage else self.parts

    def token_seconds(self) -> float:
        """Return how long each token after the first took in a stream that ended well, 0 where nobody tells."""
        used = self.used
        if not self.streams_text or self.status >= REFUSED or used is None:
            return 0.0
        if used.completion < 2 or used.estimated:
            return 0.0
        return (self.seconds - self.first) / (used.completion - 1)


def _lay_out(usual: Iterable[str]) -> None:
    """Give the class an instance that has all usual fields.

    CPython gives an instance room for what those before it had set. Without this one, fields that thousands of requests get
    at their end only would each time cost a dictionary of 1.3 KB.
    """
    example = Account("", Kind.CHAT)
    for name in usual:
        setattr(example, name, getattr(example, name))


_lay_out(list(inspect.get_annotations(Account))[:MAX_USUAL])


def opened(context: Serving, id_: str, kind: Kind, asker: str = "") -> Account:
    """Open the account of one request, of the node `asker` where it is no client's; whoever does so concludes it."""
    account = Account(id_, kind, asker)
    context.metrics.recent.under_way[account] = None
    return account


def accounting(context: Serving, id_: str, kind: Kind, asker: str = "") -> "Concluding":
    """Keep the account of one request, from entering to leaving."""
    return Concluding(context, opened(context, id_, kind, asker))


class Concluding:
    """Concludes an open account on leaving."""

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
            account.refused(error, refusal(error).status)
        elif isinstance(error, _LEFT) and not account.ended:
            account.status = CALLER_LEFT
        conclude(self._context, account)


def conclude(context: Serving, account: Account) -> None:
    """Write one line, and have it counted."""
    own = account.ends()
    context.metrics.ended(account)
    if account.ticket is not None:
        # Who does not tell leaves the estimate as it is.
        used = account.used
        told = used is not None and not used.estimated
        account.ticket.settle(used.prompt + used.completion if used and told else None)
        account.ticket = None
    asker = account.asker
    # Who asks with a grant is counted by that.
    if not asker or account.key:
        context.usage.count(account)
    if (asker or not account.served) and account.status < REFUSED:
        _write_down(context, account)
    if account.error == NoCapacity.__name__:
        context.metrics.recent.found_no_room(account.model, context.peer)
    if account.trace is not None and context.tracer is not None:
        context.tracer.ended(account, account.trace)
        account.trace = None
    # The worker is not ours, or tells nothing.
    tokens = "-"
    if own is not None:
        tokens = f"{'~' if own.estimated else ''}{own.prompt}+{own.completion}"
    seconds = thousandths(account.seconds)
    log.info(
        f"request={account.id} model={_shown_model(account.model)} kind={account.kind} node={account.node} route={account.route}"
        f" attempts={account.attempts} status={account.status} seconds={seconds} tokens={tokens}{account.failure}"
    )


def _shown_model(name: str) -> str:
    """Return a model's name as lines show it: a few come again and again, and long ones are not remembered."""
    return _remembered(name) if len(name) <= MAX_FIELD else quoted(name)


def _write_down(context: Serving, account: Account) -> None:
    """Write receipts of what ended well between this node and others."""
    add, id_, model, seconds = context.receipts.add, account.id, account.model, account.seconds
    if account.asker:
        add(Side.SERVED, account.asker, id_, model, account.used, seconds)
    elif account.hops:
        for node, usage in account.hops:
            add(Side.ASKED, node, id_, model, usage, seconds)
    elif account.node != NOBODY:
        add(Side.ASKED, account.node, id_, model, account.told, seconds)
