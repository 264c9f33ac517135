"""Quotas of keys, of models for a key, and of addresses without a key: request and token rates, and concurrency.

A request reserves its share before it is routed, and settles it at its end.

Tokens are reserved by estimate, at most a whole limit of them, and settled by the usage in the answer. Each process counts for
itself; `Quotas.spent` and `learn` exchange the counts with other processes.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from node.auth.errors import DaySpent, Limited, RateExceeded, TooManyAtOnce
from node.auth.keys import UNLIMITED, ApiKey, KeyLimits, QuotaSpending, QuotaStanding
from node.auth.principal import Principal
from node.auth.rate_limit import DayBudget, Gcra, Rate, requests_a_minute, tokens_a_minute
from node.config.web import WebSettings
from node.observe.logs import thousandths
from registry.clock import Clock
from router.openai.usage import TEXT
from router.requests import Request

USUAL_TOKENS = 256
"""Estimated tokens of an answer whose request sets no limit."""

BYTES_PER_TOKEN = 4

QUIET_SECONDS = 120.0
"""Seconds after a key's last request for which its usage is exchanged with other processes."""

MAX_ADDRESSES = 16_384
"""Addresses whose usage is kept; beyond that, the least recently used is evicted, and would start anew."""

_OF_KEY = "this key allows"
_OF_ADDRESS = "without a key, one address may have"
_LIMIT = re.compile(rb'"max_(?:completion_|output_)?tokens"\s{0,8}:\s{0,8}(\d{1,7})')


class LimitUsage:
    """Usage of one set of limits."""

    __slots__ = ("day", "last", "requests", "tokens", "under_way")

    def __init__(self) -> None:
        self.requests = Gcra()
        self.tokens = Gcra()
        self.day = DayBudget()
        self.under_way = 0
        self.last = -math.inf


@dataclass(slots=True)
class Quota:
    """Limits and their usage for one request; `whose` begins the error message that states the limit."""

    limits: KeyLimits
    books: LimitUsage
    whose: str
    date: int = 0
    """The day whose budget has the reservation."""

    def objection(self, now: float, wall: float, estimate: int) -> Limited | None:
        """Return why a request of so many tokens has to wait, `None` if it need not."""
        limits, books = self.limits, self.books
        kind: type[Limited] = RateExceeded
        wait, text = 0.0, ""
        if limits.concurrency and books.under_way >= limits.concurrency:
            kind, wait = TooManyAtOnce, 1.0
            text = f"{limits.concurrency} concurrent requests"
        elif limits.rpm and (wait := books.requests.wait(now, requests_a_minute(limits.rpm), 1)):
            text = f"{limits.rpm:,} requests a minute, evenly spread"
        elif limits.tpm and (wait := books.tokens.wait(now, tokens_a_minute(limits.tpm), estimate)):
            text = f"{limits.tpm:,} tokens a minute"
        elif limits.tokens_per_day and (wait := books.day.wait(wall, limits.tokens_per_day)):
            kind, text = DaySpent, f"{limits.tokens_per_day:,} tokens a day, which are used up"
        return kind(f"{self.whose} {text}", wait, {}) if wait else None

    def begin(self, now: float, wall: float, estimate: int) -> None:
        """Reserve a request's share: its estimate, at most the whole limit."""
        limits, books = self.limits, self.books
        if limits.rpm:
            books.requests.spend(now, requests_a_minute(limits.rpm), 1)
        if limits.tpm:
            books.tokens.spend(now, tokens_a_minute(limits.tpm), min(estimate, limits.tpm))
        if limits.tokens_per_day:
            books.day.spend(wall, min(estimate, limits.tokens_per_day))
            self.date = books.day.date
        books.under_way += 1

    def end(self, now: float, wall: float, estimate: int, least: int, most: int) -> None:
        """Settle a request that took `least` to `most` tokens: its reservation counts, brought into these bounds."""
        limits, books = self.limits, self.books
        books.under_way -= 1
        if limits.tpm:
            reserved = min(estimate, limits.tpm)
            used = max(least, min(reserved, most))
            books.tokens.spend(now, tokens_a_minute(limits.tpm), used - reserved)
        if limits.tokens_per_day:
            reserved = min(estimate, limits.tokens_per_day)
            books.day.settle(wall, self.date, reserved, max(least, min(reserved, most)))


class QuotaTicket:
    """One request's share of all quotas that it counts for."""

    __slots__ = ("_estimate", "_now", "_prompt", "_quotas", "_wall")

    def __init__(
        self, quotas: Sequence[Quota], estimate: int, prompt: int, now: Clock, wall: Clock
    ) -> None:
        self._quotas = quotas
        self._estimate = estimate
        self._prompt = prompt
        self._now = now
        self._wall = wall

    def settle(self, tokens: int | None, written: int = 0) -> None:
        """Settle the ended request, which took so many tokens. Later calls do nothing.

        For `None` the reservation counts, or the `written` tokens that were seen if they are more.
        """
        if tokens is None:
            self._end(written, self._estimate)
        else:
            self._end(tokens, tokens)

    def abandon(self) -> None:
        """Settle a request whose caller left before any answer: a worker may have read its prompt, so that counts."""
        self._end(0, self._prompt)

    def _end(self, least: int, most: int) -> None:
        quotas, self._quotas = self._quotas, ()
        for quota in quotas:
            quota.end(self._now(), self._wall(), self._estimate, least, most)

    def headers(self) -> dict[str, str]:
        """Return the rate limit headers that OpenAI's clients read."""
        return headers_of(self._quotas, self._now())


class Quotas:
    """Usage of all limited keys and addresses. Lives on one event loop."""

    def __init__(self, now: Clock, wall: Clock, per_address: KeyLimits = UNLIMITED) -> None:
        """`now` is monotonic, `wall` Unix time. `per_address` limits each address whose callers show no key."""
        self._now = now
        self._wall = wall
        self._per_address = per_address
        self._books: dict[str, LimitUsage] = {}
        self._addresses: dict[str, LimitUsage] = {}
        """Usage by this process alone, the most recently used address last."""

    def admit(self, principal: Principal, request: Request) -> QuotaTicket | None:
        """Reserve a request's share; return `None` if nothing limits the caller, raise a `Limited` error at a limit."""
        key = principal.key
        if key is None:
            if not principal.address or not self._per_address.limits_anything:
                return None
            quotas = [Quota(self._per_address, self._books_of(principal.address), _OF_ADDRESS)]
        elif not (quotas := self._quotas_of(key, request)):
            return None
        now, wall = self._now(), self._wall()
        counted = any(q.limits.tpm or q.limits.tokens_per_day for q in quotas)
        estimate = estimated(request) if counted else 0
        objections = [
            o for quota in quotas if (o := quota.objection(now, wall, estimate)) is not None
        ]
        if objections:
            error = max(objections, key=lambda objection: objection.retry_after)
            error.headers = headers_of(quotas, now)
            raise error
        for quota in quotas:
            quota.books.last = now
            quota.begin(now, wall, estimate)
        return QuotaTicket(quotas, estimate, prompt_tokens(request), self._now, self._wall)

    def spent(self) -> Iterator[QuotaSpending]:
        """Yield what each recently used key has spent here since the last call; forget the usage of other keys."""
        now, wall = self._now(), self._wall()
        for name, books in tuple(self._books.items()):
            requests, tokens, day = books.requests, books.tokens, books.day
            day.turn(wall)
            if now - books.last > QUIET_SECONDS and not books.under_way and not day.spent:
                # A key that has used some of today's budget, or owes time, may ask again before, so its usage stays.
                if not day.used and max(requests.due, tokens.due) <= now:
                    del self._books[name]
                continue
            yield QuotaSpending(name, requests.spent, tokens.spent, day.spent, day.date)
            requests.spent = tokens.spent = day.spent = 0.0

    def give_back(self, spending: QuotaSpending) -> None:
        """Take back spending that could not be reported; what still matters is reported with the next round."""
        books, now = self._books.setdefault(spending.name, LimitUsage()), self._now()
        for gcra, amount in ((books.requests, spending.requests), (books.tokens, spending.tokens)):
            gcra.spent = min(gcra.spent + amount, max(gcra.due - now, 0.0))
        books.day.turn(self._wall())
        if spending.date == books.day.date:
            books.day.spent += spending.day

    def learn(self, standing: QuotaStanding) -> None:
        """Take in the total spending of a key at all processes."""
        books, now = self._books.setdefault(standing.name, LimitUsage()), self._now()
        books.requests.learn(now, standing.requests)
        books.tokens.learn(now, standing.tokens)
        books.day.learn(self._wall(), standing.date, standing.day)

    def _quotas_of(self, key: ApiKey, request: Request) -> list[Quota]:
        quotas = []
        # Requests with a grant that was passed on also count for the grants that it was passed on from.
        for holder in key.ancestry if key.within else (key,):
            if holder.limits_anything:
                books = self._books.setdefault(holder.name, LimitUsage())
                quotas.append(Quota(holder, books, _OF_KEY))
            for limit in holder.model_limits:
                names, project = (request.model, *request.fallbacks), request.pin.project
                # A request with fallbacks may be answered by any of its models.
                if limit.limits_anything and any(limit.counts(name, project) for name in names):
                    # The blank keeps this name apart from those of keys, which hold none.
                    books = self._books.setdefault(f"{holder.name} {limit.model}", LimitUsage())
                    quotas.append(Quota(limit, books, f"for {limit.model} {_OF_KEY}"))
        return quotas

    def _books_of(self, address: str) -> LimitUsage:
        books = self._addresses.pop(address, None)
        if books is None:
            if len(self._addresses) >= MAX_ADDRESSES:
                del self._addresses[next(iter(self._addresses))]
            books = LimitUsage()
        self._addresses[address] = books
        return books


def limits_of_addresses(settings: WebSettings) -> KeyLimits:
    """Return the limits of one address whose callers show no key."""
    return KeyLimits(
        rpm=settings.rpm_per_address,
        tpm=settings.tpm_per_address,
        concurrency=settings.concurrency_per_address,
    )


def estimated(request: Request) -> int:
    """Return the estimated tokens of a request's prompt and of its longest answer; 0 for kinds other than text."""
    if request.kind not in TEXT:
        return 0
    limits = [int(digits) for digits in _LIMIT.findall(request.body)]
    return prompt_tokens(request) + max(limits, default=USUAL_TOKENS)


def prompt_tokens(request: Request) -> int:
    """Return the estimated tokens of a request's prompt."""
    return len(request.body) // BYTES_PER_TOKEN


def headers_of(quotas: Sequence[Quota], now: float) -> dict[str, str]:
    """Return OpenAI's rate limit headers for the scarcest of each kind: the limit, what is left, and the time to a reset."""
    headers: dict[str, str] = {}
    if buckets := [
        (requests_a_minute(q.limits.rpm), q.books.requests) for q in quotas if q.limits.rpm
    ]:
        headers |= _shown("requests", buckets, now)
    if buckets := [(tokens_a_minute(q.limits.tpm), q.books.tokens) for q in quotas if q.limits.tpm]:
        headers |= _shown("tokens", buckets, now)
    return headers


def _shown(unit: str, limits: Sequence[tuple[Rate, Gcra]], now: float) -> dict[str, str]:
    rate, gcra = limits[0]
    if len(limits) > 1:
        rate, gcra = min(limits, key=lambda one: (one[1].left(now, one[0]), -one[1].due))
    return {
        f"x-ratelimit-limit-{unit}": str(rate.limit),
        f"x-ratelimit-remaining-{unit}": str(gcra.left(now, rate)),
        f"x-ratelimit-reset-{unit}": f"{thousandths(max(gcra.due - now, 0.0))}s",
    }
