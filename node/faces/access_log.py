"""Access log: one line and the metrics of each request. Never what was said in it."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from node.auth.quotas import QuotaTicket
from node.auth.receipts import Side
from node.auth.usage import NOBODY
from node.faces import Serving
from node.faces.errors import KNOWN, refusal
from node.lane.request import HttpRequest
from node.observe.logs import RequestLog, quoted
from node.observe.metrics import Metrics
from router.attempt import Routed
from router.errors import NobodyServes, NoCapacity, RouterError, WorkerError
from router.openai.usage import Tokens, Usage, told_at_end
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.trace import Trace

log = RequestLog("modelvine.requests")

_NOTHING = Usage(0, 0)

_REFUSED = 400

CALLER_LEFT = 499
"""The status that is logged when nobody was left to see one; nginx coined it."""


@dataclass(slots=True)
class Account:
    """What becomes of one request."""

    id: str
    kind: Kind
    began: float = field(default_factory=time.monotonic)
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
    tokens: Tokens | None = None
    key: str = ""
    """Name of its caller's key."""
    ticket: QuotaTicket | None = None
    """Its caller's quota, of which it has a part."""
    told: Usage | None = None
    """What an answer of another node's worker tells of its tokens."""
    first: float = 0.0
    """Seconds to the first byte of its answer."""
    keeps_usage: bool = False
    """Whether the node that asks wants to hear what a stream took."""
    ended: bool = False
    """Whether this process ended before the answer did, and told its caller."""
    failure: str = ""
    """Who failed and why, as fields of the log line."""
    verbatim: str = ""
    """The protocol in whose words the answer is, its caller's and its worker's; none for OpenAI's."""
    parts: list[tuple[str, Usage]] = field(default_factory=list)
    """The same of the parts of a stream that several workers wrote."""
    hops: list[tuple[str, Usage]] = field(default_factory=list)
    """What other nodes tell of their parts of such a stream, by peer id."""
    seconds: float = -1.0
    """How long it took; negative until it has ended."""
    candidate: Candidate | None = None
    """Who answers, as it looked when it was chosen."""
    others: tuple[Candidate, ...] = ()
    """Who would have been asked next, in this order, likewise."""
    http: HttpRequest | None = None
    """The request of a caller who can be cut off, as long as it is under way."""
    trace: Trace | None = None
    """Its trace, where it is traced."""
    error: str = ""
    """The class of the error that it failed with."""
    streams_text: bool = False
    """Whether the answer is a stream of text."""
    full: bool = False
    """Whether this machine had no room for it."""
    used: Usage | None = None
    """The tokens that it took, once it has ended, as far as anybody told."""

    def asks(self, request: Request) -> None:
        """Take in what is asked."""
        self.model, self.taken = request.model.strip(), len(request.body)

    def routed(self, routed: Routed) -> None:
        """Take in who answers."""
        answer, worker = routed.answer, routed.candidate.worker
        self.candidate, self.others = routed.candidate, routed.others
        self.node, self.route = routed.candidate.node, str(answer.route)
        self.attempts, self.status = routed.attempts, answer.status
        self.verbatim = answer.verbatim
        if worker:
            self.served, self.usage = routed.candidate.service.model, answer.usage

    def hears(self, usage: Usage | None) -> None:
        """Take in what an answer of another node's worker tells of its tokens."""
        if usage is not None and not usage.estimated:
            self.told = usage

    def part(self, routed: Routed, usage: Usage) -> None:
        """Take in what one worker's part of a stream took."""
        if routed.candidate.worker:
            self.parts.append((routed.candidate.service.model, usage))
        elif not usage.estimated:
            self.hops.append((routed.candidate.node, usage))
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
        self.full = isinstance(error, NoCapacity)
        if isinstance(error, WorkerError | NobodyServes | NoCapacity):
            self.failure = f" at={error.at or '-'} why={quoted(str(error))}"

    def spent(self) -> list[tuple[str, Usage]]:
        """Return the tokens that workers of this machine used, by model, as far as anything tells."""
        usage = self.tokens.usage() if self.tokens else self.usage
        return [*self.parts, (self.served, usage)] if usage else self.parts


def opened(context: Serving, id_: str, kind: Kind, asker: str = "") -> Account:
    """Open the account of one request, of the node `asker` where it is no client's; whoever does so concludes it."""
    context.metrics.begun()
    account = Account(id_, kind, asker=asker)
    context.metrics.recent.under_way[id(account)] = account
    return account


def accounting(
    context: Serving, id_: str, kind: Kind, asker: str = ""
) -> AbstractContextManager[Account]:
    """Keep the account of one request, from entering to leaving."""
    return concluding(context, opened(context, id_, kind, asker))


@contextmanager
def concluding(context: Serving, account: Account) -> Iterator[Account]:
    """Conclude an open account on leaving."""
    try:
        yield account
    except KNOWN as error:
        account.refused(error, refusal(error).status)
        raise
    except (asyncio.CancelledError, ConnectionError, GeneratorExit):
        if not account.ended:
            account.status = CALLER_LEFT
        raise
    finally:
        conclude(context, account)


def conclude(context: Serving, account: Account) -> None:
    """Write one line, and count."""
    seconds = time.monotonic() - account.began
    context.metrics.ended(
        str(account.kind),
        status=account.status,
        seconds=seconds,
        taken=account.taken,
        sent=account.sent,
    )
    spent = account.spent()
    for model, usage in spent:
        context.metrics.spent(model, usage)
    used = _used(account, spent)
    if account.ticket is not None:
        # Who does not tell leaves the estimate as it is.
        told = used is not None and not used.estimated
        account.ticket.settle(used.prompt + used.completion if used and told else None)
    asker = account.asker
    # Who asks with a grant is counted by that.
    if not asker or account.key:
        _count(context, account, used, seconds)
    if (asker or not account.served) and account.status < _REFUSED:
        _write_down(context, account, used, seconds)
    if account.full:
        context.metrics.recent.found_no_room(account.model, context.peer)
    _remember(context.metrics, account, used, seconds, spent)
    if account.trace is not None and context.tracer is not None:
        context.tracer.ended(account, account.trace)
        account.trace = None
    log.info(
        "request=%s model=%s kind=%s node=%s route=%s attempts=%d status=%d seconds=%.3f tokens=%s%s",
        account.id,
        quoted(account.model),
        account.kind,
        account.node,
        account.route,
        account.attempts,
        account.status,
        seconds,
        _in_words([usage for _, usage in spent]),
        account.failure,
    )


def _write_down(context: Serving, account: Account, used: Usage | None, seconds: float) -> None:
    """Write receipts of what ended well between this node and others."""
    add = context.receipts.add
    if account.asker:
        tokens = None if used is None or used.estimated else (used.prompt, used.completion)
        add(Side.SERVED, account.asker, account.id, account.model, tokens, seconds)
        return
    if account.node == NOBODY:
        return
    told = account.told
    for node, usage in account.hops or ((account.node, told),):
        tokens = None if usage is None else (usage.prompt, usage.completion)
        add(Side.ASKED, node, account.id, account.model, tokens, seconds)


def _remember(
    metrics: Metrics,
    account: Account,
    used: Usage | None,
    seconds: float,
    spent: list[tuple[str, Usage]],
) -> None:
    """Have an account that has ended measured, and looked at later, without what is large or others' own."""
    recent = metrics.recent
    account.seconds, account.used = seconds, used
    account.ticket = account.tokens = account.http = None
    recent.under_way.pop(id(account), None)
    recent.ended.append(account)
    recent.count += 1
    token_time = 0.0
    well = account.streams_text and account.status < _REFUSED
    if well and used is not None and used.completion > 1 and not used.estimated:
        token_time = (seconds - account.first) / (used.completion - 1)
        metrics.token_time(str(account.kind), token_time)
    if metrics.measurements is not None:
        metrics.measurements.ended(account, spent, token_time)


def _used(account: Account, spent: list[tuple[str, Usage]]) -> Usage | None:
    """Return the tokens that a request used, `None` where nobody tells; what nobody answered used none."""
    if spent:
        first, *others = spent
        return sum((usage for _, usage in others), start=first[1]) if others else first[1]
    if account.told is not None:
        return account.told
    # Whoever leaves early may have had it read.
    return _NOTHING if account.route == "-" and account.status != CALLER_LEFT else None


def _count(context: Serving, account: Account, used: Usage | None, seconds: float) -> None:
    node = account.node
    # What nobody has can be called anything.
    model = NOBODY if node == NOBODY else account.model
    tally = context.usage.tally(account.key or NOBODY, model, node)
    tally.requests += 1
    tally.seconds += seconds
    tally.first_seconds += account.first
    if account.status >= 400:
        tally.failed += 1
    if used is None or used.estimated:
        tally.estimated += 1
    if used is not None:
        tally.prompt += used.prompt
        tally.completion += used.completion
        tally.cached += used.cached or 0


def _in_words(spent: list[Usage]) -> str:
    """Write `prompt+completion`, `~` before it where part is estimated, `-` where the worker is not ours or tells nothing."""
    if not spent:
        return "-"
    first, *others = spent
    total = sum(others, start=first)
    return f"{'~' if total.estimated else ''}{total.prompt}+{total.completion}"
